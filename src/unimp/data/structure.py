"""Structural columns: degrees and PageRank as further node features."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unimp.graph.features import SparseFeatures
from unimp.graph.graph import Graph

NUM_COLUMNS = 3
"""Log in-degree, log out-degree and log PageRank."""
DAMPING = 0.85
STEPS = 100  # of PageRank; the error is below DAMPING ** STEPS

Array = NDArray[np.float64]


def with_structure(graph: Graph) -> Graph:
    """Append structural columns to the node features; a graph without features gets these alone."""
    columns = structural_columns(graph)
    if graph.x is None:
        return graph.with_features(columns)
    if isinstance(graph.x, SparseFeatures):
        from scipy.sparse import csr_array, hstack

        return graph.with_features(
            hstack([graph.x.to_scipy(), csr_array(columns.numpy())], format="csr")
        )
    return graph.with_features(torch.cat((graph.x, columns), 1))


def without_structure(graph: Graph) -> Graph:
    """Undo `with_structure`."""
    width = graph.num_features - NUM_COLUMNS
    if width == 0 or graph.x is None:
        return graph.with_features(None)
    if isinstance(graph.x, SparseFeatures):
        return graph.with_features(graph.x.to_scipy()[:, :width])
    return graph.with_features(graph.x[:, :width])


def structural_columns(graph: Graph) -> Tensor:
    """Compute the columns of all nodes from the edges alone: [N, NUM_COLUMNS].

        log(1 + in-degree)   log(1 + out-degree)   log(N · PageRank)

    Self-loops do not count. A few further nodes change these numbers little, so that they can be
    computed again when nodes are added.
    """
    from scipy.sparse import csr_array

    graph = graph.without_self_loops()
    nodes = graph.num_nodes
    entries = (np.ones(graph.num_edges), graph.source.numpy(), graph.indptr.numpy())
    edges = csr_array(entries, shape=(nodes, nodes))
    in_degree, out_degree = edges.sum(1), edges.sum(0)
    rank = np.log(nodes * _page_rank(edges, out_degree))
    columns = [np.log1p(in_degree), np.log1p(out_degree), rank]
    return torch.from_numpy(np.stack(columns, 1)).float()


def _page_rank(edges: Any, out_degree: Array) -> Array:
    """PageRank of all nodes; a node without out-edges passes its rank to all nodes."""
    nodes = len(out_degree)
    rank = np.full(nodes, 1.0 / nodes)
    for _ in range(STEPS):
        passed = edges @ (rank / out_degree.clip(min=1))
        lost = rank[out_degree == 0].sum()
        rank = (1 - DAMPING) / nodes + DAMPING * (passed + lost / nodes)
    return rank
