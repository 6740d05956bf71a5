"""Models that compute their weights themselves, outside of the training loop."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from unimp.config.choices import Metric
from unimp.graph.graph import Graph
from unimp.model.node_model import NodeModel
from unimp.tasks.labels import reveal_only

FOLDS = 5


@dataclass(frozen=True, eq=False)
class KnownLabels:
    """The labels that a model may be computed from, and what each may be used for.

    The label of a node in neither set is UNLABELED, so test labels cannot reach a model.
    """

    labels: Tensor  # [N] or [N, T]
    train: Tensor  # node numbers: labels to fit, and the labels that are inputs of predictions
    val: Tensor  # node numbers: labels to choose settings by; may be empty
    metric: Metric
    groups: Tensor | None = None  # [N] group numbers; folds keep groups together


class Solved(NamedTuple):
    """How the weights were computed, in one line, and whether the time limit ended this."""

    how: str
    cut_short: bool = False


class SolvedModel(NodeModel):
    """A model that computes its weights itself, from all known labels.

    The labels of `known.train` are inputs of its predictions, as they are after training. A model
    must not receive a label as input while it is fitted to the same label, so it uses folds.
    """

    varies = False  # whether the weights depend so much on the seed that copies are useful

    @abstractmethod
    def solve(
        self, graph: Graph, known: KnownLabels, *, seed: int, seconds: float = math.inf
    ) -> Solved:
        """Compute the weights on the graph that `prepare` returned.

        seconds: the time limit. A model that is trained in epochs stops after the current epoch.
        Ridge regression compares fewer settings if time is short. Other models ignore the limit.
        """

    @abstractmethod
    def solve_again(self, graph: Graph, known: KnownLabels, *, seed: int) -> None:
        """Compute the weights for other train labels, with the settings that `solve` chose.

        `known` contains no validation labels, so nothing is chosen here.
        """

    def take_shapes(self, tensors: Mapping[str, Tensor]) -> None:
        """Prepare weights whose shapes depend on the data for stored ones, which are checked here.

        ModelError states what is wrong with them. The caller then copies the stored weights.
        """


def cross_fitted(known: KnownLabels, rows_of: Callable[[Tensor], Tensor], *, seed: int) -> Tensor:
    """Compute the rows of the train nodes, each from the train labels of the other folds.

    rows_of: returns one row per node of the graph, given observed labels. The result, [train, …],
    can be fitted to the train labels: the row of a node depends neither on its own label nor on the
    labels of its group.
    """
    folds = draw_folds(known, seed=seed)
    parts = []
    for fold in range(FOLDS):
        inside = known.train[folds == fold]
        if len(inside):
            others = known.train[folds != fold]
            parts.append(rows_of(reveal_only(others, known.labels))[inside])
    order = torch.argsort(folds, stable=True)
    return torch.cat(parts)[torch.argsort(order)]


def draw_folds(known: KnownLabels, *, seed: int) -> Tensor:
    """Divide the train nodes into folds of similar size that keep groups together: [train]."""
    count = len(known.train)
    unit = torch.arange(count) if known.groups is None else known.groups[known.train]
    names, unit, sizes = torch.unique(unit, return_inverse=True, return_counts=True)
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(seed))
    before = sizes[order].cumsum(0) - sizes[order]  # nodes in the groups of earlier folds
    fold = torch.empty_like(order)
    fold[order] = before * FOLDS // count
    return fold[unit]
