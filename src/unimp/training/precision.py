"""The precision of training and inference."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from unimp.config.choices import Precision
from unimp.ops import native


def choose_precision(precision: Precision, device: torch.device | str) -> Precision:
    """The precision in which a device computes: auto is resolved.

    bf16 becomes fp32 on a CPU without instructions for it, where it would be many times slower.
    """
    if torch.device(device).type == "cpu":
        if precision in ("auto", "auto-cpu", "bf16"):
            return "bf16" if native.multiplies_bf16() else "fp32"
    elif precision == "auto-cpu":
        return "fp32"
    elif precision == "auto":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    return precision


def explain_choice(precision: Precision, device: torch.device | str) -> str | None:
    """One line about the precision that `choose_precision` chose; None if it is the one given, or
    if auto-cpu chose fp32."""
    chosen = choose_precision(precision, device)
    if chosen == precision or (precision == "auto-cpu" and chosen == "fp32"):
        return None
    kind = "CPU" if torch.device(device).type == "cpu" else "GPU"
    has = "has" if chosen == "bf16" else "does not have"
    return (
        f"this {kind} {has} instructions for bf16 (16-bit numbers), so training computes in "
        f"{chosen} (train.precision={precision})"
    )


def inference_precision(precision: Precision, device: torch.device | str) -> Precision:
    """The precision in which a run trained in `precision` predicts: on CPU, always fp32."""
    return "fp32" if torch.device(device).type == "cpu" else choose_precision(precision, device)


def autocast(device: torch.device | str, precision: Precision) -> torch.autocast:
    """Return a context in which forward passes run in `precision`; weights do not change.

    bf16 has the range of fp32 and 7 bits of fraction, so the loss needs no scaling. Outputs may be
    bf16: call `.float()` before computing a loss or a score.
    """
    kind, is_bf16 = torch.device(device).type, choose_precision(precision, device) == "bf16"
    return torch.autocast(kind, dtype=torch.bfloat16, enabled=is_bf16)


@contextmanager
def matmuls_in(precision: Precision) -> Iterator[None]:
    """Multiply fp32 matrices with 10 bits of fraction on GPUs that can, if `precision` is tf32."""
    matmul = torch.backends.cuda.matmul
    before, matmul.allow_tf32 = matmul.allow_tf32, precision == "tf32"
    try:
        yield
    finally:
        matmul.allow_tf32 = before
