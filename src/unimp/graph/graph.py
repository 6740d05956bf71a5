"""An immutable graph: in-edges as compressed rows, node features and edge features."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from unimp.config.arguments import checked
from unimp.errors import GraphError, nearest_names
from unimp.graph.csr import group, index_dtype, pick_rows, row_of_entry
from unimp.graph.features import SparseFeatures, as_float, as_tensor, rows_of
from unimp.graph.hop import Hop, is_on
from unimp.graph.node_view import NodeView

MAX_NODES = 2**33
Merge = Literal["mean", "sum", "max", "min", "first"]


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes 0..N−1, their in-edges, and the features of both.

    Node i receives from source[indptr[i]:indptr[i+1]], sorted by source. Attention normalizes
    over in-edges, so they are stored together. Edge slot k has the features edge_attr[edge_id[k]];
    an edge and the reverse edge that `symmetrize` adds share one row. `edge_id` is None if slot k
    has row k, as in a graph that is mapped from disk. The row pointers of such a graph are int64,
    because it may have more than 2³¹ edges, and its sources are int32.

    Create a graph with `Graph.from_edges`, which checks everything. `x is None` means that nodes
    have no features; `edge_attr is None` means that edges have none. Methods return new graphs.
    """

    indptr: Tensor  # [N+1]
    source: Tensor  # [E]
    edge_id: Tensor | None  # [E] row of edge_attr; without edge features, position in the input
    x: Tensor | SparseFeatures | None = None  # [N, F]; float16 only if it is mapped from disk
    edge_attr: Tensor | None = None  # [distinct edge ids, d_e]

    @classmethod
    @checked
    def from_edges(
        cls, edge_index: Any, *, num_nodes: int | None = None, x: Any = None, edge_attr: Any = None
    ) -> Graph:
        """Build a graph from an edge list [2, E]: row 0 the sources, row 1 the targets of messages.

        Arguments may be arrays, tensors or nested lists of numbers; x may also be `SparseFeatures`
        or any scipy.sparse matrix. Without `num_nodes`, the number of nodes follows from x, or else
        from the largest node number of the edges. Duplicate edges and self-loops are kept: see
        `deduplicate` and `without_self_loops`.
        """
        features = _checked_features(x)
        source, target = _checked_edges(edge_index)
        if num_nodes is None:
            if features is not None:
                num_nodes = int(features.shape[0])
            else:
                num_nodes = 1 + max(int(source.max()), int(target.max())) if len(source) else 0
        if num_nodes < 1:
            raise GraphError("a graph needs at least one node; pass x, num_nodes or edges")
        if num_nodes > MAX_NODES:
            raise GraphError(f"num_nodes is {num_nodes}; a graph has at most {MAX_NODES:,} nodes")
        for end, name in ((source, "source"), (target, "target")):
            _check_range(end, num_nodes, name)
        _check_rows(features, num_nodes)
        if edge_attr is not None:
            edge_attr = as_float(edge_attr, "edge features")
            if edge_attr.ndim == 1:
                edge_attr = edge_attr[:, None]
            if edge_attr.ndim != 2 or edge_attr.shape[0] != len(source):
                raise GraphError(
                    f"edge features have shape {tuple(edge_attr.shape)} for {len(source)} edges; "
                    "they need one row per edge, in the order of the edges"
                )
        edge_id = torch.arange(len(source), dtype=index_dtype(len(source)))
        return cls(*_sorted_by_target(source, target, edge_id, num_nodes), features, edge_attr)

    @property
    def num_nodes(self) -> int:
        return self.indptr.numel() - 1

    @property
    def num_edges(self) -> int:
        return self.source.numel()

    @property
    def num_features(self) -> int:
        return 0 if self.x is None else int(self.x.shape[1])

    @property
    def num_edge_features(self) -> int:
        return 0 if self.edge_attr is None else int(self.edge_attr.shape[1])

    @property
    def device(self) -> torch.device:
        return self.source.device

    @property
    def nbytes(self) -> int:
        stored = (self.indptr, self.source, self.edge_id, self.x, self.edge_attr)
        return sum(array.nbytes for array in stored if array is not None)

    @cached_property
    def target(self) -> Tensor:
        """The target of each edge: [E]."""
        return row_of_entry(self.indptr).to(self.source.dtype)

    @property
    def edge_index(self) -> Tensor:
        """The edges as a list [2, E]: a row of sources and a row of targets."""
        return torch.stack((self.source, self.target))

    @property
    def in_degree(self) -> Tensor:
        return self.indptr[1:] - self.indptr[:-1]

    @cached_property
    def hop(self) -> Hop:
        """The whole graph as one square hop, whose indices have one type."""
        indptr, source = self.indptr, self.source
        if indptr.dtype != source.dtype:
            dtype = index_dtype(max(self.num_nodes, self.num_edges))
            indptr, source = indptr.to(dtype), source.to(dtype)
        return Hop(indptr, source, self.num_nodes, self.edge_attr_of(None))

    @property
    def nodes(self) -> NodeView:
        """All nodes as rows that scikit-learn can select: `graph.nodes[mask]`."""
        return NodeView(self, np.arange(self.num_nodes))

    @property
    def arrays(self) -> list[Tensor | None]:
        """The content of the graph: in-edges, edge features in slot order, and x."""
        x, edges = self.x, [self.indptr, self.source, self.edge_attr_of(None)]
        if not isinstance(x, SparseFeatures):
            return [*edges, x]
        # int64, so that the content does not depend on the stored integer type.
        return [*edges, x.indptr.long(), x.column.long(), x.value]

    def edge_attr_of(self, slots: Tensor | None) -> Tensor | None:
        """The features of the edges in some slots (None: all, in slot order): [len(slots), d_e]."""
        if self.edge_attr is None:
            return None
        if self.edge_id is None:
            rows = self.edge_attr if slots is None else self.edge_attr.index_select(0, slots)
        else:
            rows = self.edge_attr.index_select(0, self.edge_rows(slots))
        # 16-bit numbers only save space on disk.
        return rows.float() if rows.dtype == torch.float16 else rows

    def edge_rows(self, slots: Tensor | None = None) -> Tensor:
        """The row of `edge_attr` of the edges in some slots (None: all): [len(slots)]."""
        if self.edge_id is not None:
            return self.edge_id if slots is None else self.edge_id.index_select(0, slots)
        if slots is not None:
            return slots
        dtype = index_dtype(self.num_edges)
        return torch.arange(self.num_edges, dtype=dtype, device=self.device)

    @property
    def is_symmetric(self) -> bool:
        """Whether the reverse of every edge exists."""
        # Without duplicates, grouping by source then gives the same arrays as grouping by target.
        indptr, order = group(self.source, self.num_nodes)
        if torch.equal(indptr, self.indptr) and torch.equal(self.target[order], self.source):
            return True
        source, target = self.source.long(), self.target.long()
        there, back = source * self.num_nodes + target, target * self.num_nodes + source
        return bool(torch.isin(back, there).all())

    @checked
    def symmetrize(self, merge: Merge = "mean") -> Graph:
        """Add the reverse of every edge, with the same features, and merge duplicate edges."""
        other = self.source != self.target  # a self-loop is its own reverse
        source = torch.cat((self.source, self.target[other]))
        target = torch.cat((self.target, self.source[other]))
        rows = self.edge_rows()
        edge_id = torch.cat((rows, rows[other]))
        both = _sorted_by_target(source, target, edge_id, self.num_nodes)
        return Graph(*both, self.x, self.edge_attr).deduplicate(merge)

    @checked
    def deduplicate(self, merge: Merge = "mean") -> Graph:
        """Keep one edge per (source, target); `merge` combines the features of its duplicates."""
        if merge not in get_args(Merge):
            raise GraphError(
                f"there is no merge rule {merge!r}; {nearest_names(merge, get_args(Merge))}"
            )
        if self.num_edges == 0:
            return self
        first = torch.ones(self.num_edges, dtype=torch.bool)
        first[1:] = (self.source[1:] != self.source[:-1]) | (self.target[1:] != self.target[:-1])
        if bool(first.all()):
            return self
        kept = self._keep(first)
        if self.edge_attr is None or merge == "first":
            return kept
        edge_id, edge_attr = _merge_edges(first, self.edge_rows(), self.edge_attr, merge)
        return replace(kept, edge_id=edge_id, edge_attr=edge_attr)

    def with_self_loops(self) -> Graph:
        """Add a self-loop to each node that has none; the edge features of a new loop are zero."""
        has_loop = torch.zeros(self.num_nodes, dtype=torch.bool)
        has_loop[self.source[self.source == self.target].long()] = True
        missing = torch.nonzero(~has_loop).squeeze(1).to(self.source.dtype)
        if missing.numel() == 0:
            return self
        edge_attr = self.edge_attr
        rows = self.edge_rows()
        next_id = int(rows.max()) + 1 if self.num_edges else 0
        if edge_attr is None:
            new_id = torch.arange(next_id, next_id + missing.numel())
        else:
            # All new loops share one row of zeros.
            new_id = torch.full((missing.numel(),), edge_attr.shape[0])
            edge_attr = torch.cat((edge_attr, edge_attr.new_zeros(1, edge_attr.shape[1])))
        source, target = torch.cat((self.source, missing)), torch.cat((self.target, missing))
        edge_id = torch.cat((rows.long(), new_id))
        both = _sorted_by_target(source, target, edge_id, self.num_nodes)
        return Graph(*both, self.x, edge_attr)

    def without_self_loops(self) -> Graph:
        return self._keep(self.source != self.target)

    def without_edges(self, source: Tensor, target: Tensor) -> Graph:
        """Remove the edges from source[k] to target[k], including all duplicates."""
        removed = source.long() * self.num_nodes + target.long()
        pairs = self.source.long() * self.num_nodes + self.target.long()
        return self._keep(~torch.isin(pairs, removed))

    def induced_subgraph(self, nodes: Tensor) -> Graph:
        """The subgraph of `nodes` and the edges among them; new node i is nodes[i]."""
        nodes = self.checked_nodes(nodes)
        local = torch.full((self.num_nodes,), -1, dtype=self.source.dtype, device=self.device)
        number_nodes(nodes, local)
        picked, slots = pick_rows(self.indptr, nodes)
        source = local[self.source[slots].long()]
        inside = source >= 0
        slots, source = slots[inside], source[inside]
        # The number of kept edges before each position gives the new row pointers.
        kept = torch.zeros(inside.numel() + 1, dtype=torch.int64, device=self.device)
        torch.cumsum(inside, 0, out=kept[1:])
        dtype = index_dtype(max(slots.numel(), nodes.numel()))
        return replace(
            self,
            indptr=kept[picked.long()].to(dtype),
            source=source.to(dtype),
            edge_id=self.edge_rows(slots),
            x=None if self.x is None else rows_of(self.x, nodes),
        )

    def renumber(self, order: Tensor) -> Graph:
        """The same graph with other node numbers: new node i is old node order[i]."""
        order = self.checked_nodes(order)
        if order.numel() != self.num_nodes:
            raise GraphError(
                f"renumbering needs each of the {self.num_nodes} nodes once, not {order.numel()} "
                "nodes; for a part of the graph use induced_subgraph"
            )
        moved = self.induced_subgraph(order)
        edges = _sorted_by_target(moved.source, moved.target, moved.edge_rows(), moved.num_nodes)
        return Graph(*edges, moved.x, moved.edge_attr)

    def with_features(self, x: Any) -> Graph:
        """The same edges with other node features (None: without any)."""
        features = _checked_features(x)
        _check_rows(features, self.num_nodes)
        return replace(self, x=features)

    def without_edge_attr(self) -> Graph:
        return replace(self, edge_attr=None)

    def to(self, device: torch.device | str) -> Graph:
        if is_on(self.source, device):
            return self
        return Graph(
            indptr=self.indptr.to(device),
            source=self.source.to(device),
            edge_id=None if self.edge_id is None else self.edge_id.to(device),
            x=None if self.x is None else self.x.to(device),
            edge_attr=None if self.edge_attr is None else self.edge_attr.to(device),
        )

    def copied(self) -> Graph:
        """Copy the graph, so that arrays that are mapped from files are in memory."""
        x = None if self.x is None else self.x.clone()
        attr, edge_id = (None if a is None else a.clone() for a in (self.edge_attr, self.edge_id))
        return Graph(self.indptr.clone(), self.source.clone(), edge_id, x, attr)

    def _keep(self, chosen: Tensor) -> Graph:
        kept = torch.zeros(self.num_edges + 1, dtype=torch.int64)
        torch.cumsum(chosen, 0, out=kept[1:])
        indptr = kept[self.indptr.long()].to(self.indptr.dtype)
        edge_id = self.edge_rows(torch.nonzero(chosen).squeeze(1))
        return replace(self, indptr=indptr, source=self.source[chosen], edge_id=edge_id)

    def checked_nodes(self, nodes: Tensor) -> Tensor:
        """Check that node numbers are valid; return them as int64 on the graph's device."""
        return checked_numbers(nodes, self.num_nodes).to(self.device)

    def __repr__(self) -> str:
        kind = "sparse " if isinstance(self.x, SparseFeatures) else ""
        parts = [f"{self.num_nodes:,} nodes", f"{self.num_edges:,} in-edges"]
        if self.x is not None:
            parts.append(f"{self.num_features} {kind}features")
        if self.edge_attr is not None:
            parts.append(f"{self.num_edge_features} edge features")
        return f"Graph({', '.join(parts)})"


