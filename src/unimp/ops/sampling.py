"""Parts of a graph as hops: sampled neighbors of seeds, and induced subgraphs.

The native core does the work if it is available. Otherwise NumPy does, or torch for a graph on a
GPU (`torch_sampling.py`), with the same results. On CPU, all of them release the GIL most of the
time, so that several threads can prepare batches in parallel.
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
    """Draw at most fanout[ℓ] in-neighbors per target of layer ℓ, uniformly without replacement.

    Returns `nodes` (int64 node numbers; the seeds first, then sources in the order in which they
    were reached) and one hop per layer, hops[0] the largest. A fanout of −1 keeps all in-neighbors;
    with −1 for all layers, the logits of the seeds equal those of the full batch. The result is a
    function of `seed`.
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
    """The edges among distinct `nodes` as a square hop; row i is nodes[i]."""
    if graph.device.type != "cpu" or not native.available():
        return graph.with_features(None).induced_subgraph(nodes).hop
    numbers = _checked(graph, nodes)
    most = int(graph.in_degree[torch.from_numpy(numbers)].sum())
    with _numbers(graph.num_nodes) as local:
        try:
            _number(numbers, local)
            drawn = (
                np.empty(len(numbers) + 1, dtype=np.int64),
                np.empty(most + 1, dtype=np.int64),
                np.empty(most + 1, dtype=np.int32),
            )
            kept = native.induce(graph, local, numbers, drawn)
        finally:
            local[numbers] = -1
    indptr, slots, source = drawn
    dtype = np.int64 if kept > np.iinfo(np.int32).max else np.int32
    return Hop(
        _tensor(indptr.astype(dtype)),
        _tensor(source[:kept].astype(dtype, copy=False)),
        len(numbers),
        graph.edge_attr_of(torch.from_numpy(slots[:kept])),
    )


def _checked(graph: Graph, nodes: Tensor) -> Integers:
    """Check that node numbers are nodes of the graph; the native core does not check it."""
    if nodes.dtype == torch.bool or nodes.dtype.is_floating_point:
        raise GraphError(f"nodes have the type {nodes.dtype}; they must be integer node numbers")
    numbers: Integers = nodes.numpy().astype(np.int64)
    if len(numbers) and (int(numbers.min()) < 0 or int(numbers.max()) >= graph.num_nodes):
        wrong = numbers[(numbers < 0) | (numbers >= graph.num_nodes)][0]
        raise GraphError(f"there is no node {wrong}; nodes are numbered 0..{graph.num_nodes - 1}")
    return numbers


def _number(nodes: Integers, local: Integers) -> None:
    """Store the position of each of `nodes` in `local`."""
    local[nodes] = np.arange(len(nodes), dtype=np.int32)
    if not np.array_equal(local[nodes], np.arange(len(nodes))):
        raise GraphError("a node occurs twice; each node may occur only once")


_per_thread = threading.local()


@contextmanager
def _numbers(num_nodes: int) -> Iterator[Integers]:
    """An array for the number of each node in a batch, filled with −1; users must restore it.

    Each thread reuses one array, so that a batch of a few thousand nodes does not have to clear
    an array for millions of nodes.
    """
    array: Integers | None = getattr(_per_thread, "numbers", None)
    _per_thread.numbers = None
    if array is None or len(array) < num_nodes:
        array = np.full(num_nodes, -1, dtype=np.int32)
    yield array[:num_nodes]
    _per_thread.numbers = array


def _draw_natively(
    graph: Graph, local: Integers, nodes: Integers, take: int, seed: int
) -> tuple[Integers, Integers, Integers, Integers]:
    """The nodes with new sources appended, and the row pointers, slots and sources of the hop."""
    indptr_of = graph.indptr.numpy()
    degree = (indptr_of[nodes + 1] - indptr_of[nodes]).astype(np.int64)
    most = int((degree if take == ALL else np.minimum(degree, take)).sum())
    if most > np.iinfo(np.int32).max:
        return _draw_with_numpy(graph, local, nodes, take, seed)
    known = len(nodes)
    extended = np.empty(known + min(most, graph.num_nodes), dtype=np.int64)
    extended[:known] = nodes
    indptr = np.empty(known + 1, dtype=np.int32)
    slots, source = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int32)
    drawn = (indptr, slots, source)
    count = native.sample(graph, local, extended, (known, known), take, seed, drawn)
    # Copy the used parts, so that the unused memory is freed.
    used = int(indptr[-1])
    return extended[:count].copy(), indptr, slots[:used], source[:used].copy()


def _draw_with_numpy(
    graph: Graph, local: Integers, nodes: Integers, take: int, seed: int
) -> tuple[Integers, Integers, Integers, Integers]:
    """Draw as `_draw_natively` does, with the same result."""
    indptr, slots = _in_edges(graph, nodes, take, seed)
    source = graph.source.numpy()[slots]
    unseen, first = np.unique(source[local[source] < 0], return_index=True)
    new = unseen[np.argsort(first)].astype(np.int64)  # in the order in which they are reached
    local[new] = np.arange(len(nodes), len(nodes) + len(new), dtype=np.int32)
    return np.concatenate((nodes, new)), indptr, slots, local[source]


def _in_edges(graph: Graph, targets: Integers, take: int, seed: int) -> tuple[Integers, Integers]:
    """Row pointers and slots of the in-edges of each target, or of a sample of them."""
    indptr = graph.indptr.numpy()
    start = indptr[targets].astype(np.int64)
    degree = indptr[targets + 1].astype(np.int64) - start
    if take == ALL or not len(degree) or int(degree.max()) <= take:
        picked, positions = pick_rows(graph.indptr, torch.from_numpy(targets))
        return picked.numpy(), positions.numpy()
    kept = np.minimum(degree, take)
    picked_indptr = np.zeros(len(targets) + 1, dtype=np.int32)
    np.cumsum(kept, out=picked_indptr[1:])
    # A row with few in-edges keeps all of them: offset 0, 1, 2, … within the row.
    offset = np.arange(picked_indptr[-1], dtype=np.int64) - np.repeat(picked_indptr[:-1], kept)
    crowded = np.flatnonzero(degree > take)
    drawn = draw_without_replacement(degree[crowded], take, seed)
    offset[(picked_indptr[crowded].astype(np.int64)[:, None] + np.arange(take)).ravel()] = (
        drawn.ravel()
    )
    return picked_indptr, np.repeat(start, kept) + offset


def draw_without_replacement(population: Integers, take: int, seed: int) -> Integers:
    """Draw `take` distinct numbers below population[i] for each row i: [rows, take], sorted.

    This is Floyd's algorithm for all rows at once: the j-th draw is uniform below
    n − take + j + 1; if it repeats an earlier draw, n − take + j is used instead.
    """
    drawn = np.empty((len(population), take), dtype=np.int64)
    rows = np.arange(len(population), dtype=np.uint64) * np.uint64(take)
    for j in range(take):
        top = population - take + j
        number = _below(top + 1, rows + np.uint64(j), seed)
        repeated = (drawn[:, :j] == number[:, None]).any(1)
        drawn[:, j] = np.where(repeated, top, number)
    # Sorted, because this is the order of the graph's rows in memory.
    drawn.sort(axis=1)
    return drawn


def _below(bound: Integers, counter: Integers, seed: int) -> Integers:
    """Numbers of a counter-based stream (splitmix64), each uniform below its bound."""
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + (counter + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
        return ((z >> np.uint64(32)) * bound.astype(np.uint64) >> np.uint64(32)).astype(np.int64)


def _tensor(array: Integers) -> Tensor:
    return torch.from_numpy(array)
