"""Preparing batches ahead of training: in threads, and on another stream of a GPU."""

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import islice

import pytest
import torch

from unimp.training import ahead
from unimp.training.ahead import in_background, on_another_stream

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


class Stream:
    """A stream that records what is called on it; `log` is shared by all streams."""

    def __init__(self, name: str, log: list[tuple[str, str, str]]) -> None:
        self.name, self.log, self.events = name, log, 0

    def record_event(self) -> str:
        self.events += 1
        event = f"{self.name} {self.events}"
        self.log.append((self.name, "record", event))
        return event

    def wait_event(self, event: str) -> None:
        self.log.append((self.name, "wait", event))

    def wait_stream(self, stream: "Stream") -> None:
        self.log.append((self.name, "wait", stream.name))


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, str]]:
    """Replace the streams of a GPU; return the log of what is called on them."""
    log: list[tuple[str, str, str]] = []
    side, training = Stream("side", log), Stream("training", log)
    now = [training]

    @contextmanager
    def on(stream: Stream) -> Iterator[None]:
        now.append(stream)
        yield
        now.pop()

    monkeypatch.setattr(ahead, "_side_stream", lambda device: side)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: now[-1])
    monkeypatch.setattr(torch.cuda, "stream", on)
    return log


def job(number: int, log: list[tuple[str, str, str]]) -> Callable[[], int]:
    def run() -> int:
        log.append((torch.cuda.current_stream().name, "run", f"job {number}"))  # type: ignore[attr-defined]
        return number

    return run


def test_jobs_run_on_the_other_stream_one_ahead_of_training(
    streams: list[tuple[str, str, str]],
) -> None:
    for number in on_another_stream([job(i, streams) for i in range(4)], GPU):
        assert torch.cuda.current_stream().name == "training"  # type: ignore[attr-defined]
        streams.append(("training", "run", f"step {number}"))
    assert streams[0] == ("side", "wait", "training")
    assert streams[-1] == ("training", "wait", "side")
    of_side = [what for stream, *what in streams if stream == "side"]
    of_training = [what for stream, *what in streams if stream == "training"]
    for number in range(4):
        # A step waits for its job, and a job for the step whose memory it may reuse.
        step, ran = of_training.index(["run", f"step {number}"]), ["run", f"job {number}"]
        assert of_training.index(["wait", f"side {number + 1}"]) < step
        assert of_training.index(["record", f"training {number + 1}"]) > step
        if number >= 3:
            assert of_side.index(["wait", f"training {number - 2}"]) < of_side.index(ran)
        if number < 3:
            following = streams.index(("side", "run", f"job {number + 1}"))
            assert following < streams.index(("training", "run", f"step {number}"))


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_a_consumer_that_stops_early_waits_for_the_other_stream(
    taken: int, streams: list[tuple[str, str, str]]
) -> None:
    results = on_another_stream((job(i, streams) for i in range(9)), GPU)
    assert list(islice(results, taken)) == list(range(taken))
    assert isinstance(results, Generator)
    results.close()
    assert sum(what == "run" for _, what, _ in streams) == (taken + 1 if taken else 0)
    assert not taken or streams[-1] == ("training", "wait", "side")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_batch_keeps_its_memory_until_the_step_has_read_it() -> None:
    def fill(number: int) -> torch.Tensor:
        return torch.full((1 << 22,), float(number), device="cuda")

    found = []
    for batch in on_another_stream([lambda i=i: fill(i) for i in range(50)], GPU):
        torch.cuda._sleep(2_000_000)  # so that the other stream is ahead
        found.append(batch.sum())
        del batch
    expected = [float(i) * (1 << 22) for i in range(50)]
    assert [value.item() for value in found] == pytest.approx(expected)


def test_the_device_decides_how_batches_are_prepared(
    streams: list[tuple[str, str, str]],
) -> None:
    assert list(ahead.ahead([lambda: 1], torch.device("cpu"), workers=1)) == [1]
    assert not streams
    assert list(ahead.ahead([lambda: 1], GPU, workers=1)) == [1]
    assert streams
