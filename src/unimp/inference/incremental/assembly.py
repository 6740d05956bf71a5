"""Build hops for the rows to compute again, over stored rows and rows that are new."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unimp.graph.graph import Graph
from unimp.graph.hop import Hop
from unimp.inference.exact import bounded_runs
from unimp.inference.incremental.reach import Nodes, Reach, pick
from unimp.model.gcn import convolution_weight


@dataclass(frozen=True, eq=False)
class Planned:
    """A change in the node numbers of the stored graph, and the rows to compute for it."""

    nodes: Tensor  # nodes with a new label, in increasing order
    labels: Tensor  # their new labels
    gone: Tensor  # [2, m] existing edges that are removed
    left: Nodes  # one source per removed edge to a node outside the stored graph
    targets: Tensor | None  # in the node numbers of the task
    rows: list[Nodes]  # the rows to compute again, of h⁰ and of each layer's output
    propagated: Tensor | None  # the propagated labels of rows[0], if they are inputs
    cost: int


@dataclass(frozen=True, eq=False)
class _Piece:
    """The in-edges of some rows of one plan."""

    rows: Nodes  # [T]
    count: Nodes  # [T] in-edges of each
    source: Nodes  # [E] nodes
    found: Nodes  # [E] position of the source among the new rows; −1: its stored row is used
    own: Nodes  # [T] the same for the row itself
    slots: Nodes  # [E] positions of the edges in the graph
    weight: Tensor | None  # [E, 1] edge weights after changed degrees; None: no degree changed


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
        self._scratch = np.full(graph.num_nodes, -1)

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

    def _piece(self, one: Planned, rows: Nodes, inputs: Nodes, first: int) -> _Piece:
        """Return the in-edges of some rows of a plan; its new inputs start at position `first`."""
        count, slots = pick(self.reach.in_indptr, rows)
        source, place = self.reach.source[slots], self._scratch
        place[inputs] = np.arange(first, first + len(inputs))
        found, own = place[source], place[rows]
        place[inputs] = -1
        weight = None
        if one.gone.shape[1] or len(one.left):
            target = np.repeat(rows, count)
            kept = ~np.isin(self.reach.pairs(source, target), self.reach.pairs(*one.gone.numpy()))
            if self.degrees is not None:
                weight = self._reweighted(one, source, target)[torch.from_numpy(kept)]
            count = np.bincount(np.repeat(np.arange(len(rows)), count)[kept], minlength=len(rows))
            source, found, slots = source[kept], found[kept], slots[kept]
        return _Piece(rows, count, source, found, own, slots, weight)

    def _reweighted(self, one: Planned, source: Nodes, target: Nodes) -> Tensor:
        """Return the weights of a graph convolution with the remaining degrees."""
        assert self.degrees is not None
        in_degree, out_degree = self.degrees[0][target], self.degrees[1][source]
        sources, targets = one.gone.numpy()
        for ends, gone, degree in (
            (source, np.concatenate((sources, one.left)), out_degree),
            (target, targets, in_degree),
        ):
            if not len(gone):
                continue
            nodes, many = np.unique(gone, return_counts=True)
            at = np.searchsorted(nodes, ends).clip(max=len(nodes) - 1)
            degree -= np.where(nodes[at] == ends, many[at], 0)
        return convolution_weight(torch.from_numpy(in_degree), torch.from_numpy(out_degree))

    def _joined(self, pieces: Sequence[_Piece]) -> Part:
        """Join pieces to one hop: targets first, then stored sources, then new sources."""
        rows, own, source, found, count, slots = (
            np.concatenate([getattr(piece, name) for piece in pieces])
            for name in ("rows", "own", "source", "found", "count", "slots")
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
        dtype = np.int32 if max(len(source), num_sources) < 2**31 else np.int64
        indptr = np.zeros(len(rows) + 1, dtype=dtype)
        np.cumsum(count, out=indptr[1:])
        attr = self.graph.edge_attr_of(torch.from_numpy(slots))
        begin = 0
        for piece in pieces:
            if piece.weight is not None and attr is not None:
                attr[begin : begin + len(piece.slots)] = piece.weight
            begin += len(piece.slots)
        hop = Hop(
            torch.from_numpy(indptr), torch.from_numpy(place.astype(dtype)), num_sources, attr
        )
        return Part(
            torch.from_numpy(rows), torch.from_numpy(own), torch.from_numpy(held), fresh, hop
        )
