"""The precision of a forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from unimp.config.choices import Precision


def autocast(device: torch.device | str, precision: Precision) -> torch.autocast:
    """Where a model's forward pass runs in `precision`; its weights stay as they are.

    bf16 has the range of fp32 with 7 bits of fraction, so no loss need be scaled. What comes out
    may be bf16: make it `.float()` before a loss or a score is taken of it.
    """
    kind = torch.device(device).type
    return torch.autocast(kind, dtype=torch.bfloat16, enabled=precision == "bf16")


@contextmanager
def matmuls_in(precision: Precision) -> Iterator[None]:
    """Where a GPU that can multiplies fp32 matrices with 10 bits of fraction, if tf32 is asked."""
    matmul = torch.backends.cuda.matmul
    before, matmul.allow_tf32 = matmul.allow_tf32, precision == "tf32"
    try:
        yield
    finally:
        matmul.allow_tf32 = before
