"""Write `.npz` files, and read them with checks that report all problems at once."""

import io
import math
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from unimp.config.input_files import open_input
from unimp.data.memory import shortage
from unimp.errors import TaskError

Array = npt.NDArray[Any]
T = TypeVar("T")


def npz_bytes(arrays: Mapping[str, Array], *, compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return an `.npz` file as bytes; equal arrays give equal bytes."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for key, array in arrays.items():
            info = zipfile.ZipInfo(f"{key}.npy", date_time=_ZIP_DATE)
            info.compress_type = compression
            with archive.open(info, "w", force_zip64=array.nbytes >= 2**31 - 2**16) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
    return stream.getvalue()


# A fixed date; numpy's own writer would store the current time.
_ZIP_DATE = (1980, 1, 1, 0, 0, 0)


def _needed_bytes(archive: zipfile.ZipFile, key: str) -> int:
    """Return the memory that an array and its copy in 64 bits need, from its header alone."""
    size = archive.getinfo(f"{key}.npy").file_size
    with archive.open(f"{key}.npy") as member:
        version = np.lib.format.read_magic(member)
        read_header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }.get(version)
        if read_header is None:
            raise ValueError(f"version {version} of the format is not supported")
        shape, _, dtype = read_header(member)
        count = math.prod(shape)
        if min(shape, default=0) < 0:
            raise ValueError(f"the shape {shape} is negative")
        if member.tell() + count * dtype.itemsize > size:
            raise ValueError(f"it has {size:,} bytes, which are too few for {dtype} {shape}")
    return count * (dtype.itemsize + 8)


def _array(archive: zipfile.ZipFile, key: str) -> Array:
    with archive.open(f"{key}.npy") as member:
        return np.lib.format.read_array(member, allow_pickle=False)


BETWEEN_NAMES = b"\xff"
"""Separates names that contain line breaks; UTF-8 never contains this byte."""


