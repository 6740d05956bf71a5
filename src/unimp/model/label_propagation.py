"""Label propagation: what the graph and the observed labels say, without features or weights."""

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
    """Label propagation: scores [N, classes] from the graph and the observed labels alone.

        Y⁰ = one-hot(observed), zero where unknown        Yˡ⁺¹ = (1 − restart) S Yˡ + restart Y⁰

    with S of `edge_weights`. Standard forms: restart = 0 and `row` is the paper's plain iteration;
    `sym` with a restart that of Zhou et al. (2004); `row`, restart = 0 and clamp = `labels`, which
    puts the observed labels back after each step, that of Zhu and Ghahramani (2002); clamp =
    `unit`, which cuts entries to −1 … 1 after each step, that of Huang et al. (2021) on OGB. A
    multi-label row propagates its positive entries less the mean of its task, so that a node no
    label reaches scores as the mean.
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
    """Rows [N, C] passed along the edges, from source to target, `steps` times.

        Z⁰ = start        Zˡ⁺¹ = (1 − restart) S Zˡ + restart Z⁰

    keep: [N, 1] or [N, C] bool, entries that are put back to the start after each step.
    cut: entries are cut to −1 … 1 after each step.
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
    """The entry of S for each edge from j to i: [E].

        row: D⁻¹A, 1 / d_i        sym: D^-½ A D^-½, 1 / √(d_i d_j)        column: A D⁻¹, 1 / d_j

    d_i counts the in-edges of i and d_j the out-edges of j, which is the same number where every
    edge has its reverse. With `row` a node becomes the mean of its in-neighbors; with `column` it
    divides what it has among those it sends to, so that a hub may come to more than 1.
    """
    power = {"row": 1.0, "sym": 0.5, "column": 0.0}[normalization]
    out_degree = torch.bincount(graph.source, minlength=graph.num_nodes)
    # A node without edges, whose degree is 0, has no weight to divide.
    of_target = graph.in_degree.clamp(min=1).double().pow(-power).to(dtype)
    of_source = out_degree.clamp(min=1).double().pow(power - 1.0).to(dtype)
    return of_target.index_select(0, graph.target) * of_source.index_select(0, graph.source)
