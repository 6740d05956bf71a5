"""Label propagation: predictions from the graph and the observed labels, without training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from unimp.config.choices import Clamp, Normalization
from unimp.graph.features import Features
from unimp.graph.graph import Graph
from unimp.graph.hop import Hop
from unimp.model.node_model import NodeModel
from unimp.ops.row_sums import sum_rows
from unimp.tasks.labels import UNLABELED
from unimp.tasks.task import Sizes


class LabelPropagation(NodeModel):
    """Label propagation as a model that has nothing to learn: inputs A,Y.

        z⁰ = one-hot(observed), zero where unknown        zˡ⁺¹ = (1 − restart) S zˡ + restart z⁰

    S is the matrix of `edge_weights`. Published variants:

        UniMP paper                    normalization = row, restart = 0
        Zhou et al. (2004)             normalization = sym, restart > 0
        Zhu and Ghahramani (2002)      normalization = row, restart = 0, clamp = labels
        Huang et al. (2021) on OGB     clamp = unit

    clamp = labels restores the observed labels after each step; clamp = unit limits entries to
    −1 … 1 after each step. For binary tasks, the mean of each task is subtracted from its observed
    entries, so that a node that no label reaches has the score of the mean.

    One layer is one step. Between hops a row is [zˡ | z⁰], and [zˡ | z⁰ | entries to restore] if
    observed labels are restored. The model runs on the whole graph, because an edge that is removed
    changes the weights of others.
    """

    takes_labels = True
    takes_edge_features = False
    by_layer = False
    learns = False

    def __init__(
        self,
        sizes: Sizes,
        *,
        normalization: Normalization = "row",
        steps: int = 50,
        restart: float = 0.1,
        clamp: Clamp = "none",
    ) -> None:
        super().__init__()
        self.classes, self.num_layers = sizes.classes, steps
        self.normalization, self.restart, self.clamp = normalization, restart, clamp

    def prepare(self, graph: Graph) -> Graph:
        """The graph with the entries of S as its one edge feature."""
        weight = edge_weights(graph, self.normalization, torch.get_default_dtype())
        return replace(graph, edge_id=None, edge_attr=weight[:, None])

    def embed(self, x: Features | None, observed: Tensor) -> Tensor:
        return torch.cat(self._start(observed), 1)

    def propagate(self, h: Tensor, hop: Hop, index: int) -> Tensor:
        return torch.cat(self._step(torch.split(h, self.classes, 1), hop), 1)

    def read_out(self, h: Tensor) -> Tensor:
        return h[:, : self.classes]

    def forward(self, x: Features | None, observed: Tensor, hops: Sequence[Hop]) -> Tensor:
        """Compute the outputs without joining the parts of a row between hops.

        Joining and separating them would take longer than the sums over the edges.
        """
        parts = self._start(observed)
        for hop in hops:
            parts = self._step(parts, hop)
        return parts[0]

    def _start(self, observed: Tensor) -> tuple[Tensor, ...]:
        """The parts of each row before the first hop: [N, classes] each."""
        start, entry = start_of(observed, self.classes)
        restored = [entry.expand_as(start).to(start)] if self.clamp == "labels" else []
        return start, start, *restored

    def _step(self, parts: Sequence[Tensor], hop: Hop) -> tuple[Tensor, ...]:
        """The parts of each row after a hop."""
        assert hop.edge_attr is not None  # `prepare` gave each edge its weight
        now, *rest = parts
        rest = [rows[: hop.num_targets] for rows in rest]
        rows = sum_rows(hop.indptr, hop.source, hop.edge_attr[:, 0], now.contiguous())
        rows = (1.0 - self.restart) * rows + self.restart * rest[0]
        if self.clamp == "unit":
            rows = rows.clamp(-1.0, 1.0)
        if self.clamp == "labels":
            rows = torch.where(rest[1] > 0, rest[0], rows)
        return rows, *rest

    def to_probabilities(
        self, outputs: Tensor, *, multilabel: bool, temperature: float = 1.0
    ) -> Tensor:
        """Shares of the labels that arrive; every class is equally likely where none does."""
        if multilabel:
            return super().to_probabilities(outputs, multilabel=True, temperature=temperature)
        even = torch.full_like(outputs, 1.0 / self.classes)
        total = outputs.sum(1, keepdim=True)
        return torch.where(total > 0, outputs / total.clamp(min=1e-30), even)


def start_of(observed: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Z⁰ [N, classes], and which of its entries are observed: [N, 1] or [N, classes] bool."""
    start, entry = entries_of(observed, num_classes)
    if observed.ndim == 1:
        return start, entry
    share = start.sum(0) / entry.sum(0).clamp(min=1)
    return torch.where(entry, start - share, torch.zeros(()).to(share)), entry


def entries_of(observed: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Observed labels as 0 and 1, one-hot or per binary task, and 0 where they are unknown:
    [N, classes]; and which entries are observed: [N, 1] or [N, classes] bool."""
    entry = observed != UNLABELED
    if observed.ndim == 2:
        return observed.clamp(min=0).float(), entry
    start = torch.zeros(len(observed), num_classes, device=observed.device)
    start[entry] = F.one_hot(observed[entry].long(), num_classes).float()
    return start, entry[:, None]


@torch.no_grad()
def propagate(
    graph: Graph,
    start: Tensor,
    *,
    normalization: Normalization,
    steps: int,
    restart: float,
    keep: Tensor | None = None,
    cut: bool = False,
) -> Tensor:
    """Propagate rows [N, C] along the edges, from source to target, `steps` times.

        Z⁰ = start        Zˡ⁺¹ = (1 − restart) S Zˡ + restart Z⁰

    keep: [N, 1] or [N, C] bool, entries that are reset to their start after each step.
    cut: whether entries are limited to −1 … 1 after each step.
    """
    weight = edge_weights(graph, normalization, start.dtype)
    rows = start
    for _ in range(steps):
        rows = (1.0 - restart) * sum_rows(graph.indptr, graph.source, weight, rows)
        rows += restart * start
        if cut:
            rows.clamp_(-1.0, 1.0)
        if keep is not None:
            rows = torch.where(keep, start, rows)
    return rows


def edge_weights(graph: Graph, normalization: Normalization, dtype: torch.dtype) -> Tensor:
    """Compute the entry of S for each edge from j to i: [E].

        row: D⁻¹A, 1 / d_i        sym: D^-½ A D^-½, 1 / √(d_i d_j)        column: A D⁻¹, 1 / d_j

    d_i counts the in-edges of i and d_j the out-edges of j. The two degrees of a node are equal if
    every edge has a reverse edge. With `row`, a node becomes the mean of its in-neighbors. With
    `column`, a node divides its row among its out-neighbors, so entries of a hub may exceed 1.
    """
    power = {"row": 1.0, "sym": 0.5, "column": 0.0}[normalization]
    out_degree = torch.bincount(graph.source, minlength=graph.num_nodes)
    # A node without edges has degree 0; the clamp avoids a division by zero.
    of_target = graph.in_degree.clamp(min=1).double().pow(-power).to(dtype)
    of_source = out_degree.clamp(min=1).double().pow(power - 1.0).to(dtype)
    return of_target.index_select(0, graph.target) * of_source.index_select(0, graph.source)
