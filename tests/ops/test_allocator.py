"""The C library keeps freed memory if it supports this setting."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from unimp.ops.allocator import keep_freed_memory

PROGRAM = """
import ctypes, sys
import torch
from unimp.ops.allocator import keep_freed_memory

class Memory(ctypes.Structure):  # mallinfo2 of malloc.h
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
        "fordblks", "keepcost")]

if sys.argv[1] == "keep":
    assert keep_freed_memory()
mallinfo2 = ctypes.CDLL(None).mallinfo2
mallinfo2.restype = Memory
before = mallinfo2().hblkhd
tensor = torch.ones(2**22)
print(mallinfo2().hblkhd - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs glibc 2.33")
def test_glibc_allocates_large_tensors_from_reused_memory() -> None:
    # In a process of its own: the setting lasts as long as the process.
    mapped = {
        setting: int(subprocess.check_output([sys.executable, "-c", PROGRAM, setting]))
        for setting in ("keep", "default")
    }
    # By default the tensor is mapped for itself, and its pages are given back when it goes.
    assert mapped["default"] >= 4 * 2**22
    assert mapped["keep"] == 0


def test_other_c_libraries_are_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert keep_freed_memory() is False
