"""Files that are whole or absent, never half-written."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}
FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` under a temporary name beside `path`, make it durable, then rename.

    A crash at any moment leaves the old file or the new one. The folder is synced too, because
    a rename is only durable once its folder is. A failure names the file, and what to do.
    """
    path = Path(path)
    try:
        if path.is_symlink():
            path = path.resolve()  # what it leads to is written, and the link stays
        if path.exists() and not path.is_file():  # a rename would put a file in a device's place
            raise IsADirectoryError(errno.EISDIR, "it is a folder or a device, not a file")
        _write(path, data)
    except OSError as error:
        why = error.strerror or str(error)
        raise OSError(error.errno, f"cannot be written: {why}; {_fix(error)}", str(path)) from error


def _fix(error: OSError) -> str:
    if error.errno in FULL:
        return "make room there, or raise the limit on the size of files, and try again"
    if error.errno in FORBIDDEN:
        return "allow writing there, or name another place"
    return "name another place, or try again"


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files private; ours are meant to be read like any other.
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # Windows cannot open a folder, and needs no sync for a rename
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
