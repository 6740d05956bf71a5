"""How predictions are scored."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from unimp.tasks.labels import UNLABELED
from unimp.tasks.task import Metric


def score(metric: Metric, logits: Tensor, labels: Tensor) -> float:
    """The score of some nodes' logits [n, C] against their labels [n] or [n, T].

    Nodes and entries whose label is unknown do not count; NaN where none is left.
    """
    if metric == "rocauc":
        if labels.ndim == 1:
            # Two classes: the difference of logits ranks nodes as the probability does.
            return mean_roc_auc((logits[:, 1] - logits[:, 0])[:, None], labels[:, None])
        return mean_roc_auc(logits, labels)
    return accuracy(logits, labels)


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """The share of known labels that the likeliest class meets; binary tasks count each entry."""
    known = labels != UNLABELED
    guess = logits.argmax(1) if labels.ndim == 1 else (logits > 0).to(labels.dtype)
    right = (guess == labels)[known]
    return float(right.double().mean()) if right.numel() else math.nan


def mean_roc_auc(scores: Tensor, labels: Tensor) -> float:
    """Area under the ROC curve, averaged over tasks; a task with one class present is left out.

        AUC = ( Σ_{positive} rank − P(P+1)/2 ) / (P·Q)    P positives, Q negatives; ties share ranks

    scores, labels [n, T]; as OGB's evaluator for ogbn-proteins.
    """
    areas = []
    for task in range(labels.shape[1]):
        known = labels[:, task] != UNLABELED
        positive = labels[known, task] == 1
        positives = int(positive.sum())
        negatives = positive.numel() - positives
        if positives == 0 or negatives == 0:
            continue
        ranks = _mean_ranks(scores[known, task])
        above = float(ranks[positive].sum()) - positives * (positives + 1) / 2
        areas.append(above / (positives * negatives))
    return sum(areas) / len(areas) if areas else math.nan


def _mean_ranks(values: Tensor) -> Tensor:
    """Ranks from 1; equal values share the mean of theirs."""
    ordered, order = torch.sort(values)
    _, tie, counts = torch.unique_consecutive(ordered, return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    mean = last - (counts.double() - 1) / 2
    return torch.empty(len(values), dtype=torch.float64, device=values.device).scatter_(
        0, order, mean[tie]
    )


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and unbiased standard deviation over runs; the deviation of one run is NaN."""
    mean = sum(values) / len(values)
    if len(values) == 1:
        return mean, math.nan
    return mean, math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))
