"""Opening the files that a user names, so that no pipe or device can block a command."""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path

READING = os.O_RDONLY | sum(
    getattr(os, flag, 0) for flag in ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY")
)
MOST_BYTES = 16 << 20
"""The largest size of a recipe."""


def open_input(path: Path, flags: int = 0) -> io.BufferedReader:
    """Open a regular file, also behind a link; raise OSError at once for a pipe or a device."""
    descriptor = os.open(path, READING | flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_opened(file: io.BufferedReader, path: Path, most: int) -> bytes:
    """Read an open regular file of at most `most` bytes; raise OSError if it is larger."""
    size = os.fstat(file.fileno()).st_size
    if size > most:
        raise OSError(
            errno.EFBIG, f"it has {size:,} bytes, more than the {most:,} expected", str(path)
        )
    return file.read(most)
