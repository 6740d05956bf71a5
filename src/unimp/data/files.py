"""Atomic writing: a file is complete or absent, never half-written."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}
FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` under a temporary name beside `path`, make it durable, then rename.

    After a crash at any moment, the path has the old file or the new one. The folder is synced
    too, because a rename is durable only when its folder is. An OSError names the file and a fix.
    """
    path = Path(path)
    try:
        if path.is_symlink():
            path = path.resolve()  # write the file behind the link and keep the link
        if path.exists() and not path.is_file():  # a rename would replace a device by a file
            raise IsADirectoryError(errno.EISDIR, "it is a folder or a device, not a file")
        _write(path, data)
    except OSError as error:
        why = error.strerror or str(error)
        raise OSError(error.errno, f"cannot be written: {why}. {_fix(error)}", str(path)) from error


def _fix(error: OSError) -> str:
    if error.errno in FULL:
        return "Free some space, or raise the limit on file sizes, and try again."
    if error.errno in FORBIDDEN:
        return "Allow writing there, or choose another path."
    return "Choose another path, or try again."


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp creates private files; use the usual permissions instead.
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # Windows cannot open a folder, and does not need this
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
