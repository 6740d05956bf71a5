"""Settings of the memory allocator of the C library, for processes that train on CPU."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # constants of glibc's malloc.h


def keep_freed_memory() -> bool:
    """Make glibc reuse freed memory instead of returning it; return False where this fails.

    Each layer allocates tensors of tens of megabytes and soon frees them. By default, glibc maps
    and unmaps each of them and the kernel clears every page again, which takes about a fifth of an
    epoch. A program calls this function at its start; a library must not decide it for others.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # not glibc
        return False
    kept = bool(mallopt(_TRIM_THRESHOLD, 2**31 - 1))
    # Some versions of glibc accept at most 32 MiB.
    return bool(mallopt(_MMAP_THRESHOLD, 2**30) or mallopt(_MMAP_THRESHOLD, 2**25)) and kept
