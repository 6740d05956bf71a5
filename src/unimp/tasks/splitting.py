"""Draw splits by shares: stratified by class, or with groups kept together.

This module does not import torch; `Split` copies the arrays of `Sets` to tensors.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Sets(NamedTuple):
    """The node numbers of a split."""

    train: NDArray[np.int64]
    val: NDArray[np.int64]
    test: NDArray[np.int64]


def split_groups(
    group: NDArray[Any],
    known: NDArray[np.bool_],
    *,
    seed: int,
    train_share: float,
    val_share: float,
) -> Sets:
    """Divide the known nodes so that those of one group stay together; at least three groups.

    Groups are shuffled, and divided where the share of nodes is nearest. The result depends only on
    the arguments.
    """
    nodes = np.flatnonzero(known)
    names, place = np.unique(group[nodes], return_inverse=True)
    order = np.random.Generator(np.random.PCG64(seed)).permutation(len(names))
    covered = np.cumsum(np.bincount(place)[order])  # nodes in the first 1, 2, … groups
    # At least one group in each set.
    first = min(_nearest(covered, train_share * len(nodes)), len(names) - 2)
    second = _nearest(covered, (train_share + val_share) * len(nodes))
    second = min(max(second, first + 1), len(names) - 1)
    rank = np.empty(len(names), dtype=np.int64)
    rank[order] = np.arange(len(names))
    rank = rank[place]
    return split_of(nodes, (rank >= first).astype(np.int8) + (rank >= second))


def split_classes(labels: NDArray[Any], *, seed: int, train_share: float, val_share: float) -> Sets:
    """Divide each class by the shares, with at least one node in train; −1 is unknown.

    Rows of binary tasks are divided as one class. If classes are so small that val would be empty,
    it gets a node of test, or of a class with several nodes in train. The result depends only on
    the arguments.
    """
    known = labels >= 0 if labels.ndim == 1 else (labels >= 0).any(1)
    nodes = np.flatnonzero(known)
    nodes = nodes[np.random.Generator(np.random.PCG64(seed)).permutation(len(nodes))]
    label = labels[nodes] if labels.ndim == 1 else np.zeros(len(nodes), dtype=np.int64)
    order = np.argsort(label, kind="stable")
    nodes, label = nodes[order], label[order]
    count = np.bincount(label)
    rank = np.arange(len(nodes)) - (np.cumsum(count) - count)[label]
    first = np.maximum(1, np.rint(train_share * count))
    second = np.maximum(first, np.rint((train_share + val_share) * count))
    part = (rank >= first[label]).astype(np.int8) + (rank >= second[label])
    if val_share > 0 and not (part == 1).any():
        spare = part == 2 if (part == 2).any() else rank > 0
        # From the largest class, which can best do without a node.
        part[np.flatnonzero(spare)[np.argsort(-count[label[spare]], kind="stable")[:1]]] = 1
    return split_of(nodes, part)


def split_of(nodes: NDArray[np.int64], part: NDArray[Any]) -> Sets:
    """Return a split from the set of each node (0 train, 1 val, 2 test); sets are sorted."""
    return Sets(*(np.sort(nodes[part == code]) for code in range(3)))


def _nearest(covered: NDArray[np.int64], wanted: float) -> int:
    """Return how many groups, at least one, contain nearest to `wanted` nodes."""
    return int(np.argmin(np.abs(covered - wanted))) + 1
