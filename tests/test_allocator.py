"""Freed memory is kept where the C library can be told so."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys

import pytest

from unimp.allocator import keep_freed_memory


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has mallopt")
def test_glibc_reuses_the_pages_of_a_freed_tensor() -> None:
    # In a process of its own: the setting lasts as long as the process.
    program = """
import resource, sys
import torch
from unimp.allocator import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
torch.ones(2**23)
before = faults()
for _ in range(10):
    torch.ones(2**23)
print(faults() - before)
"""
    counts = {
        setting: int(subprocess.check_output([sys.executable, "-c", program, setting]))
        for setting in ("keep", "default")
    }
    assert counts["keep"] < counts["default"] / 5


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert keep_freed_memory() is False
