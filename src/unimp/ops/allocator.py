"""How the C library hands out memory, for processes that train on CPU."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's names for the two settings, in malloc.h


def keep_freed_memory() -> bool:
    """Tell glibc to reuse freed memory rather than give it back; False where that cannot be said.

    Each layer allocates tensors of tens of megabytes and frees them at once. By default glibc maps
    and unmaps every one, and the kernel clears each page anew: about a fifth of an epoch. A program
    calls this for itself at its start; a library must not decide it for others.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # not glibc
        return False
    kept = bool(mallopt(_TRIM_THRESHOLD, 2**31 - 1))
    # Some versions refuse more than 32 MiB.
    return bool(mallopt(_MMAP_THRESHOLD, 2**30) or mallopt(_MMAP_THRESHOLD, 2**25)) and kept
