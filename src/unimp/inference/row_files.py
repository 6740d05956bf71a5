"""Rows of numbers in temporary files, for results that are larger than memory."""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unimp.data.files import temporary_folder
from unimp.data.memory import available_memory, gib
from unimp.errors import OutputError

SLICE = 1 << 26
"""Bytes of the input that `map_rows` processes at a time."""
OF_AVAILABLE = 0.8
"""The part of the available memory that is used if there is no limit."""
OF_LIMIT = 0.25
"""The part of the limit above which the result of `map_rows` is a file."""


def memory_limit(memory: int) -> int:
    """The memory to use: the limit, or if it is 0, most of what is available."""
    return memory or int(OF_AVAILABLE * available_memory("cpu"))


def check_space(needed: int, folder: Path) -> None:
    """Refuse a folder with less than `needed` bytes of free space."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise OutputError(
            f"{folder} has {gib(free)} of free space, but exact inference writes {gib(needed)} of "
            "temporary files there; free some space, or set TMPDIR to a folder on another disk"
        )


class RowFile:
    """A matrix of float32 numbers [rows, width] in a temporary file without a name.

    The file is deleted when it is closed and no tensor maps it any more, also if the process is
    killed. `path`, which several processes must give, is the name of the file until `unlink`.
    """

    def __init__(self, rows: int, width: int, folder: Path, path: Path | None = None) -> None:
        self.rows, self.width, self._path = rows, width, path
        self._mapped: Tensor | None = None
        if path is None:
            self._file: Any = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        else:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            self._file = os.fdopen(descriptor, "r+b", buffering=0)
        self._file.truncate(
            4 * rows * width
        )  # every process sets the same size, so no data is cut off

    @property
    def nbytes(self) -> int:
        return 4 * self.rows * self.width

    def unlink(self) -> None:
        """Remove the name of the file; all processes must have opened it, and all may call this."""
        if self._path is not None:
            with suppress(FileNotFoundError):
                self._path.unlink()
            self._path = None

    def write(self, begin: int, rows: Tensor) -> None:
        """Write rows from row `begin` on."""
        rows = rows.float().contiguous()
        self._file.seek(4 * begin * self.width)
        left = _bytes_of(rows)
        while left:
            left = left[self._file.write(left) :]

    def read(self, begin: int, end: int, into: Tensor | None = None) -> Tensor:
        """Read the rows begin … end to memory; into: a tensor with at least so many rows."""
        rows = torch.empty(end - begin, self.width) if into is None else into[: end - begin]
        self._file.seek(4 * begin * self.width)
        left = _bytes_of(rows)
        while left:
            count = self._file.readinto(left)
            if not count:
                raise OutputError("a temporary file of exact inference is too short")
            left = left[count:]
        return rows

    @property
    def mapped(self) -> Tensor:
        """All rows, mapped: the system reads pages when they are used and can drop them."""
        if self._mapped is None:
            pages = mmap.mmap(self._file.fileno(), self.nbytes)
            numbers = np.frombuffer(pages, np.float32)
            self._mapped = torch.from_numpy(numbers).view(self.rows, self.width)
        return self._mapped

    def close(self) -> None:
        self.unlink()
        self._mapped = None
        self._file.close()


def _bytes_of(rows: Tensor) -> memoryview:
    numbers: Any = rows.numpy()
    return memoryview(numbers).cast("B") if rows.numel() else memoryview(b"")


def map_rows(function: Callable[..., Tensor], *given: Tensor, memory: int) -> Tensor:
    """Apply a function that treats rows [n, …] independently, such as a softmax, to all rows.

    If the input is large, slices are computed one after the other. If the result is large for the
    limit `memory`, it is a tensor that is mapped from a temporary file.
    """
    count = len(given[0])
    size = 4 * given[0].numel()
    if size <= SLICE:
        return function(*given)
    step = max(1, SLICE * count // size)
    slices = [slice(begin, min(begin + step, count)) for begin in range(0, count, step)]
    width = function(*(rows[:1] for rows in given)).shape[1]
    if 4 * count * width <= OF_LIMIT * memory:
        result = given[0].new_empty(count, width)
        for part in slices:
            result[part] = function(*(rows[part] for rows in given))
        return result
    check_space(4 * count * width, temporary_folder())
    stored = RowFile(count, width, temporary_folder())
    return _filled(stored, function, given, slices)


def _filled(
    stored: RowFile,
    function: Callable[..., Tensor],
    given: Sequence[Tensor],
    slices: Sequence[slice],
) -> Tensor:
    try:
        for part in slices:
            stored.write(part.start, function(*(rows[part] for rows in given)))
        return stored.mapped
    finally:
        stored.close()
