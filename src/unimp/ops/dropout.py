"""Dropout that is quick on CPU too."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def dropout(x: Tensor, rate: float, training: bool) -> Tensor:
    """Zero each entry with probability `rate` and scale the others by 1/(1−rate).

    torch draws one random number an entry, serially on CPU, which was the costliest single step of
    an epoch. Sixteen bits decide as well (`rate` is met to 1/65536), so one 64-bit draw serves four
    entries there.
    """
    if not training or rate == 0.0:
        return x
    if not 0.0 < rate < 1.0:
        raise ValueError(f"dropout rate is {rate}; it is a probability below 1")
    if x.device.type != "cpu":
        return F.dropout(x, rate, training=True)
    count = x.numel()
    words = torch.randint(-(2**63), 2**63 - 1, ((count + 3) // 4,))
    kept = (words.view(torch.int16)[:count] >= round(rate * 2**16) - 2**15).view(x.shape)
    return torch.where(kept, x * (1.0 / (1.0 - rate)), 0.0)
