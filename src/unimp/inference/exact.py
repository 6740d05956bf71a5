"""Exact inference, layer by layer over all in-neighbors, on a graph of any size."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unimp.config.choices import ALL
from unimp.graph.features import Features, rows_of
from unimp.graph.graph import Graph
from unimp.model.node_model import NodeModel
from unimp.ops.placement import fits_one_chunk
from unimp.ops.sampling import sample_hops


@torch.no_grad()
def exact_logits(
    model: NodeModel,
    graph: Graph,
    observed: Tensor,
    *,
    chunk_edges: int,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Compute the logits of all nodes, equal to those of the full batch: [N, classes], on CPU.

    Each layer is computed for all nodes before the next layer begins, one chunk of targets at a
    time. A chunk has at most `chunk_edges` targets and in-edges (or one target, if that target
    alone has more), which bounds the memory that the device needs. Between layers, one row per node
    is stored in main memory. A source that several chunks share is projected in each of them. A
    model that cannot run layer by layer runs on the whole graph at once.
    """
    model.eval()
    x = model.features(graph, observed)
    if fits_one_chunk(graph, chunk_edges) or not model.by_layer:
        hop = graph.hop.to(device)
        x = None if x is None else x.to(device)
        logits: Tensor = model(x, observed.to(device), [hop] * model.num_layers)
        return logits.cpu()
    x = None if x is None else x.to("cpu")
    states = layer_states(
        model, graph.to("cpu"), x, observed, chunk_edges=chunk_edges, device=device
    )
    h = deque(states, maxlen=1).pop()  # only the rows of one layer are in memory at a time
    return torch.cat([model.read_out(h[r].to(device)).cpu() for r in _runs(len(h), chunk_edges)])


@torch.no_grad()
def layer_states(
    model: NodeModel,
    graph: Graph,
    x: Features | None,
    observed: Tensor,
    *,
    chunk_edges: int,
    device: torch.device | str = "cpu",
    rows: Sequence[Tensor] | None = None,
) -> Iterator[Tensor]:
    """Yield h⁰ and then the output of each layer, in main memory: [N, …] each.

    x: the features that the model receives, which may include propagated labels.
    rows: for each layer, the nodes, in ascending order, whose output is wanted (None: all nodes).
    Everything that they depend on must be among the rows of the layer before. All other rows are
    NaN.
    """
    # Embedding uses no edges, so a chunk of `chunk_edges` nodes stays within the bound.
    parts = []
    for run in _runs(graph.num_nodes, chunk_edges):
        own = None if x is None else rows_of(x, run).to(device)
        parts.append(model.embed(own, observed[run].to(device)).cpu())
    h = torch.cat(parts)
    yield h
    for index in range(model.num_layers):
        wanted = torch.arange(graph.num_nodes) if rows is None else rows[index]
        parts = []
        for targets in target_chunks(graph, chunk_edges, wanted):
            nodes, (hop,) = sample_hops(graph, targets, [ALL], seed=0)
            sources = h.index_select(0, nodes).to(device)
            parts.append(model.propagate(sources, hop.to(device), index).cpu())
        if rows is None:
            h = torch.cat(parts)
        elif parts:
            found = torch.cat(parts)
            h = found.new_full((graph.num_nodes, found.shape[1]), torch.nan)
            h[wanted] = found
        yield h


def _runs(count: int, length: int) -> Sequence[Tensor]:
    return torch.split(torch.arange(count), max(1, length))


def target_chunks(
    graph: Graph, chunk_edges: int, targets: Tensor | None = None
) -> Iterator[Tensor]:
    """Divide targets (None: all nodes) into chunks of at most `chunk_edges` targets and in-edges.

    The order is kept. A target that alone exceeds the limit is a chunk by itself.
    """
    if targets is None:
        targets = torch.arange(graph.num_nodes)
    for begin, end in bounded_runs(graph.in_degree[targets].numpy(), chunk_edges):
        yield targets[begin:end]


def bounded_runs(degree: Any, chunk_edges: int) -> Iterator[tuple[int, int]]:
    """Cut targets of these degrees as `target_chunks` does: [begin, end) of each chunk."""
    # Targets also count: a chunk of nodes without in-edges still takes memory.
    cost = np.zeros(len(degree) + 1, dtype=np.int64)
    np.cumsum(degree.astype(np.int64) + 1, out=cost[1:])
    begin = 0
    while begin < len(degree):
        limit = int(cost[begin]) + chunk_edges
        end = int(np.searchsorted(cost, limit, side="right")) - 1
        end = min(max(end, begin + 1), len(degree))
        yield begin, end
        begin = end
