"""The mean of scores over runs, as a number and as text; this module does not import torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

FEW_NODES = 30
"""With fewer nodes, a score or a calibration temperature is not reliable."""


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the unbiased standard deviation, which is NaN for one value."""
    mean = sum(values) / len(values)
    if len(values) == 1:
        return mean, math.nan
    return mean, math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))


def mean_text(values: Sequence[float], *, percent: bool = True) -> str:
    """Return the mean in percent, or with four decimals, ± the deviation of several values.

    A dash means that there are no values, or that one of them is not finite.
    """
    scale, digits = (100, 2) if percent else (1, 4)
    mean, std = mean_and_std(values) if values else (math.nan, math.nan)
    if not math.isfinite(mean):
        return "–"
    return f"{scale * mean:.{digits}f}" + (
        f" ± {scale * std:.{digits}f}" if len(values) > 1 else ""
    )
