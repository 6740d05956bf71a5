"""Processes that wait for one that computes, is stopped, or is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from unimp.training.started import RENDEZVOUS

pytestmark = pytest.mark.skipif(os.name == "nt", reason="gloo over files needs a POSIX system")

SCRIPT = Path(__file__).parent / "joined_process.py"
PORT = 30_000 + 4 * (os.getpid() % 1_000)


def start(
    timeout: float,
    computing: int,
    seconds: float,
    *,
    place: Path | None = None,
    method: str | None = None,
    late: float = 0.0,
) -> list[subprocess.Popen[str]]:
    """Start two processes that find each other through a file, or a port of the first process.

    method: how torch joins them before, if it does.
    late: seconds by which the last `wait` of the second process returns late.
    """
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(PORT + (3 if late else computing))}
    return [
        subprocess.Popen(
            [sys.executable, SCRIPT, str(timeout), str(computing), str(seconds)],
            env={
                **os.environ,
                **({"INIT_METHOD": method} if method else {}),
                **({RENDEZVOUS: str(place)} if place else {} if method else address),
                **{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"},
                **({"LATE": str(late)} if rank == 1 else {}),
                **{"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]


def when_started(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"


def test_a_computation_may_take_longer_than_the_time_limit(tmp_path: Path) -> None:
    for process in start(1.0, 0, 4.0, place=tmp_path / "rendezvous"):
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, out + err
        assert not err


def test_the_first_process_does_not_end_before_all_have_left_a_meeting() -> None:
    """The first process hosts the store, which the second one still reads."""
    for process in start(20.0, 0, 0.1, late=2.0):
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, out + err


@pytest.mark.parametrize("computing", [0, 1])
def test_a_process_that_is_stopped_while_it_computes_is_noticed(computing: int) -> None:
    """The first process hosts the store, which therefore does not answer if it is stopped."""
    processes = start(2.0, computing, 60.0)
    stopped, waiting = processes[computing], processes[1 - computing]
    try:
        when_started(waiting)
        when_started(stopped)
        time.sleep(0.5)  # the other process waits
        stopped.send_signal(signal.SIGSTOP)
        out, err = waiting.communicate(timeout=30)
    finally:
        stopped.kill()
        stopped.communicate()
    assert waiting.returncode == 3, err
    assert "could not share a value: another process ended or did not answer" in out
    assert not err


def test_a_killed_process_is_noticed_before_the_time_limit(tmp_path: Path) -> None:
    waiting, killed = start(600.0, 1, 60.0, place=tmp_path / "rendezvous")
    when_started(waiting)
    when_started(killed)
    killed.kill()
    out, err = waiting.communicate(timeout=30)
    assert waiting.returncode == 3, err
    assert "another process ended" in out
    killed.communicate()


@pytest.mark.parametrize("kind", ["file", "tcp"])
def test_processes_that_were_joined_before_can_train(kind: str, tmp_path: Path) -> None:
    """A script may call init_process_group before it trains."""
    method = f"file://{tmp_path}/joined" if kind == "file" else f"tcp://127.0.0.1:{PORT + 2}"
    for process in start(20.0, 0, 0.5, method=method):
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, out + err
