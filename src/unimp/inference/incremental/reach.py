"""Find the rows of each layer that a change affects and that a requested logit depends on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from unimp.graph.csr import group, pick_entries
from unimp.graph.graph import Graph

Nodes = npt.NDArray[np.int64]  # distinct node numbers in increasing order
NO_NODES: Nodes = np.empty(0, dtype=np.int64)
NO_PAIRS: Nodes = np.empty((2, 0), dtype=np.int64)


class Reach:
    """The edges of a graph by target and by source, to follow them in both directions."""

    def __init__(self, graph: Graph) -> None:
        self.num_nodes = graph.num_nodes
        self.in_indptr, self.source = graph.indptr.numpy().astype(np.int64), graph.source.numpy()
        out_indptr, slot = group(graph.source, graph.num_nodes)
        self.out_indptr = out_indptr.numpy().astype(np.int64)
        self.target = graph.target.numpy()[slot.numpy()]
        self.in_degree, self.out_degree = np.diff(self.in_indptr), np.diff(self.out_indptr)
        self._mask = np.zeros(graph.num_nodes, dtype=bool)

    def reserve(self, num_nodes: int) -> None:
        """Include more nodes, which have no edges yet."""
        more = (0, num_nodes - self.num_nodes)
        self.in_indptr, self.out_indptr = (
            np.pad(indptr, more, mode="edge") for indptr in (self.in_indptr, self.out_indptr)
        )
        self.in_degree, self.out_degree = np.diff(self.in_indptr), np.diff(self.out_indptr)
        self._mask, self.num_nodes = np.zeros(num_nodes, dtype=bool), num_nodes

    def targets(self, nodes: Nodes) -> Nodes:
        """Return the nodes that one of `nodes` has an edge to."""
        return self.distinct(self.target[pick_entries(self.out_indptr, nodes)[1]])

    def with_sources(self, nodes: Nodes, alone: Nodes = NO_NODES, added: Nodes = NO_PAIRS) -> Nodes:
        connected = np.setdiff1d(nodes, alone, assume_unique=True) if len(alone) else nodes
        more = added[0][np.isin(added[1], nodes)] if added.shape[1] else NO_NODES
        source = self.source[pick_entries(self.in_indptr, connected)[1]]
        return self.distinct(source, nodes, more)

    def with_targets(self, nodes: Nodes, *more: Nodes) -> Nodes:
        return self.distinct(self.target[pick_entries(self.out_indptr, nodes)[1]], nodes, *more)

    def backward(self, nodes: Nodes, layers: int) -> list[Nodes]:
        """Return the rows that `nodes` depend on: of h⁰, and of the output of each layer."""
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
        alone: Nodes = NO_NODES,
        added: Nodes = NO_PAIRS,
    ) -> list[Nodes]:
        """Return the rows to compute again: of h⁰, and of the output of each layer.

        changed: nodes with a new input. rewired: nodes with new in-edges, which affect every
        layer. wanted: the nodes whose logits are requested; None: all. alone: the rewired nodes
        that are left without in-edges and therefore depend on no other node. added: [2, a] edges
        that this object does not contain; their targets are rewired.

        A row changes if the change reaches it forward, and matters if a wanted row depends on it.
        The two sets grow toward each other, the cheaper one first, until they meet in a layer. From
        there on, each is found within the other, so that a hub at one end costs little.
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
                backward[high - 1] = self.with_sources(backward[high], alone, added)
                high -= 1
        rows = {low: self.both(forward[low], backward[low])}
        for layer in range(low, layers):
            affected = self.with_targets(rows[layer], rewired)
            rows[layer + 1] = self.both(affected, backward[layer + 1])
        for layer in range(low - 1, -1, -1):
            needed = self.with_sources(rows[layer + 1], alone, added)
            rows[layer] = self.both(forward[layer], needed)
        return [rows[layer] for layer in range(layers + 1)]

    def cost(self, rows: Sequence[Nodes]) -> int:
        """Return the number of edges and rows that are needed to compute these rows."""
        return sum(int(self.in_degree[nodes].sum()) + len(nodes) for nodes in rows[1:])

    def pairs(self, source: Nodes, target: Nodes) -> Nodes:
        """Return one number for each pair of nodes."""
        return source.astype(np.int64) * self.num_nodes + target

    def both(self, one: Nodes, other: Nodes) -> Nodes:
        """Return the nodes that are in both."""
        if len(one) > len(other):
            one, other = other, one
        self._mask[one] = True
        found: Nodes = other[self._mask[other]]
        self._mask[one] = False
        return found

    def distinct(self, *parts: npt.NDArray[Any]) -> Nodes:
        """Return the nodes of all parts, each once."""
        if sum(map(len, parts)) * 100 < self.num_nodes:  # sorting a few is cheaper than a mask
            return np.unique(np.concatenate(parts).astype(np.int64, copy=False))
        for part in parts:
            self._mask[part] = True
        found = np.flatnonzero(self._mask)
        self._mask[found] = False
        return found
