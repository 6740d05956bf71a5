"""Processes wait for each other as long as all of them run: here, each process is a thread."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import FileStore, HashStore

from unimp.training.heartbeat import Heartbeat

PAUSE = 0.01


def lost() -> None:
    raise RuntimeError("process 1 does not answer")


class Hearts:
    """The heartbeats of several processes that share a store."""

    def __init__(self, size: int, store_of: Callable[[], Any]) -> None:
        self.barrier = threading.Barrier(size)
        self.exchanges = 0
        self.all = [Heartbeat(self._exchange, store_of(), size, pause=PAUSE) for _ in range(size)]

    def _exchange(self) -> None:
        try:
            self.barrier.wait(10)
            self.exchanges += 1
        except threading.BrokenBarrierError:
            lost()

    def end(self) -> None:
        self.barrier.abort()
        for heartbeat in self.all:
            heartbeat.end()


@pytest.fixture(params=["hash", "file"])
def hearts(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Hearts]:
    shared = HashStore()  # it answers several calls at a time
    path = str(tmp_path / "store")
    three = Hearts(3, lambda: shared if request.param == "hash" else FileStore(path, 3))
    yield three
    three.end()


def error_of(heartbeat: Heartbeat) -> str:
    with pytest.raises(RuntimeError) as found:
        heartbeat.meet()
    return str(found.value)


def test_a_meeting_ends_when_all_processes_have_called_it(hearts: Hearts) -> None:
    *others, last = hearts.all
    for _ in range(3):
        with ThreadPoolExecutor(2) as pool:
            waiting = [pool.submit(other.meet) for other in others]
            before, until = hearts.exchanges, time.monotonic() + 10
            while hearts.exchanges < before + 30:  # far longer than one exchange
                assert time.monotonic() < until
                time.sleep(PAUSE)
            assert not any(meeting.done() for meeting in waiting)
            last.meet()
            for meeting in waiting:
                meeting.result(timeout=10)


def test_entries_of_earlier_meetings_are_deleted() -> None:
    shared = HashStore()
    two = Hearts(2, lambda: shared)

    def meet_often(heartbeat: Heartbeat) -> None:
        for _ in range(200):
            heartbeat.meet()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(meet_often, two.all))
    assert shared.num_keys() <= 2
    two.end()


def test_after_a_process_is_lost_every_meeting_fails() -> None:
    store = HashStore()
    heartbeat = Heartbeat(lost, store, 2, pause=PAUSE)
    assert "does not answer" in error_of(heartbeat)
    store.set("met/1", "1")  # the first meeting ends after it was given up
    time.sleep(0.1)
    for _ in range(3):
        assert "does not answer" in error_of(heartbeat)


def test_a_store_that_does_not_answer_does_not_hide_a_lost_process() -> None:
    """This happens if the process that hosts the store is stopped."""

    class Stuck:
        def add(self, *_: object) -> int:
            time.sleep(3600)
            return 0

    assert "does not answer" in error_of(Heartbeat(lost, Stuck(), 2, pause=PAUSE))


def test_a_store_that_is_gone_ends_the_meeting() -> None:
    class Gone:
        def add(self, *_: object) -> int:
            raise RuntimeError("the connection was closed")

    heartbeat = Heartbeat(lambda: None, Gone(), 2, pause=PAUSE)
    assert "connection was closed" in error_of(heartbeat)
    heartbeat.end()


def test_an_error_of_the_store_is_remembered() -> None:
    """The number of processes that attended a meeting is not known after such an error."""

    class FailsOnce:
        calls = 0

        def add(self, *_: object) -> int:
            self.calls += 1
            if self.calls == 1:
                raise RuntimeError("the connection was closed")
            return self.calls

        def ignore(self, *_: object) -> None:
            pass

        set = delete_key = wait = ignore

    store = FailsOnce()
    heartbeat = Heartbeat(lambda: None, store, 1, pause=PAUSE)
    for _ in range(3):
        assert "connection was closed" in error_of(heartbeat)
    assert store.calls == 1
    heartbeat.end()


@pytest.mark.parametrize("of_store", [False, True])
def test_an_error_of_another_kind_does_not_leave_a_process_waiting(of_store: bool) -> None:
    def fail(*_: object) -> int:
        raise OSError("no space left")

    class Store:
        def add(self, *_: object) -> int:
            return fail() if of_store else 1

        def wait(self, *_: object) -> None:
            time.sleep(3600)

    heartbeat = Heartbeat((lambda: None) if of_store else fail, Store(), 2, pause=PAUSE)
    with pytest.raises(OSError, match="no space left"):
        heartbeat.meet()
    heartbeat.end()


def test_a_group_that_its_owner_destroyed_ends_the_messages_silently() -> None:
    """As when a launcher destroys the group at the end; an error in a thread would be printed."""

    def destroyed() -> None:
        raise ValueError("Invalid process group specified")

    heartbeat = Heartbeat(destroyed, HashStore(), 1, pause=PAUSE)
    time.sleep(5 * PAUSE)
    heartbeat.end()


def test_no_message_is_sent_after_the_end() -> None:
    sent: list[int] = []
    heartbeat = Heartbeat(lambda: sent.append(1), HashStore(), 1, pause=PAUSE)
    heartbeat.meet()  # a single process meets itself
    heartbeat.end()
    before = len(sent)
    time.sleep(5 * PAUSE)
    assert len(sent) == before
