"""Calibration: one temperature, fitted on validation, so that a probability can be believed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from unimp.inference.logits import probabilities
from unimp.tasks.labels import UNLABELED, is_known
from unimp.tasks.metrics import FEW_NODES
from unimp.tasks.task import Task

BINS = 15  # of a reliability diagram
HOTTEST = 20.0
"""Temperatures are looked for from 1/HOTTEST to HOTTEST."""
MOST_NODES = 100_000
"""Validation nodes that a temperature is fitted on; of more, evenly many are left out."""

Array = NDArray[np.generic]


@dataclass(frozen=True)
class Reliability:
    """Nodes in bins of equal width by the probability given: how often it came true."""

    count: NDArray[np.float64]  # [BINS]
    promised: NDArray[np.float64]  # [BINS] mean probability; 0 in an empty bin
    kept: NDArray[np.float64]  # [BINS] share that came true; 0 in an empty bin

    @property
    def error(self) -> float:
        """The expected calibration error: Σ_b n_b/n · |kept_b − promised_b|."""
        total = float(self.count.sum())
        gaps = np.abs(self.kept - self.promised) * self.count
        return float(gaps.sum()) / total if total else math.nan


def reliability(probability: Array, came_true: Array) -> Reliability:
    """Bins of equal width over [0, 1]; a probability on an edge belongs above it, 1 to the last.

    What is no number, as from a run that failed, is left out.
    """
    given = np.asarray(probability, np.float64)
    there = np.isfinite(given)
    given, came_true = given[there], came_true[there]
    place = np.minimum((given * BINS).astype(np.int64), BINS - 1)
    count = np.bincount(place, minlength=BINS).astype(np.float64)
    several = np.maximum(count, 1)
    promised = np.bincount(place, weights=given, minlength=BINS) / several
    kept = np.bincount(place, weights=came_true, minlength=BINS) / several
    return Reliability(count, promised, kept)


def as_logits(chances: Tensor) -> Tensor:
    """Logits whose softmax is `chances`, finite where these are 0."""
    return chances.clamp(min=1e-12).log()


def calibration_error(chances: Tensor, labels: Tensor) -> float:
    """The expected calibration error of nodes [n]; NaN where no label is known.

    Classes: of the likeliest class of each node. Binary tasks: of each known entry.
    """
    known = labels != UNLABELED
    if labels.ndim == 2:
        given, true = chances[known], labels[known] == 1
    else:
        given, likeliest = chances[known].max(1)
        true = likeliest == labels[known]
    return reliability(given.numpy(), true.numpy()).error


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The temperature T under which known labels are likeliest, with T near 1 a little likelier:

        min_T  Σ_i −log p_T(y_i) + ½ ln² T      1/HOTTEST ≤ T ≤ HOTTEST

    The last term is that of half a node or so: it speaks where there are few labels, or where
    every prediction is right and the sum alone would ask for T → 0. A coarse grid finds the
    valley, a golden section its floor. logits [n, C] and labels [n], or both [n, T]; what is
    unknown or not finite does not count.
    """
    sound = is_known(labels) & torch.isfinite(logits).all(1)
    rows = torch.nonzero(sound).squeeze(1)
    if len(rows) > MOST_NODES:
        rows = rows[torch.linspace(0, len(rows) - 1, MOST_NODES).long()]
    if not len(rows):
        return 1.0
    logits, labels = logits[rows].double(), labels[rows]

    def cost(log_temperature: float) -> float:
        scaled = logits * math.exp(-log_temperature)
        if labels.ndim == 2:
            known = labels != UNLABELED
            loss = F.binary_cross_entropy_with_logits(
                scaled[known], labels[known].double(), reduction="sum"
            )
        else:
            loss = F.cross_entropy(scaled, labels, reduction="sum")
        return float(loss) + 0.5 * log_temperature**2

    grid = np.linspace(-math.log(HOTTEST), math.log(HOTTEST), 25)
    best = int(np.argmin([cost(value) for value in grid]))
    low, high = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, len(grid) - 1)])
    golden = (math.sqrt(5) - 1) / 2
    inner = [high - golden * (high - low), low + golden * (high - low)]
    costs = [cost(value) for value in inner]
    while high - low > 1e-4:
        if costs[0] <= costs[1]:
            high = inner[1]
            inner = [high - golden * (high - low), inner[0]]
            costs = [cost(inner[0]), costs[0]]
        else:
            low = inner[0]
            inner = [inner[1], low + golden * (high - low)]
            costs = [costs[1], cost(inner[1])]
    return math.exp((low + high) / 2)


def calibrate(logits: Tensor, task: Task) -> dict[str, Any]:
    """A temperature fitted on the validation set, and what it does to the calibration error.

    logits [N, C] were made without a validation label among their inputs. The answer is what a
    run keeps in metrics.json:

        temperature   1 where none could be fitted or none helps; `note` then says why
        ece           {"val": {"before": 0.07, "after": 0.01}, "test": {…}}
    """
    val = task.split.val
    known = int(is_known(task.labels[val]).sum())
    if not known:
        return measured(logits, task, 1.0, "there are no validation labels to fit a temperature on")
    if known < FEW_NODES:
        why = f"{known} validation labels are too few to fit a temperature on, {FEW_NODES} would do"
        return measured(logits, task, 1.0, why)
    fitted = measured(logits, task, fit_temperature(logits[val], task.labels[val]))
    errors = fitted["ece"]["val"]
    if errors["after"] > errors["before"]:
        why = (
            f"a temperature of {fitted['temperature']:.2f}, the likeliest, would make the "
            f"validation error worse, {_change(errors['before'], errors['after'])}"
        )
        return measured(logits, task, 1.0, why)
    return fitted


def measured(logits: Tensor, task: Task, temperature: float, note: str = "") -> dict[str, Any]:
    """The calibration errors of the sets that are not inputs, before and after `temperature`."""
    errors: dict[str, dict[str, float]] = {}
    for name in ("val", "test"):
        nodes = getattr(task.split, name)
        if not bool(is_known(task.labels[nodes]).any()):
            continue
        errors[name] = {
            when: calibration_error(
                probabilities(logits[nodes] / degree, multilabel=task.is_multilabel),
                task.labels[nodes],
            )
            for when, degree in (("before", 1.0), ("after", temperature))
        }
    return {"temperature": temperature, "ece": errors, "note": note}


def calibration_in_words(found: Sequence[Mapping[str, Any]]) -> str:
    """One line on the calibrations of some runs; errors and temperatures are means."""
    left = [one for one in found if one["note"]]
    notes = "; ".join(dict.fromkeys(one["note"] for one in left))
    if len(left) == len(found):
        return f"confidence is not calibrated: {notes}"
    degree = sum(one["temperature"] for one in found) / len(found)
    parts = []
    for name, word in (("val", "validation"), ("test", "test")):
        errors = [one["ece"][name] for one in found if name in one["ece"]]
        # A run that failed has none that is a number, which JSON keeps as null.
        if errors and all(e[w] is not None and math.isfinite(e[w]) for e in errors for w in e):
            before, after = (
                sum(e[when] for e in errors) / len(errors) for when in ("before", "after")
            )
            parts.append(f"{_change(before, after)} on {word}")
    error = f"; calibration error {', '.join(parts)}" if parts else ""
    some = f"; {len(left)} of {len(found)} runs are not calibrated: {notes}" if left else ""
    return f"confidence: temperature {degree:.2f}{error}{some}"


def _change(before: float, after: float) -> str:
    return f"{100 * before:.2f} % → {100 * after:.2f} %"
