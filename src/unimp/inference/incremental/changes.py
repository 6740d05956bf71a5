"""What may change after training: labels shown or hidden, edges taken away."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from unimp.errors import GraphError
from unimp.graph.graph import Graph
from unimp.tasks.labels import UNLABELED


@dataclass(frozen=True, eq=False)
class Change:
    """Labels as the model is to see them from now on, and edges that are not there any more."""

    nodes: Tensor | None = None  # [k] whose labels change, none twice
    labels: Tensor | None = None  # [k] or [k, T]: what they become; None: hidden
    without: Tensor | None = None  # [2, m] sources above targets: edges taken away, one way each

    @classmethod
    def hide(cls, nodes: Any) -> Change:
        """The labels of `nodes` are not seen any more."""
        return cls(nodes=torch.as_tensor(nodes, dtype=torch.int64).reshape(-1))

    @classmethod
    def take_away(cls, pairs: Any) -> Change:
        """The edges from each first to each second node of `pairs` are gone."""
        return cls(without=torch.as_tensor(pairs, dtype=torch.int64).reshape(-1, 2).t())


class ChangeableLogits(Protocol):
    """Logits under what is known now, and under changes of it; nodes are numbered as the task's."""

    @property
    def logits(self) -> Tensor:
        """Of all nodes, as things are: [N, classes]."""

    @property
    def without_labels(self) -> Tensor:
        """Of all nodes, if no label were seen: [N, classes]."""

    def after(self, changes: Sequence[Change], targets: Sequence[Tensor]) -> list[Tensor]:
        """Logits of targets[k] if changes[k] alone were made: [len(targets[k]), classes] each."""

    def commit(self, change: Change) -> None:
        """Make a change for good."""


class FullRecomputation:
    """Answers by computing everything anew, for what cannot be run one layer at a time.

    scores: what gives the scores [N, classes] of all nodes of a graph, given observed labels.
    """

    def __init__(
        self, scores: Callable[[Graph, Tensor], Tensor], graph: Graph, observed: Tensor
    ) -> None:
        self._scores, self.graph, self.observed = scores, graph, observed.clone()

    @cached_property
    def logits(self) -> Tensor:
        return self._scores(self.graph, self.observed)

    @cached_property
    def without_labels(self) -> Tensor:
        return self._scores(self.graph, torch.full_like(self.observed, UNLABELED))

    def after(self, changes: Sequence[Change], targets: Sequence[Tensor]) -> list[Tensor]:
        return [
            self._scores(*self._changed(change))[wanted]
            for change, wanted in zip(changes, targets, strict=True)
        ]

    def commit(self, change: Change) -> None:
        self.graph, self.observed = self._changed(change)
        for known in ("logits", "without_labels"):
            self.__dict__.pop(known, None)

    def _changed(self, change: Change) -> tuple[Graph, Tensor]:
        graph, observed = self.graph, self.observed.clone()
        if change.nodes is not None:
            observed[change.nodes] = (
                UNLABELED if change.labels is None else change.labels.to(observed)
            )
        if change.without is not None and change.without.numel():
            refuse_self_loops(change.without)
            graph = graph.without_edges(*change.without)
        return graph, observed


def refuse_self_loops(pairs: Tensor) -> None:
    """A node's edge to itself is no neighbor; models add it or not, as they see fit."""
    loops = pairs[0][pairs[0] == pairs[1]]
    if loops.numel():
        raise GraphError(f"the edge of node {int(loops[0])} to itself cannot be taken away")
