"""A cache that launches compiled Triton programs with little overhead.

At every launch, Triton inspects all arguments to find the matching compiled program. This takes
tens of microseconds, several times as long as the launch itself, and on a small graph longer than
the program runs. This cache uses only what determines the program: dtypes and alignment of the
operands, and the constants.
"""
# mypy: disable-error-code="import-untyped, no-untyped-call"

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

# Since Triton 3.4, compiled programs receive their constants with the operands.
_CAN_REUSE = (
    tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 4)
    and torch.version.hip is None  # on AMD, a program depends on more than the key below
)
_ALIGNED = 16  # bytes; Triton uses wide loads for pointers with this alignment

_known: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...]]] = {}


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    *operands: Tensor | int | None,
    num_warps: int = 4,
    **constants: Any,
) -> None:
    """Run `kernel` over `grid`; `constants` are its compile-time arguments by name.

    Programs run on the current device, which must be that of the operands.
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
    if _CAN_REUSE and hasattr(program, "packed_metadata"):  # the interpreter returns no program
        names = kernel.arg_names[len(operands) :]
        _known[key] = program, tuple(constants[name] for name in names)


def _kind(operand: Tensor | int | None) -> Any:
    if isinstance(operand, Tensor):
        return operand.dtype, operand.data_ptr() % _ALIGNED == 0
    return operand if operand is None else operand < 2**31  # int32 or int64


# Like triton.cdiv and triton.next_power_of_2, which take microseconds outside of programs.


def parts_of(count: int, size: int) -> int:
    """The number of parts of this size that cover `count`."""
    return -(-count // size)


def power_of_two(width: int) -> int:
    """The block size for a row: the next power of two, at least 4."""
    return 1 << (max(width, 4) - 1).bit_length()
