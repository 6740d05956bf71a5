"""Label propagation: predictions from the graph and the observed labels, without training."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from unimp.config.choices import Clamp, Normalization
from unimp.graph.graph import Graph
from unimp.ops.sparse import sum_rows
from unimp.tasks.labels import UNLABELED


@torch.no_grad()
def propagate_labels(
    graph: Graph,
    observed: Tensor,
    num_classes: int,
    *,
    normalization: Normalization = "row",
    steps: int = 50,
    restart: float = 0.1,
    clamp: Clamp = "none",
) -> Tensor:
    """Compute scores [N, classes] from the graph and the observed labels by label propagation.

        Y⁰ = one-hot(observed), zero where unknown        Yˡ⁺¹ = (1 − restart) S Yˡ + restart Y⁰

    S is the matrix of `edge_weights`. Published variants:

        UniMP paper                    normalization = row, restart = 0
        Zhou et al. (2004)             normalization = sym, restart > 0
        Zhu and Ghahramani (2002)      normalization = row, restart = 0, clamp = labels
        Huang et al. (2021) on OGB     clamp = unit

    clamp = labels restores the observed labels after each step; clamp = unit limits entries to
    −1 … 1 after each step. For binary tasks, the mean of each task is subtracted from its observed
    entries, so that a node that no label reaches has the score of the mean.
    """
    entry = observed != UNLABELED
    if observed.ndim == 1:
        start = torch.zeros(graph.num_nodes, num_classes, device=observed.device)
        start[entry] = F.one_hot(observed[entry].long(), num_classes).float()
        entry = entry[:, None]
    else:
        count = entry.sum(0).clamp(min=1)
        share = (observed.clamp(min=0).float() * entry).sum(0) / count
        start = torch.where(entry, observed.float() - share, torch.zeros(()).to(share))
    return propagate(
        graph,
        start,
        normalization=normalization,
        steps=steps,
        restart=restart,
        keep=entry if clamp == "labels" else None,
        cut=clamp == "unit",
    )


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
