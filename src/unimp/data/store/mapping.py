"""Arrays in files, mapped into memory: pages are read when they are used, and can be dropped."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unimp.errors import TaskError

# Linux counts a private, writable mapping as memory that the process may need, and refuses one that
# is larger than the machine's memory, unless this flag is given.
_NO_RESERVE = 0x4000 if sys.platform == "linux" else 0


def map_bytes(path: Path) -> Any:
    """Map a file; changes stay in this process. torch needs writable memory."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        if size == 0:
            return bytearray()
        if sys.platform == "win32":
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        flags, protection = mmap.MAP_PRIVATE | _NO_RESERVE, mmap.PROT_READ | mmap.PROT_WRITE
        return mmap.mmap(file.fileno(), 0, flags=flags, prot=protection)


def map_array(path: Path) -> NDArray[Any]:
    """Map an `.npy` file."""
    try:
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            read_header = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }[version]
            shape, fortran, dtype = read_header(file)
            begin = file.tell()
        if fortran or dtype.hasobject:
            raise ValueError("its order or type is not supported")
        count = int(np.prod(shape, dtype=np.int64))
        return np.frombuffer(map_bytes(path), dtype, count, begin).reshape(shape)
    except (ValueError, KeyError) as error:
        raise TaskError(
            f"{path} is not a valid .npy file ({error}); build the store again"
        ) from None
