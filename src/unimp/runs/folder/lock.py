"""A lock that lets one process at a time write into a run folder.

The operating system releases the lock when its process ends, however it ends, so a lock file that
is left behind does not block other processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from unimp.errors import RunError
from unimp.runs.folder.names import LOCK
from unimp.training.interruption import signals_held


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the folder; raise RunError if another process holds the lock.

    Signals wait while the lock is taken or released: afterwards there is a complete lock or none.
    """
    lock, holder = None, _holder(folder / LOCK)
    try:
        with signals_held():
            lock = _acquire(folder / LOCK)
        if lock is None:
            raise RunError(
                f"{folder} is in use by {holder}. Wait until it ends, or choose another folder."
            )
        yield
    finally:
        with signals_held():
            if lock is not None:
                with suppress(OSError):  # Windows removes it when the lock is released
                    (folder / LOCK).unlink()
                lock.release()


def in_use(folder: Path) -> bool:
    """Return whether some process holds the lock of the folder now."""
    if not (folder / LOCK).exists():
        return False
    lock = FileLock(folder / LOCK)
    try:
        with lock.acquire(timeout=0):
            return False
    except Timeout:
        return True


def _acquire(path: Path) -> FileLock | None:
    """Take the lock and store the process id in its file; None if another process holds it."""
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
        while not path.exists():  # its last holder removed the file after we had opened it
            lock.release()
            lock.acquire(timeout=0)
    except Timeout:
        return None
    except OSError as error:
        raise RunError(
            f"{path} cannot be locked ({error.strerror}). Choose a folder on another disk."
        ) from error
    with suppress(OSError):  # Windows does not let a locked file be written through another handle
        path.write_text(str(os.getpid()), encoding="ascii")
    return lock


def _holder(path: Path) -> str:
    with suppress(OSError):
        if number := path.read_text(encoding="ascii", errors="replace").strip():
            return f"process {number}"
    return "another process"
