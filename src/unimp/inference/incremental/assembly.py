"""Build hops for the rows to compute again, over stored rows and rows that are new."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unimp.graph.csr import pick_entries
from unimp.graph.graph import Graph
from unimp.graph.hop import Hop
from unimp.inference.exact import bounded_runs
from unimp.inference.incremental.changes import Change
from unimp.inference.incremental.reach import Nodes, Reach
from unimp.inference.incremental.rewiring import Rewiring
from unimp.model.gcn import convolution_weight


@dataclass(frozen=True, eq=False)
class Planned:
    """A change in the node numbers of the stored graph, and the rows to compute for it."""

    change: Change  # complete and checked
    nodes: Tensor  # nodes with a new label, in increasing order
    labels: Tensor  # their new labels
    rewiring: Rewiring
    targets: Tensor | None  # in the node numbers of the task
    rows: list[Nodes]  # the rows to compute again, of h⁰ and of each layer's output
    propagated: Tensor | None  # the propagated labels of rows[0], if they are inputs
    cost: int


@dataclass(frozen=True, eq=False)
class _InEdges:
    """The in-edges of some rows after a change."""

    count: Nodes  # [T] in-edges of each row
    source: Nodes  # [E] nodes
    attr: Tensor | None  # [E, d_e]


@dataclass(frozen=True, eq=False)
class _Piece:
    """The in-edges of some rows of one plan."""

    rows: Nodes  # [T]
    count: Nodes  # [T] in-edges of each
    source: Nodes  # [E] nodes
    found: Nodes  # [E] position of the source among the new rows; −1: its stored row is used
    own: Nodes  # [T] the same for the row itself
    attr: Tensor | None  # [E, d_e]


@dataclass(frozen=True, eq=False)
class Part:
    """A hop that joins pieces, and its source rows: targets, then stored rows, then new rows."""

    nodes: Tensor  # [T] the targets
    own: Tensor  # [T] positions of their rows among the new ones; −1: the stored rows are used
    held: Tensor  # sources with stored rows
    fresh: slice  # sources with new rows
    hop: Hop


class Assembly:
    """Builds the hops of one graph, which may be a part of a larger one.

    degrees: in-degree and out-degree of each node in the larger graph, if edge weights depend on
    them; otherwise None.
    """

    def __init__(
        self,
        graph: Graph,
        reach: Reach,
        degrees: tuple[Nodes, Nodes] | None,
        chunk_edges: int,
    ) -> None:
        self.graph, self.reach, self.degrees, self.chunk_edges = graph, reach, degrees, chunk_edges
        self.reserve()

    def reserve(self) -> None:
        """Include the nodes that `reach` now includes; they have no edges yet."""
        self._scratch = np.full(self.reach.num_nodes, -1)
        if self.degrees is not None:
            self.degrees = tuple(
                np.pad(degree, (0, self.reach.num_nodes - len(degree))) for degree in self.degrees
            )  # type: ignore[assignment]

    def parts(self, planned: Sequence[Planned], index: int) -> Iterator[Part]:
        """Yield the in-edges of the planned rows of a layer as hops of bounded size."""
        pieces: list[_Piece] = []
        edges = first = 0
        for one in planned:
            rows, inputs = one.rows[index + 1], one.rows[index]
            for begin, end in bounded_runs(self.reach.in_degree[rows], self.chunk_edges):
                piece = self._piece(one, rows[begin:end], inputs, first)
                if pieces and edges + len(piece.source) > self.chunk_edges:
                    yield self._joined(pieces)
                    pieces, edges = [], 0
                pieces.append(piece)
                edges += len(piece.source)
            first += len(inputs)
        if pieces:
            yield self._joined(pieces)

    def hops(self, one: Planned, index: int) -> Iterator[tuple[Tensor, Hop]]:
        """Yield rows of a layer, and their in-edges as a hop whose sources are all stored nodes."""
        rows = one.rows[index + 1]
        for begin, end in bounded_runs(self.reach.in_degree[rows], self.chunk_edges):
            edges = self._in_edges(one.rewiring, rows[begin:end])
            num_sources = self.reach.num_nodes
            hop = hop_of(edges.count, edges.source, num_sources, edges.attr)
            yield torch.from_numpy(rows[begin:end]), hop

    def _piece(self, one: Planned, rows: Nodes, inputs: Nodes, first: int) -> _Piece:
        """Return the in-edges of some rows of a plan; its new inputs start at position `first`."""
        edges, place = self._in_edges(one.rewiring, rows), self._scratch
        place[inputs] = np.arange(first, first + len(inputs))
        found, own = place[edges.source], place[rows]
        place[inputs] = -1
        return _Piece(rows, edges.count, edges.source, found, own, edges.attr)

    def _in_edges(self, rewiring: Rewiring, rows: Nodes) -> _InEdges:
        """Return the in-edges of some rows, in the order of a graph that is built again."""
        count, slots = pick_entries(self.reach.in_indptr, rows)
        source = self.reach.source[slots]
        if not rewiring:
            return _InEdges(count, source, self.graph.edge_attr_of(torch.from_numpy(slots)))
        at = np.repeat(np.arange(len(rows)), count)
        gone, added = rewiring.gone, rewiring.added
        if gone.shape[1]:
            pairs = self.reach.pairs(source, rows[at])
            kept = ~np.isin(pairs, self.reach.pairs(*gone))
            at, source, slots = at[kept], source[kept], slots[kept]
        if added.shape[1]:
            mine = np.flatnonzero(np.isin(added[1], rows))
            at = np.concatenate((at, np.searchsorted(rows, added[1][mine])))
            source = np.concatenate((source, added[0][mine].astype(source.dtype)))
            slots = np.concatenate((slots, -1 - mine))  # below 0: an added edge
            order = np.lexsort((source, at))
            at, source, slots = at[order], source[order], slots[order]
        if self.degrees is not None:
            attr: Tensor | None = self._reweighted(rewiring, source, rows[at])
        else:
            attr = self._attr_of(rewiring, slots)
        return _InEdges(np.bincount(at, minlength=len(rows)), source, attr)

    def _attr_of(self, rewiring: Rewiring, slots: Nodes) -> Tensor | None:
        """Return the features of edges of the graph, and of added edges: [E, d_e]."""
        if self.graph.edge_attr is None:
            return None
        is_new = slots < 0
        if not is_new.any():
            return self.graph.edge_attr_of(torch.from_numpy(slots))
        assert rewiring.attr is not None
        attr = self.graph.edge_attr.new_empty(len(slots), self.graph.num_edge_features)
        new, old = (torch.from_numpy(np.flatnonzero(part)) for part in (is_new, ~is_new))
        attr[new] = rewiring.attr[torch.from_numpy(-1 - slots[is_new])].to(attr)
        if len(old):
            known = self.graph.edge_attr_of(torch.from_numpy(slots[~is_new]))
            assert known is not None
            attr[old] = known
        return attr

    def _reweighted(self, rewiring: Rewiring, source: Nodes, target: Nodes) -> Tensor:
        """Return the weights of a graph convolution with the degrees after a change."""
        assert self.degrees is not None
        in_degree, out_degree = self.degrees[0][target], self.degrees[1][source]
        gone, added = rewiring.gone, rewiring.added
        for ends, degree, moved, step in (
            (source, out_degree, np.concatenate((gone[0], rewiring.left)), -1),
            (source, out_degree, added[0], 1),
            (target, in_degree, gone[1], -1),
            (target, in_degree, added[1], 1),
        ):
            if not len(moved):
                continue
            nodes, many = np.unique(moved, return_counts=True)
            at = np.searchsorted(nodes, ends).clip(max=len(nodes) - 1)
            degree += step * np.where(nodes[at] == ends, many[at], 0)
        return convolution_weight(torch.from_numpy(in_degree), torch.from_numpy(out_degree))

    def _joined(self, pieces: Sequence[_Piece]) -> Part:
        """Join pieces to one hop: targets first, then stored sources, then new sources."""
        rows, own, source, found, count = (
            np.concatenate([getattr(piece, name) for piece in pieces])
            for name in ("rows", "own", "source", "found", "count")
        )
        is_held = found < 0
        held = self.reach.distinct(source[is_held])
        number = self._scratch
        number[held] = np.arange(len(rows), len(rows) + len(held))
        place = number[source]
        number[held] = -1
        fresh = slice(0, 0)
        if not is_held.all():
            new = found[~is_held]
            fresh = slice(int(new.min()), int(new.max()) + 1)
            place[~is_held] = new + (len(rows) + len(held) - fresh.start)
        num_sources = len(rows) + len(held) + fresh.stop - fresh.start
        attrs = [piece.attr for piece in pieces if piece.attr is not None]
        hop = hop_of(count, place, num_sources, torch.cat(attrs) if attrs else None)
        return Part(
            torch.from_numpy(rows), torch.from_numpy(own), torch.from_numpy(held), fresh, hop
        )


def hop_of(count: Nodes, source: Nodes, num_sources: int, attr: Tensor | None) -> Hop:
    """Build a hop from the number of in-edges of each target, and the rows of their sources."""
    dtype = np.int32 if max(len(source), num_sources) < 2**31 else np.int64
    indptr = np.zeros(len(count) + 1, dtype=dtype)
    np.cumsum(count, out=indptr[1:])
    sources = torch.from_numpy(source.astype(dtype, copy=False))
    return Hop(torch.from_numpy(indptr), sources, num_sources, attr)
