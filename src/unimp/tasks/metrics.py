"""How predictions are scored."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from unimp.config.choices import Metric
from unimp.tasks.labels import UNLABELED

FEW_NODES = 30
"""Of fewer nodes a score, or a temperature, means little."""


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
    known = labels != UNLABELED
    positive = labels == 1
    positives = positive.sum(0).double()
    negatives = known.sum(0).double() - positives
    # Entries that do not count are ranked last, where they leave the other ranks alone; finite
    # scores, so that they stay apart from a score of infinity.
    largest = torch.finfo(scores.dtype).max
    ranks = _mean_ranks(torch.where(known, scores.clamp(-largest, largest), torch.inf))
    above = (ranks * positive).sum(0) - positives * (positives + 1) / 2
    areas = (above / (positives * negatives))[(positives > 0) & (negatives > 0)]
    return float(areas.mean()) if areas.numel() else math.nan


def _mean_ranks(values: Tensor) -> Tensor:
    """Ranks from 1 within each column; equal values share the mean of theirs: [n, T]."""
    ordered, order = torch.sort(values, dim=0)
    place = torch.arange(1, len(values) + 1, device=values.device)[:, None].expand_as(values)
    begins = torch.ones_like(ordered, dtype=torch.bool)
    begins[1:] = ordered[1:] != ordered[:-1]
    ends = torch.ones_like(begins)
    ends[:-1] = begins[1:]
    first = torch.where(begins, place, 0).cummax(0).values
    last = torch.where(ends, place, len(values)).flip(0).cummin(0).values.flip(0)
    mean = (first + last).double() / 2
    return torch.empty_like(mean).scatter_(0, order, mean)


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and unbiased standard deviation over runs; the deviation of one run is NaN."""
    mean = sum(values) / len(values)
    if len(values) == 1:
        return mean, math.nan
    return mean, math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))


def mean_text(values: Sequence[float]) -> str:
    """A mean of scores in percent, ± the deviation where there are several; a dash for none."""
    if not values:
        return "–"
    mean, std = mean_and_std(values)
    return f"{100 * mean:.2f}" + (f" ± {100 * std:.2f}" if len(values) > 1 else "")
