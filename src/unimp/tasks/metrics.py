"""Metrics: accuracy and ROC-AUC."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from unimp.config.choices import Metric
from unimp.errors import NonFiniteError
from unimp.tasks.labels import UNLABELED

MAX_SCORE = 1e30
"""A larger score could become infinite when it is divided by a temperature."""
SHOWN = 5
"""The number of nodes that an error names."""


def non_finite_rows(scores: Tensor) -> list[int]:
    """Return the rows of scores [n, classes] with a value that is NaN, infinite or too large."""
    if scores.numel():
        low, high = torch.aminmax(scores)
        if low < -MAX_SCORE or high > MAX_SCORE or bool(low.isnan()):
            bad = ~(scores.abs() <= MAX_SCORE).reshape(len(scores), -1).all(1)
            rows: list[int] = torch.nonzero(bad).squeeze(1).tolist()
            return rows
    return []


def refuse_non_finite(scores: Tensor, what: str) -> None:
    """Raise NonFiniteError before a class is chosen: NaN would become the first class."""
    if rows := non_finite_rows(scores):
        more = ", …" if len(rows) > SHOWN else ""
        raise NonFiniteError(
            f"{what} are not finite in {len(rows):,} of {len(scores):,} rows "
            f"({', '.join(map(str, rows[:SHOWN]))}{more}). Compute them again from weights and "
            "features that are finite.",
            rows,
        )


def score(metric: Metric, logits: Tensor, labels: Tensor) -> float:
    """Score logits [n, C] against labels [n] or [n, T].

    Unknown labels and entries do not count. The result is NaN if no label is known. Logits
    that are not finite are refused.
    """
    refuse_non_finite(logits, "logits")
    if metric == "rocauc":
        if labels.ndim == 1:
            # With two classes, the difference of logits has the same order as the probability.
            return mean_roc_auc((logits[:, 1] - logits[:, 0])[:, None], labels[:, None])
        return mean_roc_auc(logits, labels)
    return accuracy(logits, labels)


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Return the share of known labels predicted correctly; binary tasks count each entry."""
    known = labels != UNLABELED
    guess = logits.argmax(1) if labels.ndim == 1 else (logits > 0).to(labels.dtype)
    right = (guess == labels)[known]
    return float(right.double().mean()) if right.numel() else math.nan


def mean_roc_auc(scores: Tensor, labels: Tensor) -> float:
    """Return the area under the ROC curve, averaged over tasks; tasks with one class are omitted.

        AUC = ( Σ_{positive} rank − P(P+1)/2 ) / (P·Q)    P positives, Q negatives; ties share ranks

    scores, labels [n, T]. Equal to OGB's evaluator for ogbn-proteins.
    """
    known = labels != UNLABELED
    positive = labels == 1
    positives = positive.sum(0).double()
    negatives = known.sum(0).double() - positives
    # Unknown entries get infinite scores: they rank last and do not change the other ranks. Known
    # scores are made finite, so that they differ from these.
    largest = torch.finfo(scores.dtype).max
    ranks = _mean_ranks(torch.where(known, scores.clamp(-largest, largest), torch.inf))
    above = (ranks * positive).sum(0) - positives * (positives + 1) / 2
    areas = (above / (positives * negatives))[(positives > 0) & (negatives > 0)]
    return float(areas.mean()) if areas.numel() else math.nan


def _mean_ranks(values: Tensor) -> Tensor:
    """Return ranks from 1 within each column; equal values share their mean rank: [n, T]."""
    from scipy.stats import rankdata  # here, because its import takes long

    return torch.from_numpy(rankdata(values.double().cpu().numpy(), axis=0)).to(values.device)
