"""Launching a Triton program again without asking again what it is.

Triton looks at every argument of every launch to find the compiled program that fits: tens of
microseconds, several times what the launch itself takes, and on a small graph more than the program
runs for. Here a program is found by the few things that decide it: dtypes and alignment of the
operands, and the constants.
"""
# mypy: disable-error-code="import-untyped, no-untyped-call"

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

# Compiled programs take their constants with the operands from 3.4 on.
_CAN_REUSE = (
    tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 4)
    and torch.version.hip is None  # there more decides than what is looked at below
)
_ALIGNED = 16  # bytes; what Triton makes wide loads of

_known: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...]]] = {}


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    *operands: Tensor | int | None,
    num_warps: int = 4,
    **constants: Any,
) -> None:
    """Run `kernel` over `grid`; `constants` are its compile-time arguments by name.

    Programs run on the current device, where the operands must lie.
    """
    device = torch.cuda.current_device() if _CAN_REUSE and torch.cuda.is_available() else None
    key = (id(kernel), num_warps, device, *map(_kind, operands), *constants.values())
    known = _known.get(key)
    if known is not None:
        program, values = known
        stream = torch.cuda.current_stream(device).cuda_stream
        program[grid + (1,) * (3 - len(grid))](*operands, *values, stream=stream)
        return
    program = kernel[grid](*operands, **constants, num_warps=num_warps)
    if _CAN_REUSE and hasattr(program, "packed_metadata"):  # the interpreter gives none
        names = kernel.arg_names[len(operands) :]
        _known[key] = program, tuple(constants[name] for name in names)


def _kind(operand: Tensor | int | None) -> Any:
    if isinstance(operand, Tensor):
        return operand.dtype, operand.data_ptr() % _ALIGNED == 0
    return operand if operand is None else operand < 2**31  # as wide as it must be


# As triton.cdiv and triton.next_power_of_2, which take microseconds outside of programs.


def parts_of(count: int, size: int) -> int:
    """How many parts of a size cover so many."""
    return -(-count // size)


def power_of_two(width: int) -> int:
    """The block that holds a row: a power of two, at least 4."""
    return 1 << (max(width, 4) - 1).bit_length()
