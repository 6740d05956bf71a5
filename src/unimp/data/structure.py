"""Structural columns: degrees, PageRank and Laplacian positions as further node features."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unimp.graph.features import SparseFeatures
from unimp.graph.graph import Graph

LOG = logging.getLogger("unimp")

POSITIONS = 8
NUM_COLUMNS = 3 + POSITIONS
"""Log in-degree, log out-degree, log PageRank, and positions."""
DAMPING = 0.85
STEPS = 100  # of PageRank; the error is below DAMPING ** STEPS
MAX_EDGES = 20_000_000
"""Positions are not computed for larger graphs."""
MAX_DENSE = 200
"""Up to this many nodes, all eigenvectors are computed."""

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

        log(1 + in-degree)   log(1 + out-degree)   log(N · PageRank)   positions

    Positions are the entries of the eigenvectors of the normalized Laplacian with the smallest
    eigenvalues above 0, times √n, in the largest component of the graph without directions. They
    are 0 for all other nodes. The sum of the cubes of a column is positive, which determines its
    sign. Self-loops do not count.
    """
    from scipy.sparse import csr_array

    graph = graph.without_self_loops()
    nodes = graph.num_nodes
    entries = (np.ones(graph.num_edges), graph.source.numpy(), graph.indptr.numpy())
    edges = csr_array(entries, shape=(nodes, nodes))
    in_degree, out_degree = edges.sum(1), edges.sum(0)
    rank = np.log(nodes * _page_rank(edges, out_degree))
    columns = [np.log1p(in_degree), np.log1p(out_degree), rank]
    found = np.concatenate((np.stack(columns, 1), _positions(edges)), 1)
    return torch.from_numpy(found).float()


def _page_rank(edges: Any, out_degree: Array) -> Array:
    """PageRank of all nodes; a node without out-edges passes its rank to all nodes."""
    nodes = len(out_degree)
    rank = np.full(nodes, 1.0 / nodes)
    for _ in range(STEPS):
        passed = edges @ (rank / out_degree.clip(min=1))
        lost = rank[out_degree == 0].sum()
        rank = (1 - DAMPING) / nodes + DAMPING * (passed + lost / nodes)
    return rank


def _positions(edges: Any) -> Array:
    """Positions of all nodes: [N, POSITIONS]; 0 with a warning if they cannot be computed."""
    from scipy.sparse import diags_array
    from scipy.sparse.csgraph import connected_components
    from scipy.sparse.linalg import ArpackError, eigsh

    nodes = edges.shape[0]
    found = np.zeros((nodes, POSITIONS))
    if edges.nnz > MAX_EDGES:
        LOG.warning(
            f"task.structure: Laplacian positions are 0, because the graph has {edges.nnz:,} edges "
            f"and they are computed for at most {MAX_EDGES:,}"
        )
        return found
    both = (edges + edges.T).tocsr()
    _, component = connected_components(both, directed=False)
    members = np.flatnonzero(component == np.bincount(component).argmax())
    both = both[members][:, members]
    scale = diags_array(1 / np.sqrt(both.sum(1).clip(min=1)))
    # The largest eigenvalues of D^-½ A D^-½ are the smallest ones of the Laplacian.
    matrix = (scale @ both @ scale).tocsr()
    count = min(POSITIONS, len(members) - 1)
    if len(members) <= MAX_DENSE:
        vector = np.linalg.eigh(matrix.toarray())[1][:, ::-1]
    else:
        start = np.random.Generator(np.random.PCG64(0)).random(len(members))
        try:
            value, vector = eigsh(matrix, k=count + 1, which="LA", v0=start, maxiter=1000)
        except ArpackError as error:
            LOG.warning(f"task.structure: Laplacian positions are 0: {error}")
            return found
        vector = vector[:, np.argsort(-value, kind="stable")]
    vector = vector[:, 1 : count + 1] * np.sqrt(len(members))
    sign = np.where(np.power(vector, 3).sum(0) < 0, -1.0, 1.0)
    found[members, :count] = vector * sign
    return found
