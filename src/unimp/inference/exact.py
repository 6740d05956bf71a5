"""Exact inference, layer by layer over all in-neighbors, on a graph of any size."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from unimp.graph.graph import Graph
from unimp.model.node_model import NodeModel
from unimp.ops.sampling import ALL, sample_hops


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
    graph = graph.to("cpu")
    # Embedding and read-out look at no edges; as many nodes as edges at a time keep the bound.
    everyone = torch.split(torch.arange(graph.num_nodes), max(1, chunk_edges))
    h = torch.cat(
        [
            model.embed(
                None if graph.x is None else graph.x[nodes].to(device), observed[nodes].to(device)
            ).cpu()
            for nodes in everyone
        ]
    )
    for index in range(model.num_layers):
        rows = []
        for targets in target_chunks(graph, chunk_edges):
            nodes, (hop,) = sample_hops(graph, targets, [ALL], seed=0)
            rows.append(model.propagate(h[nodes].to(device), hop.to(device), index).cpu())
        h = torch.cat(rows)
    return torch.cat([model.read_out(h[nodes].to(device)).cpu() for nodes in everyone])


def fits_one_chunk(graph: Graph, chunk_edges: int) -> bool:
    return graph.num_edges + graph.num_nodes <= chunk_edges


def target_chunks(graph: Graph, chunk_edges: int) -> Iterator[Tensor]:
    """Consecutive targets, as many as are, with their in-edges, at most `chunk_edges`."""
    # Targets count too: a run of nodes without in-edges is not free.
    cost = graph.indptr.numpy() + np.arange(graph.num_nodes + 1)
    begin = 0
    while begin < graph.num_nodes:
        limit = int(cost[begin]) + chunk_edges
        end = int(np.searchsorted(cost, limit, side="right")) - 1
        end = min(max(end, begin + 1), graph.num_nodes)
        yield torch.arange(begin, end)
        begin = end
