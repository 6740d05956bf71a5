"""Calibration: a temperature, fitted on validation, that makes probabilities reliable."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from unimp.errors import RunError
from unimp.inference.logits import probabilities
from unimp.inference.reliability import MAX_TEMPERATURE, change_in_words, reliability
from unimp.tasks.labels import UNLABELED, is_known
from unimp.tasks.means import FEW_NODES
from unimp.tasks.task import Task

MAX_NODES = 100_000
"""A temperature is fitted on at most so many validation nodes, taken at even distances."""


def as_logits(chances: Tensor) -> Tensor:
    """Return logits whose softmax is `chances`, finite where these are 0."""
    return chances.clamp(min=1e-12).log()


def calibration_error(chances: Tensor, labels: Tensor) -> float:
    """Return the expected calibration error of nodes [n]; NaN if no label is known.

    For classes, it concerns the most likely class of each node; for binary tasks, each known entry.
    """
    known = labels != UNLABELED
    if labels.ndim == 2:
        given, true = chances[known], labels[known] == 1
    else:
        given, predicted = chances[known].max(1)
        true = predicted == labels[known]
    return reliability(given.numpy(), true.numpy()).error


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """Return the temperature T under which the known labels are most likely, with a weak prior:

        min_T  Σ_i −log p_T(y_i) + ½ ln² T      1/MAX_TEMPERATURE ≤ T ≤ MAX_TEMPERATURE

    The last term weighs about as much as half a node. It matters if there are few labels, or if
    every prediction is right and the sum alone would lead to T → 0. A coarse grid finds the region
    of the minimum. logits [n, C] and labels [n], or both [n, T]; rows whose label is unknown or
    whose logits are not finite are ignored.
    """
    from scipy.optimize import minimize_scalar

    sound = is_known(labels) & torch.isfinite(logits).all(1)
    rows = torch.nonzero(sound).squeeze(1)
    if len(rows) > MAX_NODES:
        rows = rows[torch.linspace(0, len(rows) - 1, MAX_NODES).long()]
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

    largest = math.log(MAX_TEMPERATURE)
    grid = np.linspace(-largest, largest, 25)
    best = int(np.argmin([cost(value) for value in grid]))
    around = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    found = minimize_scalar(cost, bounds=around, method="bounded", options={"xatol": 1e-5})
    return math.exp(found.x)


def checked_temperature(value: Any) -> float:
    """Return a temperature; refuse one that `fit_temperature` could not have found."""
    number = isinstance(value, Real) and not isinstance(value, bool)
    if number and 0 < value < math.inf and abs(math.log(value)) < math.log(MAX_TEMPERATURE) + 1e-6:
        return float(value)
    raise RunError(
        f"the temperature of the calibration is {value!r}; it must be a number between "
        f"{1 / MAX_TEMPERATURE:g} and {MAX_TEMPERATURE:g}. Restore metrics.json from a copy, or "
        "train again."
    )


def calibrate(logits: Tensor, task: Task) -> dict[str, Any]:
    """Fit a temperature on the validation set, and measure the calibration error with it.

    No validation label may have been an input of the logits [N, C]. The result is stored in
    metrics.json:

        temperature   1 if none could be fitted or none helps; `note` then states the reason
        ece           {"val": {"before": 0.07, "after": 0.01}, "test": {…}}
    """
    val = task.split.val
    known = int(is_known(task.labels[val]).sum())
    if not known:
        return measured(logits, task, 1.0, "there are no validation labels to fit a temperature")
    if known < FEW_NODES:
        why = f"{known} validation labels are too few to fit a temperature; it takes {FEW_NODES}"
        return measured(logits, task, 1.0, why)
    fitted = measured(logits, task, fit_temperature(logits[val], task.labels[val]))
    errors = fitted["ece"]["val"]
    if errors["after"] > errors["before"]:
        why = (
            f"the fitted temperature of {fitted['temperature']:.2f} would increase the calibration "
            f"error on validation, {change_in_words(errors['before'], errors['after'])}"
        )
        return measured(logits, task, 1.0, why)
    return fitted


def measured(logits: Tensor, task: Task, temperature: float, note: str = "") -> dict[str, Any]:
    """Measure the calibration error on validation and test, before and after `temperature`."""
    errors: dict[str, dict[str, float]] = {}
    for name in ("val", "test"):
        nodes = getattr(task.split, name)
        if not bool(is_known(task.labels[nodes]).any()):
            continue
        errors[name] = {
            when: calibration_error(
                probabilities(logits[nodes] / divisor, multilabel=task.is_multilabel),
                task.labels[nodes],
            )
            for when, divisor in (("before", 1.0), ("after", temperature))
        }
    return {"temperature": temperature, "ece": errors, "note": note}
