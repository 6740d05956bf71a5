"""The native library of the store: store.cpp in this folder, built when the package is installed.

Like the native core of `ops/native`, it is a plain shared library without Python and torch. If it
could not be built, numpy does the same work, slower and with the same result.
"""

from __future__ import annotations

import ctypes
import logging
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unimp.errors import BackendError

FOLDER = Path(__file__).parent


def checksum() -> int:
    """The checksum of the C++ source; setup.py compiles the same number into the library."""
    return zlib.crc32((FOLDER / "store.cpp").read_bytes().replace(b"\r\n", b"\n"))


@cache
def library() -> ctypes.CDLL | None:
    """Load the shared library; None, with the reason logged once, if it cannot be used."""
    path = FOLDER / "_store.so"
    try:
        if not path.exists():
            raise BackendError("it was not built when unimp was installed")
        core = ctypes.CDLL(str(path))
        core.unimp_store_sources.restype = ctypes.c_uint32
        if core.unimp_store_sources() != checksum():
            raise BackendError("it was built from sources that differ from the installed ones")
    except (OSError, BackendError) as error:
        logging.getLogger("unimp").warning(
            "stores are built without their native library, which is slower (%s); install a C++17 "
            "compiler (such as g++) and reinstall unimp",
            error,
        )
        return None
    for name in ("insert_texts", "insert_integers", "count", "group", "sort"):
        getattr(core, f"unimp_store_{name}").restype = ctypes.c_int64
    return core


def call(name: str, *arguments: NDArray[Any] | int | None) -> int:
    """Call a function of store.cpp with pointers to arrays, and integers of 64 bits."""
    core = library()
    assert core is not None
    given = [
        ctypes.c_void_p(a.ctypes.data)
        if isinstance(a, np.ndarray)
        else ctypes.c_void_p(None)
        if a is None
        else ctypes.c_int64(a)
        for a in arguments
    ]
    return int(getattr(core, f"unimp_store_{name}")(*given))
