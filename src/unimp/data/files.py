"""Reading and writing files safely: complete or absent, never through a link or a pipe."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unimp.config.input_files import open_input, read_opened

FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}
FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}


def open_regular(path: Path) -> io.BufferedReader:
    """Open a regular file; raise OSError at once for a link, a pipe, a device or a folder."""
    if special := special_kind(path):
        raise OSError(errno.EINVAL, f"it is {special}, not a regular file", str(path))
    return open_input(path, getattr(os, "O_NOFOLLOW", 0))  # it may be replaced after the check


def read_regular(path: Path, most: int) -> bytes:
    """Read a regular file of at most `most` bytes; raise OSError for anything else."""
    with open_regular(path) as file:
        return read_opened(file, path, most)


def special_kind(path: Path) -> str:
    """Name what is at a path; empty if it is a regular file or if nothing is there."""
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return ""
    kinds = {stat.S_IFREG: "", stat.S_IFLNK: "a link", stat.S_IFDIR: "a folder"}
    return kinds.get(stat.S_IFMT(mode), "a pipe or a device")


def digest_of(values: Mapping[str, Any]) -> str:
    """The SHA-256 of values as JSON, independent of the order of keys; `digest` is left out."""
    rest = {key: value for key, value in values.items() if key != "digest"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` under a temporary name beside `path`, make it durable, then rename.

    After a crash at any moment, the path has the old file or the new one. The folder is synced
    too, because a rename is durable only when its folder is. A link, a folder or a device is not
    replaced. An OSError names the file and a fix.
    """
    path = Path(path)
    try:
        if special := special_kind(path):
            raise IsADirectoryError(errno.EISDIR, f"it is {special}, not a file")
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
    sync_folder(path.parent)


def temporary_folder() -> Path:
    """The folder for temporary files: TMPDIR, or /var/tmp, because /tmp is often in memory."""
    if not os.environ.get("TMPDIR") and Path("/var/tmp").is_dir():
        return Path("/var/tmp")
    return Path(tempfile.gettempdir())


def sync_folder(folder: Path) -> None:
    """Make the names of the files in a folder durable."""
    if os.name == "nt":  # Windows cannot open a folder, and does not need this
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
