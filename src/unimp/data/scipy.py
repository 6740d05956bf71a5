"""Graphs from adjacency matrices of SciPy or NumPy and back: an entry is an edge row → column."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from unimp.errors import GraphError
from unimp.graph.features import as_tensor
from unimp.graph.graph import Graph


def graph_from_adjacency(matrix: Any, *, x: Any = None, weighted: bool = False) -> Graph:
    """Return the graph whose edges are the entries of a square matrix: row → column.

    Every stored entry of a scipy.sparse matrix is an edge; in a dense array, every entry that is
    not zero. With `weighted`, the entries become one column of edge features.
    """
    if not hasattr(matrix, "tocoo"):
        matrix = as_tensor(matrix, "an adjacency matrix").numpy()
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        hint = " For a list of edges, use Graph.from_edges." if 2 in matrix.shape else ""
        raise GraphError(
            f"an adjacency matrix must be square, with one row and one column per node, but its "
            f"shape is {tuple(matrix.shape)}.{hint}"
        )
    if hasattr(matrix, "tocoo"):
        entries = matrix.tocoo()
        source, target, value = entries.row, entries.col, entries.data
    else:
        source, target = np.nonzero(matrix)
        value = matrix[source, target]
    return Graph.from_edges(
        np.stack((source, target)).astype(np.int64),
        num_nodes=int(matrix.shape[0]),
        x=x,
        edge_attr=value if weighted else None,
    )


def graph_to_adjacency(graph: Graph, *, weighted: bool = False) -> Any:
    """Return a scipy.sparse.csr_array with one entry per edge, in the row of its source.

    The entries are 1, or with `weighted` the only column of edge features. Duplicate edges are
    refused: see `Graph.deduplicate`.
    """
    from scipy.sparse import coo_array

    graph = graph.to("cpu")
    attr = graph.edge_attr_of(None)
    if weighted and (attr is None or attr.shape[1] != 1):
        raise GraphError(
            f"weighted needs exactly one edge feature, but the graph has {graph.num_edge_features}."
        )
    if graph.deduplicate("first").num_edges < graph.num_edges:
        raise GraphError("the graph has duplicate edges. Merge them with graph.deduplicate().")
    value = attr[:, 0] if weighted and attr is not None else torch.ones(graph.num_edges)
    ends = (graph.source.numpy(), graph.target.numpy())
    return coo_array((value.numpy(), ends), shape=2 * (graph.num_nodes,)).tocsr()