class ArrayFile:
    """The wanted arrays of a file; each check returns a valid array, or adds a problem.

    Problems are collected, so that one error reports everything that has to be fixed.
    """

    def __init__(self, path: Path, wanted: Iterable[str]) -> None:
        self.path = path
        self.problems: list[str] = []
        self.others: list[str] = []  # other arrays in the file
        self._arrays: dict[str, Array] = {}
        self._unreadable: set[str] = set()
        try:
            with open_input(path) as file, zipfile.ZipFile(file) as archive:
                self._read(archive, dict.fromkeys(wanted))
        except FileNotFoundError as error:
            raise TaskError(f"{path}: no such file. Check the path, or set UNIMP_DATA.") from error
        except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile) as error:
            raise TaskError(
                f"{path}: not an .npz file, or incomplete ({error}). Copy or download it again."
            ) from error

    def _read(self, archive: zipfile.ZipFile, wanted: dict[str, None]) -> None:
        keys = [member.removesuffix(".npy") for member in archive.namelist()]
        self.others = [key for key in keys if key not in wanted]
        present = [key for key in wanted if key in keys]
        sizes = [self._attempt(_needed_bytes, archive, key) for key in present]
        if short := shortage(sum(size or 0 for size in sizes)):
            raise TaskError(
                f"{self.path}: when unpacked, {short}. Use fewer nodes, edges or features, or a"
                " machine with more memory."
            )
        for key in present:
            if key not in self._unreadable:
                array = self._attempt(_array, archive, key)
                if array is not None:
                    self._arrays[key] = array

    def _attempt(
        self, read: Callable[[zipfile.ZipFile, str], T], archive: zipfile.ZipFile, key: str
    ) -> T | None:
        """Return the result of `read`; note a problem and return None if it cannot read."""
        try:
            return read(archive, key)
        except Exception as error:  # a damaged or malicious member can fail in any way
            self._unreadable.add(key)
            self.note(
                f"{key}: cannot be read ({error}). Write it again as an array of numbers"
                " (numpy.savez_compressed, without objects)."
            )
            return None

    def note(self, problem: str) -> None:
        """Add a problem."""
        self.problems.append(problem)

    def refusal(self) -> TaskError:
        """Return an error that lists all problems of the file."""
        count = f"{len(self.problems)} problems" if len(self.problems) > 1 else "1 problem"
        lines = [f"{self.path}: cannot be used, {count}:", *(f"  - {p}" for p in self.problems)]
        return TaskError("\n".join(lines))

    def get(self, key: str) -> Array | None:
        """Return an array as it is in the file; None if it is missing or unreadable."""
        return self._arrays.get(key)

    def has(self, key: str) -> bool:
        """Return whether the file contains this array, readable or not."""
        return key in self._arrays or key in self._unreadable

    def require(self, key: str, expected: str) -> Array | None:
        """Return an array that the file must contain."""
        if not self.has(key):
            self.note(f"{key}: missing; expected {expected}")
        return self.get(key)

    def integers(self, key: str, shape: str) -> Array | None:
        """Return an array as int64; `shape`, such as "[2, E]", sets the number of dimensions."""
        array = self.get(key)
        if array is None:
            return None
        if array.dtype.kind not in "iub" or array.ndim != shape.count(",") + 1:
            self.note(f"{key}: {array.dtype} {array.shape}; expected integers {shape}, as int32")
            return None
        if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
            self.note(
                f"{key}: contains values above 2⁶³ − 1; expected integers that fit into int64"
            )
            return None
        return array.astype(np.int64)

    def floats(self, key: str, shape: str) -> Array | None:
        """Return an array of finite numbers as float32; `shape` as for `integers`."""
        array = self.get(key)
        if array is None:
            return None
        axes = shape.count(",") + 1
        if array.dtype.kind not in "fiub" or array.ndim != axes:
            fix = "; reshape it to (n, 1)" if array.ndim == 1 and axes == 2 else ""
            self.note(f"{key}: {array.dtype} {array.shape}; expected numbers {shape}{fix}")
            return None
        if axes == 2 and array.shape[1] == 0:
            self.note(f"{key}: {array.shape} has no columns. Leave the array out.")
            return None
        # 64-bit numbers beyond the range become infinite and are refused below.
        with np.errstate(over="ignore"):
            numbers = array.astype(np.float32)
        finite = np.isfinite(numbers)
        if not finite.all():
            self.note(
                f"{key}[{_place(~finite)}] = {array[~finite][0]} is not a finite 32-bit number"
                f" ({np.count_nonzero(~finite)} such values). Replace them before saving."
            )
            return None
        return numbers

    def integer(self, key: str, low: int, high: int) -> int | None:
        """Return an array that contains one integer in low..high."""
        array = self.get(key)
        if array is None:
            return None
        if array.dtype.kind not in "iub" or array.size != 1:
            found = f"{array.dtype} {array.shape}"
        elif low <= int(array.item()) <= high:
            return int(array.item())
        else:
            found = str(array.item())
        self.note(f"{key}: {found}; expected one integer in {low}..{high}")
        return None

    def texts(self, key: str, count: int | None) -> tuple[str, ...] | None:
        """Return `count` names (None: any number) from strings, or from lines of UTF-8 as bytes."""
        array = self.get(key)
        if array is None:
            return None
        if array.dtype == np.uint8 and array.ndim == 1:
            try:
                data = array.tobytes()
                between = BETWEEN_NAMES if BETWEEN_NAMES in data else b"\n"
                names = data.split(between) if data else []
                array = np.array([name.decode() for name in names], dtype=object)
            except UnicodeDecodeError as error:
                self.note(f"{key}: not UTF-8 text ({error}). Write the names again.")
                return None
            if count in (None, len(array)):
                return tuple(array.tolist())
        if array.dtype.kind != "U" or array.ndim != 1 or count not in (None, len(array)):
            wanted = "names" if count is None else f"{count} names"
            self.note(f"{key}: {array.dtype} {array.shape}; expected {wanted} of dtype str")
            return None
        return tuple(array.tolist())

    def within(self, key: str, array: Array, low: int, high: int, fix: str) -> bool:
        """Return whether all values are in low..high; if not, add a problem with the first one."""
        wrong = (array < low) | (array > high)
        if not wrong.any():
            return True
        accepted = f"{low}..{high}" if low <= high else "the empty range"
        self.note(
            f"{key}[{_place(wrong)}] = {array[wrong][0]} is outside {accepted}"
            f" ({np.count_nonzero(wrong)} such values). {fix[0].upper()}{fix[1:]}"
        )
        return False


def _place(wrong: Array) -> str:
    """Return the index of the first True, as written between brackets."""
    return ", ".join(str(axis[0]) for axis in np.nonzero(wrong))
