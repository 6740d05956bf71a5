"""Changes after training: labels that are shown or hidden, and edges that are removed."""

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
    """New labels of some nodes, and edges to remove."""

    nodes: Tensor | None = None  # [k] distinct nodes whose labels change
    labels: Tensor | None = None  # [k] or [k, T]: the new labels; None: hide them
    without: Tensor | None = None  # [2, m] directed edges to remove: sources above targets

    @classmethod
    def hide(cls, nodes: Any) -> Change:
        """Hide the labels of `nodes`."""
        return cls(nodes=torch.as_tensor(nodes, dtype=torch.int64).reshape(-1))

    @classmethod
    def remove_edges(cls, pairs: Any) -> Change:
        """Remove the edge from the first to the second node of each pair."""
        return cls(without=torch.as_tensor(pairs, dtype=torch.int64).reshape(-1, 2).t())


class ChangeableLogits(Protocol):
    """Logits of the present state and after changes; nodes have the numbers of the task."""

    @property
    def logits(self) -> Tensor:
        """The logits of all nodes in the present state: [N, classes]."""

    @property
    def without_labels(self) -> Tensor:
        """The logits of all nodes with every label hidden: [N, classes]."""

    def after(self, changes: Sequence[Change], targets: Sequence[Tensor]) -> list[Tensor]:
        """Return the logits of targets[k] after changes[k] alone: [len(targets[k]), classes]."""

    def commit(self, change: Change) -> None:
        """Apply a change permanently."""


class FullRecomputation:
    """Compute everything again after each change, for models that do not run layer by layer.

    scores: returns the scores [N, classes] of all nodes of a graph, given observed labels.
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
        for cached in ("logits", "without_labels"):
            self.__dict__.pop(cached, None)

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
    """Raise GraphError for an edge from a node to itself: some models add it on their own."""
    loops = pairs[0][pairs[0] == pairs[1]]
    if loops.numel():
        raise GraphError(f"the edge of node {int(loops[0])} to itself cannot be removed")
