"""Processes agree on a name for their attempt: here, each process is a thread."""

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import HashStore

from unimp.training.rendezvous import Rendezvous, agreed_name
from unimp.training.started import RENDEZVOUS

LIMIT = timedelta(seconds=20)


def names_of_attempt(store: HashStore, size: int) -> list[str]:
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: agreed_name(store, rank, size, LIMIT), range(size)))


def test_every_attempt_has_a_different_name() -> None:
    store = HashStore()
    names = [names_of_attempt(store, 3) for _ in range(4)]
    assert all(len(set(of_attempt)) == 1 for of_attempt in names)
    assert len({of_attempt[0] for of_attempt in names}) == 4


def test_a_process_that_starts_first_waits_for_the_others_of_its_attempt() -> None:
    """The store still contains the name of an attempt that has ended, and an answer to it."""
    store = HashStore()
    (old, _) = names_of_attempt(store, 2)
    with ThreadPoolExecutor(2) as pool:
        second = pool.submit(agreed_name, store, 1, 2, LIMIT)
        with pytest.raises(TimeoutError):
            second.result(timeout=0.5)
        first = pool.submit(agreed_name, store, 0, 2, LIMIT)
        assert first.result() == second.result() != old


def test_processes_that_replace_killed_ones_find_the_first_process() -> None:
    """Process 1 answered. It and process 2, on one machine, were killed before 2 answered."""
    store = HashStore()
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(agreed_name, store, 0, 3, LIMIT)
        while not store.check(["first"]):
            time.sleep(0.01)
        store.set(f"{store.get('first').decode()}/1", "killed")
        second = pool.submit(agreed_name, store, 2, 3, LIMIT)
        time.sleep(0.5)  # the first process may read both answers now
        assert not first.done()
        again = pool.submit(agreed_name, store, 1, 3, LIMIT)
        assert first.result() == second.result() == again.result()


def test_a_process_ends_with_an_error_if_the_others_do_not_start() -> None:
    store = HashStore()
    names_of_attempt(store, 2)
    for rank in (0, 1):
        with pytest.raises(RuntimeError):
            agreed_name(store, rank, 2, timedelta(seconds=0.5))


def test_a_process_ends_with_an_error_if_the_first_one_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RENDEZVOUS, str(tmp_path / "store"))
    started = time.monotonic()
    with pytest.raises(RuntimeError):
        Rendezvous(1, 2, timedelta(seconds=1))
    assert time.monotonic() - started < 60
