"""The precision of a forward pass."""

from __future__ import annotations

from typing import Literal

import torch

Precision = Literal["fp32", "bf16"]


def autocast(device: torch.device | str, precision: Precision) -> torch.autocast:
    """Where a model's forward pass runs in `precision`; its weights stay as they are.

    bf16 has the range of fp32 with 8 bits of fraction, so no loss need be scaled. What comes out
    may be bf16: make it `.float()` before a loss or a score is taken of it.
    """
    kind = torch.device(device).type
    return torch.autocast(kind, dtype=torch.bfloat16, enabled=precision == "bf16")
