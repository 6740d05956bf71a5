"""Dropout that is also fast on CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from unimp.errors import ModelError
from unimp.ops import native


def dropout(x: Tensor, rate: float, training: bool) -> Tensor:
    """Zero each entry with probability `rate` and scale the others by 1/(1−rate).

    On CPU, torch draws one random number per entry in one thread, which was the slowest step of an
    epoch. Sixteen bits are enough (`rate` is exact to 1/65536), so one 64-bit number decides for
    four entries there.
    """
    if not training or rate == 0.0:
        return x
    if not 0.0 < rate < 1.0:
        raise ModelError(f"the dropout rate must be at least 0 and less than 1, not {rate}")
    if x.device.type != "cpu":
        return F.dropout(x, rate, training=True)
    count = x.numel()
    words = torch.randint(-(2**63), 2**63 - 1, ((count + 3) // 4,))
    draws, least = words.view(torch.int16)[:count], round(rate * 2**16) - 2**15
    if not torch.compiler.is_compiling() and x.dtype in native.DTYPES and native.available():
        dropped: Tensor = _Dropout.apply(x, draws, least, 1.0 / (1.0 - rate))  # type: ignore[no-untyped-call]
        return dropped
    return torch.where((draws >= least).view(x.shape), x * (1.0 / (1.0 - rate)), 0.0)


class _Dropout(torch.autograd.Function):
    """Dropout by the native core; both passes compute the same function of x or its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, draws: Tensor, least: int, factor: float) -> Tensor:
        ctx.save_for_backward(draws)
        ctx.least, ctx.factor = least, factor
        return native.dropout(x, draws, least, factor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        (draws,) = ctx.saved_tensors
        return native.dropout(grads[0], draws, ctx.least, ctx.factor), None, None, None
