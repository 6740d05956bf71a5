"""Dropout that is also fast on CPU."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from unimp.errors import ModelError


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
    kept = (words.view(torch.int16)[:count] >= round(rate * 2**16) - 2**15).view(x.shape)
    return torch.where(kept, x * (1.0 / (1.0 - rate)), 0.0)
