"""The edges that a change removes from a stored graph and adds to it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unimp.graph.changed import entries_of_pairs
from unimp.graph.csr import pick_entries
from unimp.graph.graph import Graph
from unimp.inference.incremental.reach import NO_NODES, NO_PAIRS, Nodes, Reach


class Rewiring(NamedTuple):
    """Edges that are removed and added, in the node numbers of the stored graph."""

    gone: Nodes = NO_PAIRS  # [2, m] existing edges that are removed, with duplicates
    left: Nodes = NO_NODES  # one source per removed edge to a node outside the stored graph
    added: Nodes = NO_PAIRS  # [2, a] in the order of targets, and then of sources
    attr: Tensor | None = None  # [a, d_e] features of the added edges
    alone: Nodes = NO_NODES  # nodes that are left without edges from other nodes

    def __bool__(self) -> bool:
        return bool(self.gone.shape[1] or len(self.left) or self.added.shape[1])

    def rewired(self, reach: Reach, *, by_degree: bool) -> Nodes:
        """Return the nodes whose in-edges differ; by_degree: or the weights of these edges."""
        found = [self.gone[1], self.added[1]]
        sources = np.unique(np.concatenate((self.gone[0], self.added[0], self.left)))
        if by_degree and len(sources):
            # The number of their out-edges is part of the weight of each.
            found.append(reach.targets(sources))
        return np.unique(np.concatenate(found)).astype(np.int64)


def rewiring_of(
    graph: Graph,
    reach: Reach,
    *,
    without: Nodes,
    left: Nodes,
    edges: Nodes,
    attr: Tensor | None,
) -> Rewiring:
    """Find what removing `without` and then adding or replacing `edges` changes.

    An added edge that exists once with the same features changes nothing.
    """
    if edges.shape[1]:
        order = np.lexsort(edges)
        edges, attr = edges[:, order], None if attr is None else attr[torch.from_numpy(order)]
        known = _unchanged(graph, reach, edges, attr)
        dropped = np.isin(reach.pairs(*edges), reach.pairs(*without))
        kept = ~(known & ~dropped)
        edges, attr = edges[:, kept], None if attr is None else attr[torch.from_numpy(kept)]
    replaced = np.concatenate((without, edges), 1)
    gone = NO_PAIRS
    if replaced.shape[1]:
        slots = entries_of_pairs(reach.in_indptr, reach.source, replaced)[1]
        target = np.searchsorted(reach.in_indptr, slots, side="right") - 1
        gone = np.stack((reach.source[slots].astype(np.int64), target))
    alone = np.setdiff1d(_alone(reach, gone), edges[1])
    return Rewiring(gone, left, edges, attr, alone)


def _unchanged(
    graph: Graph, reach: Reach, edges: Nodes, attr: Tensor | None
) -> npt.NDArray[np.bool_]:
    """Return whether each of `edges` exists once, with the same features."""
    places, slots = entries_of_pairs(reach.in_indptr, reach.source, edges)
    target = np.searchsorted(reach.in_indptr, slots, side="right") - 1
    present, many = np.unique(reach.pairs(reach.source[slots], target), return_counts=True)
    known = np.isin(reach.pairs(*edges), present[many == 1])
    if attr is not None and known.any():
        at = torch.from_numpy(np.flatnonzero(known))
        now = graph.edge_attr_of(torch.from_numpy(places)[at])
        assert now is not None
        known[at.numpy()] = (now == attr[at].to(now)).all(1).numpy()
    return known


def _alone(reach: Reach, gone: Nodes) -> Nodes:
    """Return the nodes that lose all edges from other nodes."""
    gone = gone[:, gone[0] != gone[1]]
    targets, many = np.unique(gone[1], return_counts=True)
    count, slots = pick_entries(reach.in_indptr, targets)
    others = reach.source[slots] != np.repeat(targets, count)
    left = np.bincount(np.repeat(np.arange(len(targets)), count)[others], minlength=len(many))
    alone: Nodes = targets[left == many]
    return alone
