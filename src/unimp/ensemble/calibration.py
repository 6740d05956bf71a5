"""Make the probabilities of unlike members comparable, with a few numbers fitted on validation.

Members give probabilities of different quality: the softmax of a network, shares of labels, or the
scores of a regression. Averages and log-losses of such numbers are only meaningful after a
calibration that does not change the order of the nodes within a class.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from unimp.inference.calibration import as_logits, fit_temperature
from unimp.tasks.labels import UNLABELED, is_known
from unimp.tasks.means import FEW_NODES

STEPS = 30
PRIOR = 1.0
"""The weight of the prior scale = 1, shift = 0, in nodes."""


class Calibration(NamedTuple):
    """A scale and a shift of the log-odds, one pair for all classes or one per binary task."""

    scale: Tensor  # [1] or [T]
    shift: Tensor  # [1] or [T]

    def apply(self, chances: Tensor, *, multilabel: bool) -> Tensor:
        """Calibrated probabilities [n, C]:

        classes        softmax( scale · log p )
        binary tasks   sigmoid( scale_t · log( p / (1 − p) ) + shift_t )
        """
        chances = chances.double()
        if not multilabel:
            return torch.softmax(self.scale * as_logits(chances), 1)
        return torch.sigmoid(self.scale * log_odds(chances) + self.shift)


def log_odds(chances: Tensor) -> Tensor:
    """log( p / (1 − p) ), finite where p is 0 or 1."""
    return as_logits(chances) - as_logits(1 - chances)


def fit_calibration(chances: Tensor, labels: Tensor) -> Calibration:
    """The calibration under which the known labels are most likely: chances [n, C].

    Few labels give no calibration. Binary tasks are fitted one by one by Newton's method, as
    proposed by Platt (1999).
    """
    one, zero = torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    if int(is_known(labels).sum()) < FEW_NODES:
        return Calibration(one, zero)
    if labels.ndim == 1:
        return Calibration(one / fit_temperature(as_logits(chances), labels), zero)
    return _platt(log_odds(chances.double()), labels)


def _platt(x: Tensor, labels: Tensor) -> Calibration:
    """Minimize the logistic loss of a_t x + b_t over the known entries of each task t."""
    known = (labels != UNLABELED).double()
    right = labels.clamp(min=0).double()
    # A task with one known class alone has no finite minimum without the prior.
    scale, shift = torch.ones(x.shape[1]).double(), torch.zeros(x.shape[1]).double()
    for _ in range(STEPS):
        p = torch.sigmoid(scale * x + shift)
        error, curve = known * (p - right), known * p * (1 - p)
        gradient = torch.stack(((error * x).sum(0) + PRIOR * (scale - 1), error.sum(0)), 1)
        gradient[:, 1] += PRIOR * shift
        top, cross, low = (curve * x * x).sum(0), (curve * x).sum(0), curve.sum(0)
        curvature = torch.stack((top + PRIOR, cross, cross, low + PRIOR), 1).view(-1, 2, 2)
        step = torch.linalg.solve(curvature, gradient).clamp(-1.0, 1.0)
        scale, shift = (scale - step[:, 0]).clamp(min=0.01), shift - step[:, 1]
    return Calibration(scale, shift)
