"""`.npz` files: arrays out, and arrays in with everything found wrong with them."""

import io
import lzma
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unimp.errors import TaskError

Array = npt.NDArray[Any]

# What a damaged or hostile member can raise: a wrong header, checksum, size or compression; a shape
# too large to hold; an object array.
_UNREADABLE = (
    *(ValueError, TypeError, KeyError, OverflowError, MemoryError, EOFError, OSError),
    *(RuntimeError, SyntaxError, tokenize.TokenError),
    *(zlib.error, lzma.LZMAError, zipfile.BadZipFile),
)


def npz_bytes(arrays: Mapping[str, Array], *, compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    """An `.npz` file as bytes; the same arrays give the same ones."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for key, array in arrays.items():
            info = zipfile.ZipInfo(f"{key}.npy", date_time=_ZIP_DATE)
            info.compress_type = compression
            with archive.open(info, "w", force_zip64=array.nbytes >= 2**31 - 2**16) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
    return stream.getvalue()


# A fixed date, as numpy's own writer would put the hour into the file.
_ZIP_DATE = (1980, 1, 1, 0, 0, 0)


class ArrayFile:
    """The wanted arrays of a file; each check returns what passed, or notes a problem.

    Problems gather, so that one error tells a file's author all there is to mend.
    """

    def __init__(self, path: Path, wanted: Iterable[str]) -> None:
        self.path = path
        self.problems: list[str] = []
        self.others: list[str] = []  # arrays in the file that nobody asked for
        self._arrays: dict[str, Array] = {}
        self._unreadable: set[str] = set()
        try:
            with zipfile.ZipFile(path) as archive:
                self._read(archive, dict.fromkeys(wanted))
        except FileNotFoundError as error:
            raise TaskError(f"{path}: no such file; check the path, or set UNIMP_DATA") from error
        except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile) as error:
            raise TaskError(
                f"{path}: not an .npz file, or cut short ({error}); copy or download it again"
            ) from error

    def _read(self, archive: zipfile.ZipFile, wanted: dict[str, None]) -> None:
        keys = [member.removesuffix(".npy") for member in archive.namelist()]
        self.others = [key for key in keys if key not in wanted]
        for key in wanted:
            if key not in keys:
                continue
            try:
                with archive.open(f"{key}.npy") as member:
                    self._arrays[key] = np.lib.format.read_array(member, allow_pickle=False)
            except _UNREADABLE as error:
                self._unreadable.add(key)
                self.note(
                    f"{key}: cannot be read ({error}); write it again as a plain array of numbers"
                    " (numpy.savez_compressed, no objects)"
                )

    def note(self, problem: str) -> None:
        """Remember one more thing that is wrong with the file."""
        self.problems.append(problem)

    def refusal(self) -> TaskError:
        """The error that names all problems of the file."""
        count = f"{len(self.problems)} problems" if len(self.problems) > 1 else "1 problem"
        lines = [f"{self.path}: cannot be used, {count}:", *(f"  - {p}" for p in self.problems)]
        return TaskError("\n".join(lines))

    def get(self, key: str) -> Array | None:
        """An array as it stands in the file, None where it is absent or unreadable."""
        return self._arrays.get(key)

    def has(self, key: str) -> bool:
        """Whether the file names this array, readable or not."""
        return key in self._arrays or key in self._unreadable

    def require(self, key: str, expected: str) -> Array | None:
        """An array that the file must have."""
        if not self.has(key):
            self.note(f"{key}: absent; expected {expected}")
        return self.get(key)

    def integers(self, key: str, shape: str) -> Array | None:
        """An array as int64; `shape` is written like "[2, E]" and sets the number of axes."""
        array = self.get(key)
        if array is None:
            return None
        if array.dtype.kind not in "iub" or array.ndim != shape.count(",") + 1:
            self.note(f"{key}: {array.dtype} {array.shape}; expected integers {shape}, as int32")
            return None
        if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
            self.note(f"{key}: values of 2⁶³ and over; expected integers that fit int64")
            return None
        return array.astype(np.int64)

    def floats(self, key: str, shape: str) -> Array | None:
        """An array of finite numbers as float32; `shape` as for `integers`."""
        array = self.get(key)
        if array is None:
            return None
        axes = shape.count(",") + 1
        if array.dtype.kind not in "fiub" or array.ndim != axes:
            fix = "; reshape it to (n, 1)" if array.ndim == 1 and axes == 2 else ""
            self.note(f"{key}: {array.dtype} {array.shape}; expected numbers {shape}{fix}")
            return None
        if axes == 2 and array.shape[1] == 0:
            self.note(f"{key}: {array.shape}, no columns; leave the array out")
            return None
        # 64-bit numbers beyond the range become infinite, and are refused as such below.
        with np.errstate(over="ignore"):
            numbers = array.astype(np.float32)
        finite = np.isfinite(numbers)
        if not finite.all():
            self.note(
                f"{key}[{_place(~finite)}] = {array[~finite][0]} is no finite 32-bit number"
                f" ({np.count_nonzero(~finite)} such values); fill or drop them before saving"
            )
            return None
        return numbers

    def integer(self, key: str, low: int, high: int) -> int | None:
        """An array that is one integer in low..high."""
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
        """An array of `count` names, or lines of UTF-8 as bytes; with None any count will do."""
        array = self.get(key)
        if array is None:
            return None
        if array.dtype == np.uint8 and array.ndim == 1:
            try:
                array = np.array(array.tobytes().decode().split("\n"), dtype=object)
            except UnicodeDecodeError as error:
                self.note(f"{key}: not UTF-8 text ({error}); write the names again")
                return None
            if count in (None, len(array)):
                return tuple(array.tolist())
        if array.dtype.kind != "U" or array.ndim != 1 or count not in (None, len(array)):
            wanted = "names" if count is None else f"{count} names"
            self.note(f"{key}: {array.dtype} {array.shape}; expected {wanted} of dtype str")
            return None
        return tuple(array.tolist())

    def within(self, key: str, array: Array, low: int, high: int, fix: str) -> bool:
        """Whether all values lie in low..high; if not, notes the first that does not."""
        wrong = (array < low) | (array > high)
        if not wrong.any():
            return True
        accepted = f"{low}..{high}" if low <= high else "what is there: nothing"
        self.note(
            f"{key}[{_place(wrong)}] = {array[wrong][0]} is outside {accepted}"
            f" ({np.count_nonzero(wrong)} such values); {fix}"
        )
        return False


def _place(wrong: Array) -> str:
    """The place of the first True, as written between brackets."""
    return ", ".join(str(axis[0]) for axis in np.nonzero(wrong))
