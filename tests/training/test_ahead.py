"""Preparing batches ahead of training: in threads, and on another stream of a GPU."""

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import islice

import pytest
import torch

from unimp.training import ahead
from unimp.training.ahead import in_background, on_another_stream
from unimp.training.changed_batches import changed

GPU = torch.device("cuda:0")


@pytest.mark.parametrize("workers", [0, 1, 2, 5])
def test_results_keep_the_order_of_the_jobs(workers: int) -> None:
    jobs = [lambda i=i: i for i in range(20)]
    assert list(in_background(jobs, workers=workers)) == list(range(20))
    assert list(in_background([], workers=workers)) == []


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_an_exception_in_a_job_reaches_the_consumer_in_order(workers: int) -> None:
    def fail() -> int:
        raise ZeroDivisionError("in a worker")

    results = in_background([lambda: 0, lambda: 1, fail, lambda: 3], workers=workers)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ZeroDivisionError, match="in a worker"):
        next(results)


@pytest.mark.parametrize("workers", [1, 3])
def test_no_more_than_workers_plus_one_results_wait(workers: int) -> None:
    handed_out = 0

    def jobs() -> Iterator[Callable[[], int]]:
        nonlocal handed_out
        for i in range(50):
            handed_out += 1
            yield lambda i=i: i

    for consumed, _ in enumerate(in_background(jobs(), workers=workers), start=1):
        assert handed_out <= consumed + workers


def test_the_next_batch_is_prepared_while_the_consumer_is_busy() -> None:
    second_done = threading.Event()

    def second() -> int:
        second_done.set()
        return 2

    results = in_background([lambda: 1, second, lambda: 3], workers=1)
    assert next(results) == 1
    # The consumer is busy here, and asks for nothing.
    assert second_done.wait(timeout=10)
    assert list(results) == [2, 3]


def test_two_workers_run_two_jobs_at_once() -> None:
    both = threading.Barrier(2, timeout=10)
    assert sorted(in_background([both.wait, both.wait], workers=2)) == [0, 1]


def test_a_consumer_that_stops_early_ends_all_threads_and_jobs() -> None:
    ran: list[int] = []
    results = in_background([lambda i=i: ran.append(i) for i in range(50)], workers=2)
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert len(ran) <= 4
    assert not [t for t in threading.enumerate() if t.name.startswith("batch")]


Log = list[tuple[str, str, str]]


class Event:
    """An event of a stream; the log shows when a program waits for it."""

    def __init__(self, name: str, log: Log) -> None:
        self.name, self.log = name, log

    def synchronize(self) -> None:
        self.log.append(("program", "wait", self.name))


class Stream:
    """A stream that records what is called on it; all streams share one log."""

    def __init__(self, name: str, log: Log) -> None:
        self.name, self.log, self.events = name, log, 0

    def record_event(self) -> Event:
        self.events += 1
        self.log.append((self.name, "record", f"{self.name} {self.events}"))
        return Event(f"{self.name} {self.events}", self.log)

    def wait_event(self, event: Event) -> None:
        self.log.append((self.name, "wait", event.name))

    def wait_stream(self, stream: "Stream") -> None:
        self.log.append((self.name, "wait", stream.name))


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    """Replace the streams of a GPU; return the log of what is called on them."""
    found: Log = []
    streams = {name: Stream(name, found) for name in ("training", "batches", "features")}
    now = [streams["training"]]

    @contextmanager
    def on(stream: Stream) -> Iterator[None]:
        now.append(stream)
        try:
            yield
        finally:
            now.pop()

    monkeypatch.setattr(ahead, "_stream", lambda device, purpose: streams[purpose])
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: now[-1])
    monkeypatch.setattr(torch.cuda, "stream", on)
    return found


def stream_name() -> str:
    return torch.cuda.current_stream().name  # type: ignore[attr-defined, no-any-return]


def items(count: int, log: Log) -> Iterator[int]:
    for number in range(count):
        log.append((stream_name(), "run", f"item {number}"))
        yield number


