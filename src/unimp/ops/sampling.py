"""Neighbor sampling: hops that shrink toward the seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unimp.errors import GraphError
from unimp.graph.csr import pick_rows
from unimp.graph.graph import Graph
from unimp.graph.hop import Hop

Integers = npt.NDArray[np.integer[Any]]

ALL = -1
"""A fanout that takes every in-neighbor."""


def sample_hops(
    graph: Graph, seeds: Tensor, fanout: Sequence[int], *, rng: np.random.Generator
) -> tuple[Tensor, list[Hop]]:
    """Draw at most fanout[ℓ] in-neighbors of each target of layer ℓ, uniformly, none twice.

    Returns `nodes` (int64 node numbers; the seeds first, then sources in the order they were
    reached) and one hop a layer, hops[0] the widest. A fanout of −1 takes all in-neighbors; with
    −1 everywhere the seeds' logits are those of the full batch.
    """
    # Local number of each node, −1 where it has none yet: O(1) renumbering, no sort of all edges.
    local = np.full(graph.num_nodes, -1, dtype=np.int32)
    nodes = seeds.numpy().astype(np.int64)
    local[nodes] = np.arange(len(nodes), dtype=np.int32)
    if not np.array_equal(local[nodes], np.arange(len(nodes))):
        raise GraphError("a seed is named twice; each may be named once")
    hops: list[Hop] = []
    for take in reversed(fanout):
        indptr, slots = _in_edges(graph, nodes, take, rng)
        source = graph.source.numpy()[slots]
        fresh = np.unique(source[local[source] < 0])
        local[fresh] = np.arange(len(nodes), len(nodes) + len(fresh), dtype=np.int32)
        nodes = np.concatenate((nodes, fresh.astype(np.int64)))
        edge_attr = graph.edge_attr_of(torch.from_numpy(slots)) if graph.num_edge_features else None
        hops.append(Hop(indptr, torch.from_numpy(local[source]), len(nodes), edge_attr))
    hops.reverse()
    return torch.from_numpy(nodes), hops


def _in_edges(
    graph: Graph, targets: Integers, take: int, rng: np.random.Generator
) -> tuple[Tensor, Integers]:
    """Row pointers and slots of (some of) the in-edges of each target."""
    indptr = graph.indptr.numpy()
    start = indptr[targets].astype(np.int64)
    degree = indptr[targets + 1].astype(np.int64) - start
    if take == ALL or not len(degree) or int(degree.max()) <= take:
        picked, positions = pick_rows(graph.indptr, torch.from_numpy(targets))
        return picked, positions.numpy()
    kept = np.minimum(degree, take)
    picked_indptr = np.zeros(len(targets) + 1, dtype=np.int32)
    np.cumsum(kept, out=picked_indptr[1:])
    # Rows with few in-edges take all: offset 0, 1, 2, … within the row.
    offset = np.arange(picked_indptr[-1], dtype=np.int64) - np.repeat(picked_indptr[:-1], kept)
    crowded = np.flatnonzero(degree > take)
    drawn = draw_without_replacement(degree[crowded], take, rng)
    offset[(picked_indptr[crowded].astype(np.int64)[:, None] + np.arange(take)).ravel()] = (
        drawn.ravel()
    )
    return torch.from_numpy(picked_indptr), np.repeat(start, kept) + offset


def draw_without_replacement(population: Integers, take: int, rng: np.random.Generator) -> Integers:
    """For each row i, `take` distinct numbers below population[i]: [rows, take], sorted.

    Floyd's algorithm, all rows at once: the j-th draw is uniform below n − take + j + 1; where
    it repeats an earlier one, n − take + j itself is taken instead.
    """
    drawn = np.empty((len(population), take), dtype=np.int64)
    for j in range(take):
        top = population - take + j
        number = rng.integers(0, top + 1)
        repeated = (drawn[:, :j] == number[:, None]).any(1)
        drawn[:, j] = np.where(repeated, top, number)
    # In the order of memory, and of the graph's own rows.
    drawn.sort(axis=1)
    return drawn
