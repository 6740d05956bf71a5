"""Measure how reliable probabilities are, and describe it in words, without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

BINS = 15  # of a reliability diagram
MAX_TEMPERATURE = 20.0
"""Temperatures between 1/MAX_TEMPERATURE and MAX_TEMPERATURE are considered."""

Array = NDArray[np.generic]


@dataclass(frozen=True)
class Reliability:
    """How often predictions are right, in bins of equal width by their probability."""

    count: NDArray[np.float64]  # [BINS]
    promised: NDArray[np.float64]  # [BINS] mean probability; 0 for an empty bin
    kept: NDArray[np.float64]  # [BINS] share of right predictions; 0 for an empty bin

    @property
    def error(self) -> float:
        """The expected calibration error: Σ_b n_b/n · |kept_b − promised_b|."""
        total = float(self.count.sum())
        gaps = np.abs(self.kept - self.promised) * self.count
        return float(gaps.sum()) / total if total else math.nan


def reliability(probability: Array, came_true: Array) -> Reliability:
    """Sort probabilities into bins of equal width over [0, 1].

    A probability on the border of two bins belongs to the upper one, and 1 to the last bin. Values
    that are not finite, as from a failed run, are left out.
    """
    given = np.asarray(probability, np.float64)
    finite = np.isfinite(given)
    given, came_true = given[finite], came_true[finite]
    bins = np.minimum((given * BINS).astype(np.int64), BINS - 1)
    count = np.bincount(bins, minlength=BINS).astype(np.float64)
    at_least_one = np.maximum(count, 1)
    promised = np.bincount(bins, weights=given, minlength=BINS) / at_least_one
    kept = np.bincount(bins, weights=came_true, minlength=BINS) / at_least_one
    return Reliability(count, promised, kept)


def calibration_in_words(calibrations: Sequence[Mapping[str, Any]]) -> str:
    """Summarize the calibrations of some runs in one line, with mean errors and temperatures."""
    uncalibrated = [one for one in calibrations if one["note"]]
    notes = "; ".join(dict.fromkeys(one["note"] for one in uncalibrated))
    if len(uncalibrated) == len(calibrations):
        return f"confidence is not calibrated: {notes}"
    temperature = sum(one["temperature"] for one in calibrations) / len(calibrations)
    parts = []
    for name, word in (("val", "validation"), ("test", "test")):
        errors = [one["ece"][name] for one in calibrations if name in one["ece"]]
        # The errors of a failed run are not finite; JSON stores null.
        if errors and all(e[w] is not None and math.isfinite(e[w]) for e in errors for w in e):
            before, after = (
                sum(e[when] for e in errors) / len(errors) for when in ("before", "after")
            )
            parts.append(f"{change_in_words(before, after)} on {word}")
    error = f"; calibration error {', '.join(parts)}" if parts else ""
    some = f"; {len(uncalibrated)} of {len(calibrations)} runs are not calibrated: {notes}"
    return f"confidence: temperature {temperature:.2f}{error}{some if uncalibrated else ''}"


def change_in_words(before: float, after: float) -> str:
    return f"{100 * before:.2f} % → {100 * after:.2f} %"
