"""Random numbers as hashes of counters (splitmix64), the same on every device.

The numbers are unsigned 64-bit integers, which torch computes as signed ones.
"""

from __future__ import annotations

from torch import Tensor


def hashed(counter: Tensor) -> Tensor:
    """A random 64-bit number per counter: int64 → int64."""
    z = counter + signed(0x9E3779B97F4A7C15)
    z = (z ^ shifted(z, 30)) * signed(0xBF58476D1CE4E5B9)
    z = (z ^ shifted(z, 27)) * signed(0x94D049BB133111EB)
    return z ^ shifted(z, 31)


def shifted(z: Tensor, by: int) -> Tensor:
    """Shift z to the right as an unsigned integer."""
    return (z >> by) & ((1 << (64 - by)) - 1)


def signed(number: int) -> int:
    """The signed 64-bit integer with the bits of an unsigned one."""
    number %= 2**64
    return number - 2**64 if number >= 2**63 else number
