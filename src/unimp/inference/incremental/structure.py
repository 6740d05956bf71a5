"""Structural columns that follow a change of the graph."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from unimp.data.structure import NUM_COLUMNS, structural_columns
from unimp.graph.features import SparseFeatures
from unimp.graph.graph import Graph
from unimp.inference.incremental.changes import Change


def with_structural_rows(change: Change, graph: Graph) -> Change:
    """Return a checked change whose features include structural columns.

    graph: the graph before the change, whose last features are structural columns. In the given
    change, features are without them. If edges or nodes change, the columns of all nodes are
    computed again, as `with_structure` does. Self-loops do not count.
    """
    assert graph.x is not None
    bare = replace(graph, x=None, edge_attr=None)
    stored = _columns(graph.x)
    if not change.changes_edges:
        if change.featured is None or change.x is None:
            return change
        return replace(change, x=_joined(change.x, stored[change.featured]))
    without_features = replace(change, featured=None, x=None, edge_attr=None)
    columns = structural_columns(without_features.graph_from(bare)).to(stored)
    differs = torch.ones(len(columns), dtype=torch.bool)
    differs[: len(stored)] = columns[: len(stored)].ne(stored).any(1)
    if change.featured is not None:
        differs[change.featured] = True
    nodes = torch.nonzero(differs).squeeze(1)
    if not len(nodes):
        return change
    return replace(change, featured=nodes, x=_joined(_rows(change, graph.x, nodes), columns[nodes]))


def _columns(x: Tensor | SparseFeatures) -> Tensor:
    if isinstance(x, SparseFeatures):
        return torch.from_numpy(x.to_scipy()[:, -NUM_COLUMNS:].toarray())
    return x[:, -NUM_COLUMNS:]


def _rows(
    change: Change, x: Tensor | SparseFeatures, nodes: Tensor
) -> Tensor | SparseFeatures | None:
    """Return the features of nodes after a change, without structural columns."""
    width = int(x.shape[1]) - NUM_COLUMNS
    if not width:
        return None
    place = torch.arange(int(x.shape[0]) + change.new_nodes)
    if isinstance(x, SparseFeatures):
        from scipy.sparse import vstack

        parts = [x.to_scipy()[:, :width]]
        if change.featured is not None and isinstance(change.x, SparseFeatures):
            parts.append(change.x.to_scipy())
            place[change.featured] = (
                len(place) - change.new_nodes + torch.arange(len(change.featured))
            )
        return SparseFeatures.from_scipy(vstack(parts, format="csr")[place[nodes].numpy()])
    rows = x.new_zeros(len(place), width)
    rows[: len(x)] = x[:, :width]
    if change.featured is not None and isinstance(change.x, Tensor):
        rows[change.featured] = change.x.to(rows)
    return rows[nodes]


def _joined(x: Tensor | SparseFeatures | None, columns: Tensor) -> Tensor | SparseFeatures:
    if x is None:
        return columns
    if isinstance(x, SparseFeatures):
        from scipy.sparse import csr_array, hstack

        rows = hstack([x.to_scipy(), csr_array(columns.numpy())], format="csr")
        return SparseFeatures.from_scipy(rows)
    return torch.cat((x.to(columns), columns), 1)
