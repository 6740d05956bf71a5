"""How far a change is felt: the rows of each layer that it changes and that an answer rests on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from unimp.graph.csr import group
from unimp.graph.graph import Graph

Nodes = npt.NDArray[np.int64]  # node numbers, rising, none twice
NOBODY: Nodes = np.empty(0, dtype=np.int64)


class Reach:
    """The edges of a graph both ways, to walk along and against them."""

    def __init__(self, graph: Graph) -> None:
        self.num_nodes = graph.num_nodes
        self.in_indptr, self.source = graph.indptr.numpy().astype(np.int64), graph.source.numpy()
        out_indptr, slot = group(graph.source, graph.num_nodes)
        self.out_indptr = out_indptr.numpy().astype(np.int64)
        self.target = graph.target.numpy()[slot.numpy()]
        self.in_degree, self.out_degree = np.diff(self.in_indptr), np.diff(self.out_indptr)
        self._mask = np.zeros(graph.num_nodes, dtype=bool)

    def sources(self, nodes: Nodes) -> Nodes:
        """Who has an edge to one of `nodes`."""
        return self.distinct(self.source[pick(self.in_indptr, nodes)[1]])

    def targets(self, nodes: Nodes) -> Nodes:
        """Whom one of `nodes` has an edge to."""
        return self.distinct(self.target[pick(self.out_indptr, nodes)[1]])

    def with_sources(self, nodes: Nodes, alone: Nodes = NOBODY) -> Nodes:
        joined = np.setdiff1d(nodes, alone, assume_unique=True) if len(alone) else nodes
        return self.distinct(self.source[pick(self.in_indptr, joined)[1]], nodes)

    def with_targets(self, nodes: Nodes, *more: Nodes) -> Nodes:
        return self.distinct(self.target[pick(self.out_indptr, nodes)[1]], nodes, *more)

    def backward(self, nodes: Nodes, layers: int) -> list[Nodes]:
        """The nodes whose rows `nodes` rest on: of h⁰, and of the output of each layer."""
        found = [nodes]
        for _ in range(layers):
            found.append(self.with_sources(found[-1]))
        return found[::-1]

    def rows(
        self,
        changed: Nodes,
        rewired: Nodes,
        wanted: Nodes | None,
        layers: int,
        *,
        alone: Nodes = NOBODY,
    ) -> list[Nodes]:
        """The rows to compute anew: of h⁰, and of the output of each layer.

        changed: nodes whose own input is another. rewired: nodes whose in-edges are others, which
        every layer feels. wanted: the nodes that are asked about; None: all. alone: those of the
        rewired that are left without in-edges, and rest on nobody else from now on.

        A row changes if the change reaches it forward, and matters if a wanted one rests on it.
        The two sets are grown toward one another, the cheaper first, until they meet in a layer;
        from there on each is found within the other, so that a hub at one end costs little.
        """
        forward: list[Nodes] = [changed]
        if wanted is None:
            for _ in range(layers):
                forward.append(self.with_targets(forward[-1], rewired))
            return forward
        backward = {layers: wanted}
        low, high = 0, layers
        while low < high:
            if self.out_degree[forward[low]].sum() <= self.in_degree[backward[high]].sum():
                forward.append(self.with_targets(forward[low], rewired))
                low += 1
            else:
                backward[high - 1] = self.with_sources(backward[high], alone)
                high -= 1
        rows = {low: self.both(forward[low], backward[low])}
        for layer in range(low, layers):
            felt = self.with_targets(rows[layer], rewired)
            rows[layer + 1] = self.both(felt, backward[layer + 1])
        for layer in range(low - 1, -1, -1):
            rows[layer] = self.both(forward[layer], self.with_sources(rows[layer + 1], alone))
        return [rows[layer] for layer in range(layers + 1)]

    def cost(self, rows: Sequence[Nodes]) -> int:
        """Edges and rows that computing them takes."""
        return sum(int(self.in_degree[nodes].sum()) + len(nodes) for nodes in rows[1:])

    def pairs(self, source: Nodes, target: Nodes) -> Nodes:
        """A number for each pair of nodes."""
        return source.astype(np.int64) * self.num_nodes + target

    def both(self, one: Nodes, other: Nodes) -> Nodes:
        """The nodes that are in both."""
        if len(one) > len(other):
            one, other = other, one
        self._mask[one] = True
        found: Nodes = other[self._mask[other]]
        self._mask[one] = False
        return found

    def distinct(self, *parts: npt.NDArray[Any]) -> Nodes:
        """The nodes of all parts."""
        if sum(map(len, parts)) * 100 < self.num_nodes:  # sorting few is less than looking at all
            return np.unique(np.concatenate(parts).astype(np.int64, copy=False))
        for part in parts:
            self._mask[part] = True
        found = np.flatnonzero(self._mask)
        self._mask[found] = False
        return found


def pick(indptr: Nodes, nodes: Nodes) -> tuple[Nodes, Nodes]:
    """How many entries the rows of some nodes have, and where they stand, one row after the other.

    As `graph.csr.pick_rows`, for the few rows that a change touches: waking threads for those, as
    torch does, would take longer than the work.
    """
    start = indptr[nodes]
    count = indptr[nodes + 1] - start
    end = np.cumsum(count)
    total = int(end[-1]) if len(end) else 0
    return count, np.repeat(start - end + count, count) + np.arange(total)
