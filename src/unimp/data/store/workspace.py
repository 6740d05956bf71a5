"""The files of a build: what is finished, so that a killed build resumes, and arrays in parts."""

from __future__ import annotations

import io
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import DTypeLike, NDArray

from unimp.data.files import sync_folder, write_atomically
from unimp.errors import OutputError

PROGRESS = "progress.json"
_RECORDED_EVERY = 1.0  # seconds
LOCK = ".building.lock"


class Workspace:
    """The folder of a build with the facts of every finished unit of work.

    A unit is recorded after its files are durable. `key` identifies the input and the options: a
    folder with another key is started again.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(folder.parent / LOCK)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise OutputError(f"another process builds {folder.parent}; wait for its end") from None
        self._guard = threading.Lock()
        self._units: dict[str, Any] = {}
        self._waiting: list[Callable[[], None]] = []
        self._unneeded: list[Path] = []
        self._saved = time.monotonic()
        path = folder / PROGRESS
        if path.exists():
            stored = json.loads(path.read_text())
            self._units = stored["units"] if stored["key"] == key else {}
        if not self._units:
            shutil.rmtree(folder)
            folder.mkdir()
        self.key = key
        self.resumed = bool(self._units)

    def __getitem__(self, unit: str) -> Any:
        return self._units[unit]

    def get(self, unit: str, default: Any) -> Any:
        return self._units.get(unit, default)

    def __contains__(self, unit: str) -> bool:
        return unit in self._units

    def record(
        self,
        unit: str,
        facts: Any = True,
        *,
        after: Callable[[], None] | None = None,
        unneeded: Iterable[Path] = (),
    ) -> None:
        """Record that a unit is finished; `after` makes its files durable, then others are removed.

        A unit with files is recorded at most once per second, because this waits for the disk. A
        unit without files ends a step and is recorded at once.
        """
        with self._guard:
            self._units[unit] = facts
            self._unneeded += unneeded
            if after is not None:
                self._waiting.append(after)
            if after is None or time.monotonic() - self._saved > _RECORDED_EVERY:
                for make_durable in self._waiting:
                    make_durable()
                self._waiting.clear()
                text = json.dumps({"key": self.key, "units": self._units})
                write_atomically(self.folder / PROGRESS, text.encode())
                for path in self._unneeded:
                    path.unlink(missing_ok=True)
                self._unneeded.clear()
                self._saved = time.monotonic()

    def path(self, name: str) -> Path:
        return self.folder / name

    def write(self, name: str, data: Any) -> None:
        """Write a file of this folder, complete or not at all."""
        temporary = self.path(f"{name}.part")
        temporary.write_bytes(data)
        temporary.replace(self.path(name))

    def release(self) -> None:
        """Let another process use the folder."""
        self._lock.release()

    def remove(self) -> None:
        """Remove the folder after the store is complete."""
        shutil.rmtree(self.folder)


def sync(path: Path) -> None:
    """Make the content of a file durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class ArrayFile:
    """An array on disk that is written in parts, in any order, and published when it is complete.

    The length of the first axis may be unknown until the end.
    """

    def __init__(self, path: Path, dtype: DTypeLike, width: tuple[int, ...] = ()) -> None:
        self.path, self.dtype, self.width = path, np.dtype(dtype), width
        self.row_bytes = self.dtype.itemsize * int(np.prod(width, dtype=np.int64))
        self._begin = len(self._header(0))
        path.touch()
        self._file = path.open("r+b", buffering=0)
        self._guard = threading.Lock()

    def _header(self, rows: int) -> bytes:
        buffer = io.BytesIO()
        about = {"descr": self.dtype.str, "fortran_order": False, "shape": (rows, *self.width)}
        np.lib.format.write_array_header_1_0(buffer, about)  # its length does not depend on rows
        return buffer.getvalue()

    def write(self, first: int, rows: NDArray[Any]) -> None:
        """Write rows at a position; another thread may write other rows."""
        data = np.ascontiguousarray(rows, dtype=self.dtype).data.cast("B")
        place = self._begin + first * self.row_bytes
        with self._guard:
            self._file.seek(place)
            while len(data):
                data = data[self._file.write(data) :]

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def publish(self, rows: int, target: Path) -> None:
        """Write the header, and give the complete file its name."""
        self._file.seek(0)
        self._file.write(self._header(rows))
        self._file.truncate(self._begin + rows * self.row_bytes)
        self.sync()
        self.close()
        self.path.replace(target)
        sync_folder(target.parent)


def key_of(values: Mapping[str, Any]) -> str:
    """Text that identifies the input and the options of a build."""
    return json.dumps(values, sort_keys=True)
