"""Parts of a graph as hops: sampled neighbors that shrink toward the seeds, and induced parts.

The native core does the work where it is built; the same draws are made here with NumPy where it is
not, and in torch (`torch_sampling.py`) where the graph lies on a GPU. On CPU all release the GIL
for most of their time, so that threads prepare batches side by side.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unimp.config.choices import ALL
from unimp.errors import GraphError
from unimp.graph.csr import pick_rows
from unimp.graph.graph import Graph
from unimp.graph.hop import Hop
from unimp.ops import native, torch_sampling

Integers = npt.NDArray[np.integer[Any]]


def sample_hops(
    graph: Graph, seeds: Tensor, fanout: Sequence[int], *, seed: int
) -> tuple[Tensor, list[Hop]]:
    """Draw at most fanout[ℓ] in-neighbors of each target of layer ℓ, uniformly, none twice.

    Returns `nodes` (int64 node numbers; the seeds first, then sources in the order they were
    reached) and one hop a layer, hops[0] the widest. A fanout of −1 takes all in-neighbors; with
    −1 everywhere the seeds' logits are those of the full batch. What is drawn depends on `seed`.
    """
    if graph.device.type != "cpu":
        return torch_sampling.sample_hops(graph, seeds, fanout, seed=seed)
    draw = _draw_natively if native.available() else _draw_with_numpy
    nodes = _checked(graph, seeds)
    hops: list[Hop] = []
    with _numbers(graph.num_nodes) as local:
        try:
            _number(nodes, local)
            for layer, take in enumerate(reversed(fanout)):
                nodes, indptr, slots, source = draw(graph, local, nodes, take, seed + layer)
                attr = graph.edge_attr_of(torch.from_numpy(slots))
                hops.append(Hop(_tensor(indptr), _tensor(source), len(nodes), attr))
        finally:
            local[nodes] = -1
    hops.reverse()
    return torch.from_numpy(nodes), hops


def induced_hop(graph: Graph, nodes: Tensor) -> Hop:
    """The edges among `nodes` alone, each named once, as a square hop; row i is nodes[i]."""
    if graph.device.type != "cpu" or not native.available():
        return graph.with_features(None).induced_subgraph(nodes).hop
    places = _checked(graph, nodes)
    room = int(graph.in_degree[torch.from_numpy(places)].sum())
    with _numbers(graph.num_nodes) as local:
        try:
            _number(places, local)
            drawn = (
                np.empty(len(places) + 1, dtype=np.int64),
                np.empty(room + 1, dtype=np.int64),
                np.empty(room + 1, dtype=np.int32),
            )
            kept = native.induce(graph, local, places, drawn)
        finally:
            local[places] = -1
    indptr, slots, source = drawn
    wide = np.int64 if kept > np.iinfo(np.int32).max else np.int32
    return Hop(
        _tensor(indptr.astype(wide)),
        _tensor(source[:kept].astype(wide, copy=False)),
        len(places),
        graph.edge_attr_of(torch.from_numpy(slots[:kept])),
    )


def _checked(graph: Graph, nodes: Tensor) -> Integers:
    """Node numbers that are nodes of the graph; the native core trusts them."""
    if nodes.dtype == torch.bool or nodes.dtype.is_floating_point:
        raise GraphError(f"nodes are given as {nodes.dtype}; they must be whole node numbers")
    numbers: Integers = nodes.numpy().astype(np.int64)
    if len(numbers) and (int(numbers.min()) < 0 or int(numbers.max()) >= graph.num_nodes):
        wrong = numbers[(numbers < 0) | (numbers >= graph.num_nodes)][0]
        raise GraphError(f"no node {wrong}; nodes run from 0 to {graph.num_nodes - 1}")
    return numbers


def _number(nodes: Integers, local: Integers) -> None:
    """Let `local` say where each of `nodes` stands among them."""
    local[nodes] = np.arange(len(nodes), dtype=np.int32)
    if not np.array_equal(local[nodes], np.arange(len(nodes))):
        raise GraphError("a node is named twice; each may be named once")


_own = threading.local()


@contextmanager
def _numbers(num_nodes: int) -> Iterator[Integers]:
    """A place for each node's number in a batch, −1 throughout; to be left as it was found.

    Each thread keeps one, so that a batch of a few thousand nodes need not clear one for millions.
    """
    held: Integers | None = getattr(_own, "numbers", None)
    _own.numbers = None
    if held is None or len(held) < num_nodes:
        held = np.full(num_nodes, -1, dtype=np.int32)
    yield held[:num_nodes]
    _own.numbers = held


def _draw_natively(
    graph: Graph, local: Integers, nodes: Integers, take: int, seed: int
) -> tuple[Integers, Integers, Integers, Integers]:
    """The nodes with fresh sources appended, and the hop's row pointers, slots and sources."""
    indptr_of = graph.indptr.numpy()
    degree = (indptr_of[nodes + 1] - indptr_of[nodes]).astype(np.int64)
    room = int((degree if take == ALL else np.minimum(degree, take)).sum())
    if room > np.iinfo(np.int32).max:
        return _draw_with_numpy(graph, local, nodes, take, seed)
    known = len(nodes)
    grown = np.empty(known + min(room, graph.num_nodes), dtype=np.int64)
    grown[:known] = nodes
    indptr = np.empty(known + 1, dtype=np.int32)
    slots, source = np.empty(room, dtype=np.int64), np.empty(room, dtype=np.int32)
    count = native.sample(graph, local, grown, (known, known), take, seed, (indptr, slots, source))
    # Copies of what is used: the rest is room for what was not drawn, and must not be kept.
    used = int(indptr[-1])
    return grown[:count].copy(), indptr, slots[:used], source[:used].copy()


