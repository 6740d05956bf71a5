"""Changes after training: labels that are shown or hidden, and edges that are removed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from unimp.errors import GraphError, TaskError
from unimp.graph.graph import Graph, checked_numbers
from unimp.tasks.labels import UNLABELED, checked_labels


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
        self,
        scores: Callable[[Graph, Tensor], Tensor],
        graph: Graph,
        observed: Tensor,
        num_classes: int,
    ) -> None:
        self._scores, self.graph, self.observed = scores, graph, observed.clone()
        self._num_classes = num_classes

    @cached_property
    def logits(self) -> Tensor:
        return self._scores(self.graph, self.observed)

    @cached_property
    def without_labels(self) -> Tensor:
        return self._scores(self.graph, torch.full_like(self.observed, UNLABELED))

    def after(self, changes: Sequence[Change], targets: Sequence[Tensor]) -> list[Tensor]:
        return [
            self._scores(*self._changed(change))[self.graph.checked_nodes(wanted)]
            for change, wanted in zip(changes, targets, strict=True)
        ]

    def commit(self, change: Change) -> None:
        self.graph, self.observed = self._changed(change)
        for cached in ("logits", "without_labels"):
            self.__dict__.pop(cached, None)

    def _changed(self, change: Change) -> tuple[Graph, Tensor]:
        graph, observed = self.graph, self.observed.clone()
        change = checked_change(change, graph.num_nodes, observed, self._num_classes)
        if change.nodes is not None:
            observed[change.nodes] = (
                UNLABELED if change.labels is None else change.labels.to(observed)
            )
        if change.without is not None and change.without.numel():
            graph = graph.without_edges(*change.without)
        return graph, observed


def checked_change(change: Change, num_nodes: int, observed: Tensor, num_classes: int) -> Change:
    """Return a change whose nodes, labels and edges are valid for the task; refuse any other.

    observed: labels in the form of the task's labels. An edge from a node to itself is refused too,
    because some models add it on their own.
    """
    nodes, labels, without = change.nodes, change.labels, change.without
    if nodes is not None:
        nodes = checked_numbers(nodes.reshape(-1), num_nodes)
        found, counts = torch.unique(nodes, return_counts=True)
        if len(found) < len(nodes):
            node = int(found[counts > 1][0])
            raise GraphError(f"node {node} occurs twice in a change; list each node once")
    if labels is not None:
        if nodes is None:
            raise TaskError("a change contains labels, but no nodes; give the node of each label")
        labels = checked_labels(labels, len(nodes), num_classes, nodes)
        if labels.ndim != observed.ndim:
            raise TaskError(
                f"the labels of a change have shape {tuple(labels.shape)}; they must have the form "
                f"of the task's labels, {tuple(observed.shape)}"
            )
    if without is not None and without.numel():
        if without.ndim != 2 or len(without) != 2:
            raise GraphError(
                f"the edges of a change have shape {tuple(without.shape)}; they must be [2, m], "
                "sources above targets"
            )
        without = checked_numbers(without.reshape(-1), num_nodes).reshape(2, -1)
        loops = without[0][without[0] == without[1]]
        if loops.numel():
            raise GraphError(f"the edge of node {int(loops[0])} to itself cannot be removed")
    return Change(nodes, labels, without)
