"""Observed labels that are propagated over the whole graph, as an input of a model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from unimp.graph.graph import Graph
from unimp.model.label_propagation import edge_weights, entries_of
from unimp.model.node_model import NodeModel
from unimp.ops.row_sums import sum_rows
from unimp.tasks.task import Sizes

STEPS = (1, 2, 5, 10)
"""The numbers of steps after which propagated labels are inputs."""

FLOOR = 1e-6
"""Added to the mass, so that a node that few observed labels reach has shares near 0."""


MOST_REMEMBERED = 2**30
"""The most bytes of propagated labels that are kept between two scorings of a training."""


class PropagatedLabels(nn.Module):
    """A linear map of propagated labels to the width of the model, one row per node.

    With Â = D⁻¹A, Y the observed labels (one-hot, or 0 and 1 per binary task), m = 1 where a label
    is observed and 0 elsewhere, and ε = 10⁻⁶, the inputs of a node are, for s = 1, 2, 5, 10 steps,

        share_s = (Âˢ Y) / (Âˢ m + ε)        mass_s = 1 − log(Âˢ m + ε) / log ε

    A share is the part of the arriving labels that are of a class. The mass is 0 if no label
    arrives and 1 if every walk of s steps ends at one. For binary tasks, the mass is the mean over
    the tasks. The row of a node whose own label is hidden does not depend on that label.
    """

    def __init__(self, sizes: Sizes, width: int) -> None:
        super().__init__()
        self.classes = sizes.classes
        self.masses = sizes.classes if sizes.multilabel else 1  # per step, in propagated labels
        self.linear = nn.Linear(len(STEPS) * (sizes.classes + 1), width)

    def of(self, graph: Graph, observed: Tensor, recent: LabelSums | None = None) -> Tensor:
        """Propagate the observed labels of all nodes, as `propagated_labels` does."""
        return propagated_labels(graph, observed, self.classes, recent=recent)

    def forward(self, propagated: Tensor) -> Tensor:
        rows: Tensor = self.linear(self.inputs(propagated).to(self.linear.weight.dtype))
        return rows

    def inputs(self, propagated: Tensor) -> Tensor:
        """The inputs of the linear map: [N, 4 (C + 1)].

        The masses of binary tasks are nearly equal, so they are replaced by their mean. With many
        equal inputs, a small step of each weight would be a large step of the output.
        """
        if self.masses == 1:
            return propagated
        columns = self.classes + self.masses
        by_step = propagated.view(len(propagated), len(STEPS), columns)
        mass = by_step[:, :, self.classes :].mean(2, keepdim=True)
        return torch.cat((by_step[:, :, : self.classes], mass), 2).flatten(1)


class LabelSums:
    """The most recent propagation over a graph: columns that did not change are used again.

    A label of one node is a few of many columns, which are independent of each other, so the
    results are equal bit by bit.
    """

    def __init__(self) -> None:
        self._graph: Graph | None = None
        self._weight, self._start = torch.empty(0), torch.empty(0)
        self._sums: list[Tensor] = []

    def of(self, graph: Graph, start: Tensor) -> list[Tensor]:
        """Compute Âˢ of the columns of start [N, K] for each number of steps: [N, K] each."""
        if graph is not self._graph or start.dtype != self._start.dtype:
            self._graph, self._weight = graph, edge_weights(graph, "row", start.dtype)
            self._sums = list(_sums(graph, self._weight, start))
        else:
            columns = torch.nonzero((start != self._start).any(0)).squeeze(1)
            if len(columns):
                found = _sums(graph, self._weight, start[:, columns].contiguous())
                for known, new in zip(self._sums, found, strict=True):
                    known[:, columns] = new
        self._start = start
        return self._sums


@contextmanager
def remembering(model: NodeModel, graph: Graph, classes: int) -> Iterator[None]:
    """Reuse the last propagation of labels within this context.

    Every scoring during training propagates the same observed labels. Nothing is stored if it would
    take more than `MOST_REMEMBERED` bytes.
    """
    columns = (len(STEPS) + 1) * 2 * classes  # an upper bound
    size = 4 * (columns * graph.num_nodes + graph.num_edges)
    if model.takes_propagated_labels and size <= MOST_REMEMBERED:
        model.recent = LabelSums()
    try:
        yield
    finally:
        model.recent = None


def _sums(graph: Graph, weight: Tensor, rows: Tensor) -> Iterator[Tensor]:
    """Yield the propagated rows after each of the numbers of steps."""
    for step in range(1, STEPS[-1] + 1):
        rows = sum_rows(graph.indptr, graph.source, weight, rows)
        if step in STEPS:
            yield rows


@torch.no_grad()
def propagated_labels(
    graph: Graph,
    observed: Tensor,
    classes: int,
    *,
    dtype: torch.dtype = torch.float32,
    recent: LabelSums | None = None,
) -> Tensor:
    """Compute [share_s | mass_s] for each number of steps: [N, 4 (C + 1)], or [N, 8 T] for T tasks.

    The graph must be the whole graph: a part would not contain the labels around it. The results
    of a computation in another `dtype` are float32 too. recent: saves time if the same object was
    given with similar labels before.
    """
    with torch.autocast(graph.device.type, enabled=False):
        start, entry = entries_of(observed.to(graph.device), classes)
        rows = torch.cat((start, entry.float()), 1).to(dtype)
        found: list[Tensor] = []
        if recent is None:
            steps: Iterable[Tensor] = _sums(graph, edge_weights(graph, "row", dtype), rows)
        else:
            steps = recent.of(graph, rows)
        for sums in steps:
            found += shares_and_masses(sums, classes)
        return torch.cat(found, 1).float()


def shares_and_masses(sums: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Compute share_s and mass_s from the columns of `classes` labels and of their mask."""
    mass = sums[:, classes:] + FLOOR
    return sums[:, :classes] / mass, 1.0 - mass.log() / math.log(FLOOR)
