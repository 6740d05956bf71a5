"""A lock that lets one process at a time write into a run folder.

The operating system releases the lock when its process ends, however it ends, so a lock file that
is left behind does not block other processes. It marks the files beside it as those of a run that
was killed before it had a checkpoint.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from unimp.config.run_files import LOCK, STARTED, WRITTEN
from unimp.data.files import read_regular
from unimp.errors import RunError
from unimp.training.interruption import signals_held

LONGEST = 40
"""Bytes of a process id, which is all that a lock file contains."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the folder; raise RunError if another process holds the lock.

    Signals wait while the lock is taken or released: afterwards there is a complete lock or none.
    """
    refuse_foreign_lock(folder)
    lock, holder = None, holder_of(folder / LOCK)
    try:
        with signals_held():
            lock = acquire(folder / LOCK)
        if lock is None:
            raise RunError(
                f"{folder} is in use by {holder}. Wait until it ends, or choose another folder."
            )
        yield
    finally:
        with signals_held():
            if lock is not None:
                names = {path.name for path in folder.iterdir()}
                # Files of a run that was killed earlier stay, and so does the lock that marks them.
                if names & STARTED or not names.intersection(WRITTEN):
                    with suppress(OSError):  # Windows removes it when the lock is released
                        (folder / LOCK).unlink()
                lock.release()


def refuse_foreign_lock(folder: Path, name: str = LOCK) -> None:
    """Refuse a folder whose lock is a link, a pipe, or a file that another program wrote.

    Taking such a lock would write into it and remove it.
    """
    path = folder / name
    why = "has a hard link or contains something other than a process id"
    try:
        if re.fullmatch(r"\d*", _process_in(path)) and path.lstat().st_nlink == 1:
            return
    except (FileNotFoundError, PermissionError):  # Windows does not let a locked file be read
        return
    except (OSError, ValueError) as error:
        why = f"cannot be read ({getattr(error, 'strerror', error)})"
    raise RunError(
        f"{path} is not a lock that unimp wrote: it {why}. Remove it, or choose another folder."
    )


def in_use(folder: Path) -> bool:
    """Return whether some process holds the lock of the folder now."""
    if not (folder / LOCK).exists():
        return False
    refuse_foreign_lock(folder)
    lock = FileLock(folder / LOCK)
    try:
        with lock.acquire(timeout=0):
            return False
    except Timeout:
        return True


def acquire(path: Path) -> FileLock | None:
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
        flags = os.O_WRONLY | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
        with os.fdopen(os.open(path, flags), "w", encoding="ascii") as file:
            file.write(str(os.getpid()))
    return lock


def _process_in(path: Path) -> str:
    """The process id in a lock file."""
    return read_regular(path, LONGEST).decode("ascii").strip()


def holder_of(path: Path) -> str:
    """Name the process that wrote its id into a lock file."""
    with suppress(OSError, ValueError):
        if number := _process_in(path):
            return f"process {number}"
    return "another process"
