"""Prepare batches ahead of training: in threads on CPU, and on another stream on a GPU."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import torch

T = TypeVar("T")


def ahead(jobs: Iterable[Callable[[], T]], device: torch.device, *, workers: int) -> Iterator[T]:
    """Run jobs that prepare batches on a device, ahead of the consumer of their results."""
    if device.type == "cuda":
        return on_another_stream(jobs, device)
    return in_background(jobs, workers=workers)


def in_background(jobs: Iterable[Callable[[], T]], *, workers: int) -> Iterator[T]:
    """Run jobs in threads, ahead of the consumer of their results; results keep their order.

    At most workers + 1 results wait, so memory is bounded. With workers = 0, jobs run in the
    calling thread.
    """
    if workers == 0:
        yield from (job() for job in jobs)
        return
    with ThreadPoolExecutor(workers, thread_name_prefix="batch") as pool:
        waiting: deque[Future[T]] = deque()
        try:
            for job in jobs:
                waiting.append(pool.submit(job))
                if len(waiting) > workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def on_another_stream(jobs: Iterable[Callable[[], T]], device: torch.device) -> Iterator[T]:
    """Run jobs on another stream of a GPU, one job ahead of the consumer of their results.

    A job consists of hundreds of short kernels, and it often waits for a number from the GPU. On
    the stream that trains, it would wait for a whole step each time.
    """
    side, training = _side_stream(device), torch.cuda.current_stream(device)
    side.wait_stream(training)  # which placed the graph
    used: deque[tuple[torch.cuda.Event, T]] = deque()
    try:
        for result, is_done in _one_ahead(_run_on(side, jobs)):
            training.wait_event(is_done)
            yield result
            used.append((training.record_event(), result))
            if len(used) > 1:
                # The memory of a result is free when its last reference is dropped. A job may use
                # it only after training has read it.
                side.wait_event(used[0][0])
                used.popleft()
    finally:
        training.wait_stream(side)


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    # One for all trainings: memory that was freed on one stream is not used by another one.
    stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return stream


def _run_on(
    stream: torch.cuda.Stream, jobs: Iterable[Callable[[], T]]
) -> Iterator[tuple[T, torch.cuda.Event]]:
    """The result of each job, and an event that the stream reaches when the job is done."""
    for job in jobs:
        with torch.cuda.stream(stream):
            result = job()
        yield result, stream.record_event()
        del result


def _one_ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items, each handed out after the next one was made."""
    waiting: deque[T] = deque()
    for item in items:
        waiting.append(item)
        del item
        if len(waiting) > 1:
            yield waiting.popleft()
    yield from waiting