def _draw_with_numpy(
    graph: Graph, local: Integers, nodes: Integers, take: int, seed: int
) -> tuple[Integers, Integers, Integers, Integers]:
    """As `_draw_natively`, with the same result."""
    indptr, slots = _in_edges(graph, nodes, take, seed)
    source = graph.source.numpy()[slots]
    unseen, first = np.unique(source[local[source] < 0], return_index=True)
    fresh = unseen[np.argsort(first)].astype(np.int64)  # in the order they are reached
    local[fresh] = np.arange(len(nodes), len(nodes) + len(fresh), dtype=np.int32)
    return np.concatenate((nodes, fresh)), indptr, slots, local[source]


def _in_edges(graph: Graph, targets: Integers, take: int, seed: int) -> tuple[Integers, Integers]:
    """Row pointers and slots of (some of) the in-edges of each target."""
    indptr = graph.indptr.numpy()
    start = indptr[targets].astype(np.int64)
    degree = indptr[targets + 1].astype(np.int64) - start
    if take == ALL or not len(degree) or int(degree.max()) <= take:
        picked, positions = pick_rows(graph.indptr, torch.from_numpy(targets))
        return picked.numpy(), positions.numpy()
    kept = np.minimum(degree, take)
    picked_indptr = np.zeros(len(targets) + 1, dtype=np.int32)
    np.cumsum(kept, out=picked_indptr[1:])
    # Rows with few in-edges take all: offset 0, 1, 2, … within the row.
    offset = np.arange(picked_indptr[-1], dtype=np.int64) - np.repeat(picked_indptr[:-1], kept)
    crowded = np.flatnonzero(degree > take)
    drawn = draw_without_replacement(degree[crowded], take, seed)
    offset[(picked_indptr[crowded].astype(np.int64)[:, None] + np.arange(take)).ravel()] = (
        drawn.ravel()
    )
    return picked_indptr, np.repeat(start, kept) + offset


def draw_without_replacement(population: Integers, take: int, seed: int) -> Integers:
    """For each row i, `take` distinct numbers below population[i]: [rows, take], sorted.

    Floyd's algorithm, all rows at once: the j-th draw is uniform below n − take + j + 1; where
    it repeats an earlier one, n − take + j itself is taken instead.
    """
    drawn = np.empty((len(population), take), dtype=np.int64)
    rows = np.arange(len(population), dtype=np.uint64) * np.uint64(take)
    for j in range(take):
        top = population - take + j
        number = _below(top + 1, rows + np.uint64(j), seed)
        repeated = (drawn[:, :j] == number[:, None]).any(1)
        drawn[:, j] = np.where(repeated, top, number)
    # In the order of memory, and of the graph's own rows.
    drawn.sort(axis=1)
    return drawn


def _below(bound: Integers, counter: Integers, seed: int) -> Integers:
    """The numbers of a stream at `counter`, each uniform below its bound: splitmix64 by counter."""
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + (counter + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
        return ((z >> np.uint64(32)) * bound.astype(np.uint64) >> np.uint64(32)).astype(np.int64)


def _tensor(array: Integers) -> Tensor:
    return torch.from_numpy(array)
