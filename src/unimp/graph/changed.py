"""A graph with more nodes, other feature rows, and edges added or removed, in linear time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from unimp.graph.csr import Places, index_dtype, pick_entries
from unimp.graph.features import SparseFeatures
from unimp.graph.graph import Graph


def changed_graph(
    graph: Graph,
    *,
    num_nodes: int | None = None,
    without: Tensor | None = None,
    edges: Tensor | None = None,
    edge_attr: Tensor | None = None,
    nodes: Tensor | None = None,
    x: Tensor | SparseFeatures | None = None,
) -> Graph:
    """Remove the edges `without`, add or replace `edges`, and set the features of `nodes`.

    num_nodes: the number of nodes afterwards; new nodes come last and need features if others have
    some. without, edges: [2, m], sources above targets. Afterwards, each of `edges` exists once
    with its row of edge_attr [m, d_e], whether it existed before or not. nodes: [r], x: [r, F].

    Rows of the graph are copied and not sorted again: this takes a few milliseconds per million
    edges.
    """
    num_nodes = num_nodes or graph.num_nodes
    if nodes is not None and x is not None and graph.x is not None:
        graph = replace(graph, x=with_rows(graph.x, num_nodes, nodes, x))
    indptr, source = graph.indptr.numpy().astype(np.int64), graph.source.numpy()
    indptr = np.pad(indptr, (0, num_nodes - graph.num_nodes), mode="edge")
    edge_id = graph.edge_rows().numpy()
    gone = [pairs.numpy() for pairs in (without, edges) if pairs is not None and pairs.numel()]
    if gone:
        slots = entries_of_pairs(indptr, source, np.concatenate(gone, 1))[1]
        target = np.searchsorted(indptr, slots, side="right") - 1
        source, edge_id = np.delete(source, slots), np.delete(edge_id, slots)
        indptr = _shifted(indptr, target, -1)
    attr = graph.edge_attr
    if edges is not None and edges.numel():
        order = np.lexsort(edges.numpy())
        pairs = edges.numpy()[:, order]
        places = entries_of_pairs(indptr, source, pairs)[0]
        if attr is None:
            first = int(edge_id.max()) + 1 if len(edge_id) else 0
        else:
            assert edge_attr is not None
            first = len(attr)
            attr = torch.cat((attr, edge_attr[torch.from_numpy(order)].to(attr)))
        dtype = index_dtype(max(num_nodes, len(source) + len(order), first + len(order)))
        wide = np.int32 if dtype == torch.int32 else np.int64
        new_id = np.arange(first, first + len(order))
        source = np.insert(source.astype(wide, copy=False), places, pairs[0])
        edge_id = np.insert(edge_id.astype(wide, copy=False), places, new_id)
        indptr = _shifted(indptr, pairs[1], 1)
    stored = torch.from_numpy(source).dtype
    return Graph(
        torch.from_numpy(indptr).to(stored),
        torch.from_numpy(source),
        torch.from_numpy(edge_id),
        graph.x,
        attr,
    )


def entries_of_pairs(indptr: Places, source: Places, pairs: Places) -> tuple[Places, Places]:
    """Find edges from pairs[0] to pairs[1] among in-edges that are sorted by source.

    Returns the place at which each pair is inserted to keep the order, and the entries of the
    pairs that exist, with duplicates, each once and in increasing order.
    """
    target, where = np.unique(pairs[1], return_inverse=True)
    count, entries = pick_entries(indptr, target)
    span = int(max(source.max(initial=0), pairs[0].max(initial=0))) + 1
    keys = np.repeat(np.arange(len(target)), count) * span + source[entries]
    wanted = where * span + pairs[0]
    first, end = (np.searchsorted(keys, wanted, side) for side in ("left", "right"))
    begin = np.cumsum(count) - count  # of each row among `keys`
    places = indptr[target][where] + first - begin[where]
    found = np.repeat(first - np.cumsum(end - first) + (end - first), end - first)
    found = found + np.arange(len(found))
    return places, np.unique(entries[found])


def with_rows(
    x: Tensor | SparseFeatures, num_rows: int, rows: Tensor, values: Tensor | SparseFeatures
) -> Tensor | SparseFeatures:
    """Return a copy of features with `num_rows` rows, in which `rows` have the given values."""
    if isinstance(x, Tensor):
        assert isinstance(values, Tensor)
        more = x.new_zeros(num_rows - len(x), x.shape[1])
        x = torch.cat((x, more))
        x[rows] = values.to(x)
        return x
    assert isinstance(values, SparseFeatures)
    # Stack both and select rows: the last value of a row is used.
    last = int(x.indptr[-1])
    stacked = SparseFeatures(
        torch.cat((x.indptr.long(), values.indptr[1:].long() + last)),
        torch.cat((x.column, values.column.to(x.column.dtype))),
        torch.cat((x.value, values.value)),
        (x.shape[0] + values.shape[0], x.shape[1]),
    )
    chosen = torch.arange(num_rows)
    chosen[rows] = torch.arange(len(rows)) + x.shape[0]
    return stacked[chosen]


def _shifted(indptr: Places, target: Places, step: int) -> Places:
    """Return row pointers after each of `target` gained or lost an entry."""
    change = np.bincount(target, minlength=len(indptr) - 1) * step
    shifted: Places = indptr.copy()
    shifted[1:] += np.cumsum(change)
    return shifted
