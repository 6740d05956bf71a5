"""The precision of a forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from unimp.config.choices import Precision


def autocast(device: torch.device | str, precision: Precision) -> torch.autocast:
    """Return a context in which forward passes run in `precision`; weights do not change.

    bf16 has the range of fp32 and 7 bits of fraction, so the loss needs no scaling. Outputs may be
    bf16: call `.float()` before computing a loss or a score.
    """
    kind = torch.device(device).type
    return torch.autocast(kind, dtype=torch.bfloat16, enabled=precision == "bf16")


@contextmanager
def matmuls_in(precision: Precision) -> Iterator[None]:
    """Multiply fp32 matrices with 10 bits of fraction on GPUs that can, if `precision` is tf32."""
    matmul = torch.backends.cuda.matmul
    before, matmul.allow_tf32 = matmul.allow_tf32, precision == "tf32"
    try:
        yield
    finally:
        matmul.allow_tf32 = before
