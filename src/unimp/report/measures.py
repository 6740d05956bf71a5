"""Numbers computed from scored nodes for the charts: shares, intervals, bins."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]


def wilson(share: float, count: float, z: float = 1.96) -> tuple[float, float]:
    """The 95 % Wilson interval of a share of `count` nodes.

    (p + z²/2n ± z √(p(1−p)/n + z²/4n²)) / (1 + z²/n)
    """
    if count <= 0:
        return 0.0, 1.0
    middle = share + z * z / (2 * count)
    reach = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    whole = 1 + z * z / count
    return max(0.0, (middle - reach) / whole), min(1.0, (middle + reach) / whole)


def doubling_edges(values: Array, *, most: int = 10, fewest: int = 20) -> list[int]:
    """The starts of bins 0, 1, 2–3, 4–7, …; the last, open one contains at least `fewest` nodes."""
    edges, numbers = [0, 1], np.asarray(values, np.int64)
    while len(edges) < most and int((numbers >= 2 * edges[-1]).sum()) >= fewest:
        edges.append(2 * edges[-1])
    return edges


def bin_names(edges: Sequence[int], last: str) -> list[str]:
    """The names of bins, such as `2–3`; `last` formats the start of the last, open bin."""
    inner = [str(a) if b == a + 1 else f"{a}–{b - 1}" for a, b in pairwise(edges)]
    return [*inner, last.format(edges[-1])]


def share_of_surest(
    confidence: Array, right: Array, steps: int = 40, *, fewest: int = 1
) -> list[tuple[float, float]]:
    """The share of nodes, most confident first, and the accuracy among them.

    The first share contains at least `fewest` nodes: the accuracy of one node is 0 or 1.
    """
    total = len(confidence)
    order = np.argsort(-np.asarray(confidence, np.float64), kind="stable")
    correct = np.cumsum(np.asarray(right, np.float64)[order])
    least = min(fewest, total)
    kept = sorted({max(least, round(total * k / steps)) for k in range(1, steps + 1)} - {0})
    return [(k / total, float(correct[k - 1]) / k) for k in kept]


def confusion(label: Array, prediction: Array, classes: int) -> NDArray[np.float64]:
    """How often a label (row) was predicted as a class (column)."""
    counts = np.zeros((classes, classes))
    np.add.at(counts, (np.asarray(label, np.int64), np.asarray(prediction, np.int64)), 1)
    return counts


def auc_by_task(probability: Array, label: Array) -> NDArray[np.float64]:
    """The area under the ROC curve of each binary task; NaN if only one class occurs."""
    import torch

    from unimp.tasks.metrics import mean_roc_auc

    scores, labels = torch.from_numpy(probability), torch.from_numpy(label)
    columns = range(scores.shape[1])
    return np.array([mean_roc_auc(scores[:, [t]], labels[:, [t]]) for t in columns])


def likeliest_is_right(probability: Array, label: Array) -> tuple[Array, Array]:
    """Which nodes have a positive label, and whether their most likely task is positive."""
    positive = np.asarray(label) == 1
    some = positive.any(1)
    likeliest = np.asarray(probability, np.float64).argmax(1)
    return some, positive[np.arange(len(positive)), likeliest][some]