def test_items_are_computed_on_the_other_stream_one_ahead(log: Log) -> None:
    for number in on_another_stream(items(5, log), GPU, "batches"):
        log.append((stream_name(), "run", f"step {number}"))
    assert log[0] == ("batches", "wait", "training")
    assert log[-1] == ("training", "wait", "batches")
    for number in range(5):
        step = log.index(("training", "run", f"step {number}"))
        assert log.index(("training", "wait", f"batches {number + 1}")) < step
        assert log.index(("training", "record", f"training {number + 1}")) > step
        if number < 4:
            assert log.index(("batches", "run", f"item {number + 1}")) < step
        if number < 2:  # item n + 3 may reuse the memory of item n
            waited = log.index(("program", "wait", f"training {number + 1}"))
            assert waited < log.index(("batches", "run", f"item {number + 3}"))


def test_the_item_of_a_step_is_kept_until_the_step_is_done(log: Log) -> None:
    class Item:
        def __init__(self, number: int) -> None:
            self.number = number

        def __del__(self) -> None:
            log.append(("program", "free", f"item {self.number}"))

    for item in on_another_stream((Item(number) for number in range(5)), GPU, "batches"):
        del item
    for number in range(4):
        freed = log.index(("program", "free", f"item {number}"))
        done = ("program", "wait", f"training {number + 1}")
        assert log.index(done) < freed if done in log else number == 3 or freed > len(log) - 4


def test_a_stream_may_prepare_what_another_one_has_prepared(log: Log) -> None:
    inner = on_another_stream(items(3, log), GPU, "batches")
    found = list(on_another_stream(inner, GPU, "features"))
    assert found == [0, 1, 2]
    assert ("batches", "run", "item 0") in log
    # Features wait for training, and batches wait for features, so both wait for training.
    assert log[:2] == [("features", "wait", "training"), ("batches", "wait", "features")]
    assert ("features", "wait", "batches 1") in log
    assert ("training", "wait", "features 1") in log


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_a_consumer_that_stops_early_waits_for_the_other_stream(taken: int, log: Log) -> None:
    results = on_another_stream(items(9, log), GPU, "batches")
    assert list(islice(results, taken)) == list(range(taken))
    assert isinstance(results, Generator)
    results.close()
    assert sum(what == "run" for _, what, _ in log) == (taken + 1 if taken else 0)
    assert not taken or log[-1] == ("training", "wait", "batches")


def test_a_consumer_of_two_streams_that_stops_early_waits_for_both(log: Log) -> None:
    inner = on_another_stream(items(9, log), GPU, "batches")
    batches = changed(inner, 0, lambda step, item: item)  # type: ignore[arg-type, return-value]
    results = on_another_stream(batches, GPU, "features")
    next(results)
    assert isinstance(results, Generator)
    results.close()
    assert log[-2:] == [("features", "wait", "batches"), ("training", "wait", "features")]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_memory_of_a_batch_is_not_reused_before_the_step_has_read_it() -> None:
    numbers = (torch.full((1 << 22,), float(i), device="cuda") for i in range(50))
    inner = on_another_stream(numbers, GPU, "batches")
    found = []
    for batch in on_another_stream((item + 1 for item in inner), GPU, "features"):
        torch.cuda._sleep(2_000_000)  # so that the other streams are ahead
        found.append(batch.sum())
        del batch
    expected = [float(i + 1) * (1 << 22) for i in range(50)]
    assert [value.item() for value in found] == pytest.approx(expected)


def test_the_device_decides_how_batches_are_prepared(log: Log) -> None:
    assert list(ahead.ahead([lambda: 1], torch.device("cpu"), workers=1)) == [1]
    assert list(on_another_stream([1], torch.device("cpu"), "batches")) == [1]
    assert not log
    assert list(ahead.ahead([lambda: 1], GPU, workers=1)) == [1]
    assert log
