"""Apply a function to items in threads, ahead of the consumer of the results."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def in_order(
    function: Callable[[T], R], items: Iterable[T], workers: int, *, name: str = "build"
) -> Iterator[R]:
    """Yield results in the order of the items; at most `workers` + 1 results wait.

    name: the beginning of the names of the threads.
    """
    with ThreadPoolExecutor(workers, thread_name_prefix=name) as pool:
        waiting: deque[Future[R]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