def checked_numbers(nodes: Tensor, num_nodes: int) -> Tensor:
    """Check that node numbers are valid in a graph of `num_nodes`; return them as int64."""
    nodes = as_tensor(nodes, "nodes")
    if nodes.numel() and nodes.dtype not in _INTEGERS:
        raise GraphError(f"nodes must be integer node numbers, not {_kind(nodes)}")
    nodes = nodes.long()
    _check_range(nodes, num_nodes, "node")
    return nodes


def number_nodes(nodes: Tensor, local: Tensor) -> None:
    """Store the position of each of `nodes` in `local`, one entry per node of the graph."""
    position = torch.arange(len(nodes), dtype=local.dtype, device=local.device)
    local[nodes] = position
    if not torch.equal(local[nodes], position):
        raise GraphError("a node occurs twice; list each node once")


def _sorted_by_target(
    source: Tensor, target: Tensor, edge_id: Tensor, num_nodes: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Sort edges by (target, source), so that rows are contiguous and duplicates are adjacent.

    Returns the first three fields of a graph: indptr, source and edge_id.
    """
    dtype = index_dtype(max(num_nodes, len(source)))
    source, target = source.to(dtype), target.to(dtype)
    # Two stable counting sorts, the less significant key first.
    by_source = group(source, num_nodes)[1].long()
    indptr, by_target = group(target[by_source], num_nodes)
    order = by_source[by_target.long()]
    largest = int(edge_id.max()) if len(edge_id) else 0
    return indptr, source[order], edge_id[order].to(index_dtype(largest))


def _merge_edges(
    first: Tensor, edge_id: Tensor, edge_attr: Tensor, merge: Merge
) -> tuple[Tensor, Tensor]:
    """Compute ids and features of merged edges; rows that were already shared stay shared.

    first: [E], whether an edge is kept; those that follow it are merged with it.
    """
    unique = (torch.cumsum(first, 0) - 1).long()  # [E] the kept edge of each slot
    merged_id = edge_id[first].long()
    differs = edge_id.long() != merged_id[unique]
    groups = torch.unique(unique[differs])  # the kept edges that merge several rows
    if groups.numel() == 0:
        return merged_id.to(edge_id.dtype), edge_attr
    place = torch.full_like(merged_id, -1)
    place[groups] = torch.arange(groups.numel())
    involved = place[unique] >= 0
    rows, into = edge_attr[edge_id[involved].long()], place[unique[involved]]
    reduce: dict[str, str] = {"mean": "mean", "sum": "sum", "max": "amax", "min": "amin"}
    merged = torch.zeros(groups.numel(), edge_attr.shape[1]).scatter_reduce_(
        0, into[:, None].expand_as(rows), rows, reduce[merge], include_self=False
    )
    merged_id[groups] = edge_attr.shape[0] + torch.arange(groups.numel())
    edge_attr = torch.cat((edge_attr, merged))
    # Drop rows that no edge uses any more.
    used, compact = torch.unique(merged_id, return_inverse=True)
    return compact.to(index_dtype(used.numel())), edge_attr[used]


def _checked_features(x: Any) -> Tensor | SparseFeatures | None:
    if x is None or isinstance(x, SparseFeatures):
        return x
    if hasattr(x, "tocsr"):
        return SparseFeatures.from_scipy(x)
    features = as_float(x, "node features")
    if features.ndim != 2:
        raise GraphError(
            f"node features have shape {tuple(features.shape)}; they need one row per node and one "
            "column per feature"
        )
    return features


def _check_rows(features: Tensor | SparseFeatures | None, num_nodes: int) -> None:
    if features is not None and features.shape[0] != num_nodes:
        raise GraphError(
            f"x has {features.shape[0]} rows for {num_nodes} nodes; it needs one row per node, in "
            "the order of the node numbers"
        )


def _checked_edges(edge_index: Any) -> tuple[Tensor, Tensor]:
    edges = as_tensor(edge_index, "edges")
    if edges.ndim != 2 or edges.shape[0] != 2:
        hint = "; transpose it" if edges.ndim == 2 and edges.shape[1] == 2 else ""
        raise GraphError(
            f"edges have shape {tuple(edges.shape)}; they need shape (2, E): a row of sources and "
            f"a row of targets{hint}"
        )
    if edges.numel() and edges.dtype not in _INTEGERS:
        raise GraphError(f"edges have the type {_kind(edges)}; they must be integer node numbers")
    return edges[0].long(), edges[1].long()


_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _check_range(nodes: Tensor, num_nodes: int, name: str) -> None:
    outside = (nodes < 0) | (nodes >= num_nodes)
    if bool(outside.any()):
        place = int(torch.nonzero(outside)[0])
        what = f"{name} of edge {place}" if name != "node" else f"entry {place}"
        raise GraphError(
            f"{what} is {int(nodes[place])}, but nodes are numbered 0..{num_nodes - 1} "
            f"({int(outside.sum())} such numbers in total); increase num_nodes, or renumber the "
            "nodes"
        )
