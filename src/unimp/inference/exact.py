"""Exact inference, layer by layer over all in-neighbors, on a graph of any size."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unimp.config.choices import ALL
from unimp.graph.graph import Graph
from unimp.model.node_model import NodeModel
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
    """Logits of all nodes, equal to those of the full batch: [N, classes], in main memory.

    Each layer is computed for all nodes before the next begins, a chunk of targets at a time;
    a chunk has at most `chunk_edges` targets and in-edges (or one target, if that one has more), so
    what the device holds is bounded by it. Between layers one row a node is kept in main memory.
    The price of several chunks: a source that several of them share is projected in each. A model
    whose layers cannot be told apart runs on the whole graph at once.
    """
    model.eval()
    if fits_one_chunk(graph, chunk_edges) or not model.by_layer:
        hop = graph.hop.to(device)
        x = None if graph.x is None else graph.x.to(device)
        logits: Tensor = model(x, observed.to(device), [hop] * model.num_layers)
        return logits.cpu()
    states = layer_states(model, graph.to("cpu"), observed, chunk_edges=chunk_edges, device=device)
    h = deque(states, maxlen=1).pop()  # one layer's rows are held at a time
    return torch.cat([model.read_out(h[r].to(device)).cpu() for r in _runs(len(h), chunk_edges)])


@torch.no_grad()
def layer_states(
    model: NodeModel,
    graph: Graph,
    observed: Tensor,
    *,
    chunk_edges: int,
    device: torch.device | str = "cpu",
    rows: Sequence[Tensor] | None = None,
) -> Iterator[Tensor]:
    """h⁰ and the output of each layer, one after the other, in main memory: [N, …] each.

    rows: the nodes, in rising order, whose row of each layer's output is wanted; what else they
    depend on must be among those of the layer before. The rest is NaN. None: all nodes.
    """
    # Embedding looks at no edges; as many nodes as edges at a time keep the bound.
    parts = []
    for run in _runs(graph.num_nodes, chunk_edges):
        x = None if graph.x is None else graph.x[run].to(device)
        parts.append(model.embed(x, observed[run].to(device)).cpu())
    h = torch.cat(parts)
    yield h
    for index in range(model.num_layers):
        wanted = torch.arange(graph.num_nodes) if rows is None else rows[index]
        parts = []
        for targets in target_chunks(graph, chunk_edges, wanted):
            nodes, (hop,) = sample_hops(graph, targets, [ALL], seed=0)
            parts.append(model.propagate(h[nodes].to(device), hop.to(device), index).cpu())
        if rows is None:
            h = torch.cat(parts)
        elif parts:
            found = torch.cat(parts)
            h = found.new_full((graph.num_nodes, found.shape[1]), torch.nan)
            h[wanted] = found
        yield h


def _runs(count: int, length: int) -> Sequence[Tensor]:
    return torch.split(torch.arange(count), max(1, length))


def fits_one_chunk(graph: Graph, chunk_edges: int) -> bool:
    return graph.num_edges + graph.num_nodes <= chunk_edges


def target_chunks(
    graph: Graph, chunk_edges: int, targets: Tensor | None = None
) -> Iterator[Tensor]:
    """Targets in order (None: all nodes), as many as are, with their in-edges, at most
    `chunk_edges`."""
    if targets is None:
        targets = torch.arange(graph.num_nodes)
    for begin, end in bounded_runs(graph.in_degree[targets].numpy(), chunk_edges):
        yield targets[begin:end]


def bounded_runs(degree: Any, chunk_edges: int) -> Iterator[tuple[int, int]]:
    """Where to cut targets of these degrees, as `target_chunks` does: [begin, end) of each run."""
    # Targets count too: a run of nodes without in-edges is not free.
    cost = np.zeros(len(degree) + 1, dtype=np.int64)
    np.cumsum(degree.astype(np.int64) + 1, out=cost[1:])
    begin = 0
    while begin < len(degree):
        limit = int(cost[begin]) + chunk_edges
        end = int(np.searchsorted(cost, limit, side="right")) - 1
        end = min(max(end, begin + 1), len(degree))
        yield begin, end
        begin = end
