"""One process a folder: a lock that ends with whoever holds it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from unimp.errors import RunError

NAME = ".lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder; refused, with the number of the process, where another one holds it.

    The system lets go of the lock when its process ends, however it ends, so a file that is left
    behind blocks nobody.
    """
    descriptor = _take(folder)
    if descriptor is None:
        raise RunError(
            f"{folder} is in use by {_holder(folder)}; wait for it, or choose another folder"
        )
    try:
        yield
    finally:
        with suppress(OSError):
            (folder / NAME).unlink()
        os.close(descriptor)


def in_use(folder: Path) -> bool:
    """Whether some process holds the folder now."""
    if not (folder / NAME).exists():
        return False
    descriptor = _take(folder)
    if descriptor is None:
        return True
    os.close(descriptor)
    return False


def _take(folder: Path) -> int | None:
    """An open, locked file, with our number in it; None where another process has it."""
    try:
        import fcntl
    except ImportError:  # not on Windows, where a folder is not held
        return os.open(folder / NAME, os.O_RDWR | os.O_CREAT, 0o666)
    path = folder / NAME
    while True:
        descriptor, held = os.open(path, os.O_RDWR | os.O_CREAT, 0o666), False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = True
            # Whoever held it before may have taken the file away since we opened it.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
                    return descriptor
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return None
            raise RunError(
                f"{path} cannot be locked ({error.strerror}); choose a folder on another disk"
            ) from error
        except BaseException:  # a signal may come at any moment
            if held:
                path.unlink(missing_ok=True)
            os.close(descriptor)
            raise
        os.close(descriptor)


def _holder(folder: Path) -> str:
    with suppress(OSError):
        if number := (folder / NAME).read_text(encoding="ascii", errors="replace").strip():
            return f"process {number}"
    return "another process"
