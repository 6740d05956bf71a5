"""Prepare batches ahead of training: in threads on CPU, and on another stream on a GPU."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import cache
from typing import TypeVar

import torch

from unimp.data.threads import in_order

T = TypeVar("T")


def ahead(jobs: Iterable[Callable[[], T]], device: torch.device, *, workers: int) -> Iterator[T]:
    """Run jobs that prepare batches on a device, ahead of the consumer of their results."""
    if device.type == "cuda":
        return on_another_stream((job() for job in jobs), device, "batches")
    return in_background(jobs, workers=workers)


def in_background(jobs: Iterable[Callable[[], T]], *, workers: int) -> Iterator[T]:
    """Run jobs in threads, ahead of the consumer of their results; results keep their order.

    At most workers + 1 results wait, so memory is bounded. With workers = 0, jobs run in the
    calling thread.
    """
    if workers == 0:
        return (job() for job in jobs)
    return in_order(lambda job: job(), jobs, workers, name="batch")


def on_another_stream(items: Iterable[T], device: torch.device, purpose: str) -> Iterator[T]:
    """Compute items on another stream of a GPU, one item ahead of their consumer.

    Preparing a batch runs hundreds of short kernels, and Python waits several times for their
    results. On the stream that trains, each wait would also include the training step that was
    queued before. Each purpose has its own stream.
    """
    if device.type != "cuda":
        yield from items
        return
    side, consumer = _stream(device, purpose), torch.cuda.current_stream(device)
    side.wait_stream(consumer)  # which may still be copying the graph
    used: deque[tuple[torch.cuda.Event, T]] = deque()
    try:
        for item, is_done in _one_ahead(_computed_on(side, items)):
            consumer.wait_event(is_done)
            yield item
            # The memory of an item can be reused when its last reference is dropped. This reference
            # is kept until the consumer's stream has read the item.
            used.append((consumer.record_event(), item))
            del item
            if len(used) > 1:
                used[0][0].synchronize()
                used.popleft()
    finally:
        close(items)  # which may also wait for another stream
        consumer.wait_stream(side)


def close(items: Iterable[T]) -> None:
    """Close a generator: its `finally` block runs now, and not later when it is freed."""
    if isinstance(items, Generator):
        items.close()


@cache
def _stream(device: torch.device, purpose: str) -> torch.cuda.Stream:
    # All epochs use the same stream, because torch reuses freed memory only on the stream for which
    # it was allocated.
    stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return stream


def _computed_on(
    stream: torch.cuda.Stream, items: Iterable[T]
) -> Iterator[tuple[T, torch.cuda.Event]]:
    """Each item, and an event that the stream reaches when the item is computed."""
    iterator = iter(items)
    while True:
        with torch.cuda.stream(stream):
            try:
                item = next(iterator)
            except StopIteration:
                return
        yield item, stream.record_event()
        del item


def _one_ahead(items: Iterable[T]) -> Iterator[T]:
    """Yield the same items, each after the next one was started."""
    waiting: deque[T] = deque()
    for item in items:
        waiting.append(item)
        del item
        if len(waiting) > 1:
            yield waiting.popleft()
    while waiting:
        yield waiting.popleft()
