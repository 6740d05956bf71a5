"""The lock of a run folder: one process at a time, and nothing is left behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from unimp.errors import RunError
from unimp.runs.folder.lock import in_use, locked

HOLD = """
import sys, pathlib
from unimp.runs.folder.lock import locked
with locked(pathlib.Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has locked the folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


def test_a_second_process_is_refused_with_the_id_of_the_first(
    holder: subprocess.Popen[str], tmp_path: Path
) -> None:
    assert in_use(tmp_path)
    for _ in range(2):  # a refused attempt does not change the lock
        with pytest.raises(RunError, match=f"process {holder.pid}") as refused, locked(tmp_path):
            pass
        assert str(tmp_path) in str(refused.value)


def test_the_lock_of_a_killed_process_blocks_nobody(
    holder: subprocess.Popen[str], tmp_path: Path
) -> None:
    holder.kill()
    holder.wait()
    assert (tmp_path / ".lock").exists()
    assert not in_use(tmp_path)
    with locked(tmp_path):
        assert (tmp_path / ".lock").read_text() == str(os.getpid())
        assert in_use(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_cannot_be_locked_twice_by_one_process(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(RunError, match="in use"), locked(tmp_path):
        pass
    assert not in_use(tmp_path)


def test_an_error_inside_the_block_releases_the_lock(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(tmp_path):
        _ = 1 / 0
    assert list(tmp_path.iterdir()) == []
    assert not in_use(tmp_path)


@pytest.mark.parametrize("step", ["acquire", "release"])
def test_a_signal_while_the_lock_is_taken_or_released_leaves_no_lock(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, sent = getattr(FileLock, step), 0

    def interrupted(self: FileLock, *arguments: object, **options: object) -> object:
        nonlocal sent
        if sent == 0:
            sent += 1
            signal.raise_signal(signal.SIGINT)
        return original(self, *arguments, **options)

    monkeypatch.setattr(FileLock, step, interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), locked(tmp_path):
            assert step == "release"
    finally:
        signal.signal(signal.SIGINT, before)
    assert sent == 1
    assert list(tmp_path.iterdir()) == []
    with locked(tmp_path):
        pass


def test_a_folder_that_cannot_hold_a_lock_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".lock").mkdir()
    with pytest.raises(RunError, match=r"\.lock is not a lock.*a folder"), locked(tmp_path):
        pass
