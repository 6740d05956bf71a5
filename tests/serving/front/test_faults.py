"""Killed and stopped processes and a full disk: short forms of the proofs of the whole service."""

import importlib
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from live_server import Server

from unimp.serving.front import service

PROOFS = Path(__file__).parents[3] / "proofs"
NODES = 60
pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")


@pytest.fixture
def proof(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """A function that imports a module of the folder proofs/."""
    monkeypatch.syspath_prepend(PROOFS)
    return importlib.import_module


def test_no_label_is_lost_or_doubled_when_processes_are_killed(
    proof: Callable[[str], ModuleType], copied: Callable[[], Path]
) -> None:
    """The short form of proofs/serve_kills.py."""
    kills = proof("serve_kills")
    found = kills.prove(2, 0, copied(), NODES)
    assert found["by_process"] == {"front": 1, "engine": 1}
    assert found["acknowledged"] > 20
    assert kills.failures(found) == 0, found


def test_a_stopped_engine_delays_only_exact_answers(
    proof: Callable[[str], ModuleType], server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The short form of proofs/serve_stopped.py."""
    stopped, engine = proof("serve_stopped"), server.service.engine.pid
    monkeypatch.setattr(service, "PULL", 0.3)
    port = int(server.address.rpartition(":")[2])
    try:
        found = stopped.stop_engine(port, engine, 1.0, NODES)
    finally:
        proof("live_service").send_signal(engine, signal.SIGCONT)
    assert found["events_while_stopped"] > 3
    assert stopped.failures(found) == []


def test_the_promise_holds_when_processes_end_and_the_disk_is_full(
    proof: Callable[[str], ModuleType], copied: Callable[[], Path]
) -> None:
    """The short form of proofs/serve_histories.py."""
    folder, histories, promise = copied(), proof("serve_histories"), proof("promise")
    cold = histories.cold_predictions(folder)
    history, found = histories.record(folder, "2", pauses=(0.3, 0.5), faults=("stop", "disk"))
    assert found["problems"] == []
    assert found["full_disks"] == 1
    assert promise.check_history(history) == []
    rows, violations = promise.check_predictions(history, cold)
    assert rows > 50
    assert violations == []


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_without_space_the_service_stops_acknowledging_and_continues_to_read(
    proof: Callable[[str], ModuleType], copied: Callable[[], Path], tmp_path: Path
) -> None:
    """The short form of proofs/serve_disk.py."""
    disk = proof("serve_disk")
    library = disk.build_library(tmp_path)
    counts, problems = disk.run_round(copied(), library, "space", tmp_path, "1", NODES)
    assert problems == []
    assert (counts["lost"], counts["doubled"], counts["gaps"], counts["late"]) == (0, 0, 0, 0)
    assert counts["acknowledged"] >= 10
    assert counts["reads"] > 5
