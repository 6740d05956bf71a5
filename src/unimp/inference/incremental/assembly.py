"""The in-edges of rows to be computed anew, as hops over rows held and rows computed before."""

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
    """A change as it is here: nodes numbered as in the graph held."""

    nodes: Tensor  # whose labels change, in rising order
    labels: Tensor  # what they become
    gone: Tensor  # [2, m] edges that are there, and are taken away
    left: Nodes  # sources of edges taken away to nodes that are not held, as often as they had one
    targets: Tensor | None  # as the task numbers them
    rows: list[Nodes]  # to compute anew, of h⁰ and of each layer's output
    cost: int


@dataclass(frozen=True, eq=False)
class _Piece:
    """The in-edges of some rows of one plan."""

    rows: Nodes  # [T]
    count: Nodes  # [T] in-edges of each
    source: Nodes  # [E] nodes
    found: Nodes  # [E] where the source's row stands among those computed anew; −1: it is held
    own: Nodes  # [T] the same for the row itself
    slots: Nodes  # [E] where the edges stand in the graph
    weight: Tensor | None  # [E, 1] what degrees that changed make of the edges; None: none did


@dataclass(frozen=True, eq=False)
class Part:
    """A hop of pieces, and where the rows of its sources are: own ones, held, computed anew."""

    nodes: Tensor  # [T] the targets
    own: Tensor  # [T] where their rows stand among those computed anew; −1: they are held
    held: Tensor  # sources whose rows are held
    fresh: slice  # sources whose rows are computed anew
    hop: Hop


class Assembly:
    """Makes the hops of one graph; degrees may be those of a larger one that it is a part of.

    degrees: in-degree and out-degree of each node, where weights follow from them; else None.
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
        """The in-edges of the planned rows of a layer, as hops of bounded size."""
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
        """The in-edges of some rows of a plan whose inputs, from `first` on, are computed anew."""
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
        """The weights of a graph convolution, with the degrees that are left."""
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
        """Several pieces as one hop: targets first, then sources held, then sources anew."""
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
            anew = found[~is_held]
            fresh = slice(int(anew.min()), int(anew.max()) + 1)
            place[~is_held] = anew + (len(rows) + len(held) - fresh.start)
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
