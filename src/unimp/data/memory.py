"""The memory that is available, and the memory that this process uses."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path


def available_memory(device: str) -> int:
    """Bytes that this process can still allocate, on a GPU or in main memory and its cgroup."""
    if device.startswith("cuda"):
        import torch  # here, because commands that read only tables do not need it

        # torch caches freed memory, which it can use again.
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + cached
    found = [_free_of_machine(), *_free_of_cgroups()]
    return min(bytes_ for bytes_ in found if bytes_ is not None)


def shortage(needed: int) -> str:
    """Explain that `needed` bytes do not fit into the free main memory; empty if they fit."""
    free = available_memory("cpu")
    if needed <= free:
        return ""
    return f"it needs at least {gib(needed)} of memory, but only {gib(free)} are free"


def gib(number: float) -> str:
    """A number of bytes in GiB."""
    return f"{number / 2**30:.1f} GiB"


def resident_memory() -> int:
    """Bytes that this process uses in main memory now; 0 if the system does not report it."""
    with suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return peak_memory()


def anonymous_memory() -> int:
    """Bytes of main memory that the system cannot drop, without pages of mapped files."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * next(int(s.split()[1]) for s in lines if s.startswith("RssAnon"))
    return resident_memory()


def peak_memory() -> int:
    """The largest number of bytes that this process has used in main memory."""
    try:
        import resource
    except ImportError:  # Windows has no such module
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # bytes on macOS, KiB elsewhere


def _free_of_machine() -> int:
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * next(int(s.split()[1]) for s in lines if s.startswith("MemAvailable"))
    with suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 2**63


def _free_of_cgroups() -> list[int]:
    """Free bytes within the limits of cgroups, version 2 or 1; empty without limits."""
    free, root = [], Path("/sys/fs/cgroup")
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        with suppress(OSError, ValueError):  # "max" means that there is no limit
            free.append(int((root / limit).read_text()) - int((root / used).read_text()))
    return free
