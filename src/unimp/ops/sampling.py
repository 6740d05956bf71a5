"""Parts of a graph as hops: sampled neighbors of seeds, and induced subgraphs.

On CPU the native core does the work if it is available. Otherwise torch does, on any device, with
the same results. Both release the GIL, so that several threads can prepare batches in parallel.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Sequence

import torch
from torch import Tensor

from unimp.config.choices import ALL
from unimp.data.memory import available_memory
from unimp.errors import GraphError
from unimp.graph.csr import index_dtype, pick_rows
from unimp.graph.graph import Graph, number_nodes
from unimp.graph.hop import Hop
from unimp.ops import native
from unimp.ops.hashing import hashed, shifted, signed

GAP, LONG_GAP = 4, 2048
"""If at most this many pages are between two rows of a mapped array, they are read as well: a disk
reads about 4 pages in the time of one more request."""
DENSE = 16
"""A batch needs many pages of an array if it needs at least 1/16 of them."""
LARGEST_ARRAY = 20_000_000
"""The most nodes of a graph for which an array contains the number of each node in a batch."""


def sample_hops(
    graph: Graph, seeds: Tensor, fanout: Sequence[int], *, seed: int, prefetch: bool = False
) -> tuple[Tensor, list[Hop]]:
    """Draw at most fanout[ℓ] in-neighbors per target of layer ℓ, uniformly without replacement.

    Returns `nodes` (int64 node numbers; the seeds first, then sources in the order in which they
    were reached) and one hop per layer, hops[0] the largest. A fanout of −1 keeps all in-neighbors;
    with −1 for all layers, the logits of the seeds equal those of the full batch. The in-neighbors
    that are drawn for a node depend only on `seed`, the layer and the node. Therefore several
    processes that divide the seeds among them draw the same edges as one process. With `prefetch`,
    the system is asked to read what a layer needs of a mapped graph before it is used.
    """
    is_native = _can_be_native(graph)
    nodes = graph.checked_nodes(seeds)
    # A table of the nodes of the batch needs less memory than an array over all nodes, but it is
    # slower.
    small = is_native and ALL not in fanout and graph.num_nodes > LARGEST_ARRAY
    local = None if small else _take_numbers(graph)
    if local is not None:
        number_nodes(nodes, local)
    elif len(torch.unique(nodes)) < len(nodes):
        raise GraphError("a node occurs twice; list each node once")
    hops: list[Hop] = []
    for layer, take in enumerate(reversed(fanout)):
        if is_native:
            drawn = _draw_natively(graph, local, nodes, take, seed + layer, prefetch)
        else:
            drawn = _draw(graph, local, nodes, take, seed + layer)
        nodes, indptr, slots, source = drawn
        if prefetch and graph.edge_attr is not None:
            prefetch_rows(graph.edge_attr, graph.edge_rows(slots))
        hops.append(Hop(indptr, source, len(nodes), graph.edge_attr_of(slots)))
    if local is not None:
        _give_back(local, nodes)
    return nodes, hops[::-1]


def induced_hop(graph: Graph, nodes: Tensor) -> Hop:
    """The edges among distinct `nodes` as a square hop; row i is nodes[i]."""
    if not _can_be_native(graph):
        return graph.with_features(None).induced_subgraph(nodes).hop
    nodes = graph.checked_nodes(nodes)
    local = _take_numbers(graph)
    number_nodes(nodes, local)
    most = int(_degree(graph.indptr, nodes).sum()) + 1
    indptr, slots = nodes.new_empty(len(nodes) + 1), nodes.new_empty(most)
    source = local.new_empty(most)
    kept = native.induce(graph, local, nodes, (indptr, slots, source))
    _give_back(local, nodes)
    dtype = index_dtype(kept)
    attr = graph.edge_attr_of(slots[:kept])
    return Hop(indptr.to(dtype), source[:kept].to(dtype), len(nodes), attr)


def prefetch_rows(array: Tensor, rows: Tensor) -> None:
    """Ask the system to read rows of an array on CPU that may be mapped from a file.

    Without the native core, or if the rows are in memory, nothing happens.
    """
    if array.device.type == "cpu" and array.is_contiguous() and native.available():
        native.read_ahead(array, rows.long(), gap=_gap(array, rows.numel()))


def _gap(array: Tensor, rows: int) -> int:
    """The largest gap between two rows, in pages, that is read as well.

    If a batch needs many pages of an array that fits into memory, the next batches need most of
    the others, and a disk reads everything in order faster than many single pages.
    """
    many = DENSE * rows >= array.nbytes // mmap.PAGESIZE
    return LONG_GAP if many and 2 * array.nbytes <= available_memory("cpu") else GAP


def _can_be_native(graph: Graph) -> bool:
    return graph.device.type == "cpu" and native.available()


_per_thread = threading.local()


def _take_numbers(graph: Graph) -> Tensor:
    """An array for the number of each node in a batch, filled with −1: [N].

    Each thread reuses one array, so that a batch of a few thousand nodes does not have to clear
    an array for millions of nodes. If an error occurs, the array is not given back.
    """
    known: Tensor | None = _per_thread.__dict__.pop("numbers", None)
    if known is None or len(known) < graph.num_nodes or known.device != graph.device:
        return torch.full((graph.num_nodes,), -1, dtype=torch.int32, device=graph.device)
    return known


def _give_back(local: Tensor, nodes: Tensor) -> None:
    local[nodes] = -1
    _per_thread.numbers = local


def _degree(indptr: Tensor, nodes: Tensor) -> Tensor:
    return indptr[nodes + 1].long() - indptr[nodes].long()


def _draw_natively(
    graph: Graph, local: Tensor | None, nodes: Tensor, take: int, seed: int, prefetch: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw as `_draw` does, with the same result."""
    if prefetch:
        prefetch_rows(graph.indptr, nodes)
    degree = _degree(graph.indptr, nodes)
    most = int((degree if take == ALL else degree.clamp(max=take)).sum())
    if most > torch.iinfo(torch.int32).max:
        return _draw(graph, local, nodes, take, seed)
    known = len(nodes)
    extended = nodes.new_empty(known + min(most, graph.num_nodes))
    extended[:known] = nodes
    indptr, source = (torch.empty(n, dtype=torch.int32) for n in (known + 1, most))
    slots = nodes.new_empty(most)
    drawn = indptr, slots, source
    gap = _gap(graph.source, most) if prefetch else None
    count = native.sample(graph, local, extended, known, take, seed, drawn, gap=gap)
    # Copy the used parts, so that the unused memory is freed.
    used = int(indptr[-1])
    return extended[:count].clone(), indptr, slots[:used], source[:used].clone()


def _draw(
    graph: Graph, local: Tensor | None, nodes: Tensor, take: int, seed: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The nodes with new sources appended, and the row pointers, slots and sources of the hop."""
    if local is None:  # so many edges need more memory than this array
        local = torch.full((graph.num_nodes,), -1, dtype=torch.int32)
        number_nodes(nodes, local)
    indptr, slots = _in_edges(graph.indptr, nodes, take, seed)
    source = graph.source[slots].long()
    new = _unique_in_order(source[local[source] < 0])
    count = len(nodes) + len(new)
    local[new] = torch.arange(len(nodes), count, dtype=local.dtype, device=local.device)
    return torch.cat((nodes, new)), indptr, slots, local[source].to(indptr.dtype)


def _unique_in_order(nodes: Tensor) -> Tensor:
    """Each node once, in the order of its first appearance."""
    unique: Tensor
    unique, which = torch.unique(nodes, return_inverse=True)
    place = torch.arange(len(nodes), device=nodes.device)
    first = torch.full_like(unique, len(nodes)).scatter_reduce_(0, which, place, "amin")
    return unique[torch.argsort(first)]


def _in_edges(indptr: Tensor, targets: Tensor, take: int, seed: int) -> tuple[Tensor, Tensor]:
    """Row pointers and slots of the in-edges of each target, or of a sample of them."""
    degree = _degree(indptr, targets)
    if take == ALL or not len(degree) or int(degree.max()) <= take:
        return pick_rows(indptr, targets)
    kept = degree.clamp(max=take)
    picked = torch.zeros(len(targets) + 1, dtype=torch.int64, device=indptr.device)
    torch.cumsum(kept, 0, out=picked[1:])
    total = int(picked[-1])
    # A row with few in-edges keeps all of them: offset 0, 1, 2, … within the row.
    rows = torch.arange(len(targets), device=indptr.device)
    row = torch.repeat_interleave(rows, kept, output_size=total)
    offset = torch.arange(total, device=indptr.device) - picked[row]
    crowded = torch.nonzero(degree > take).squeeze(1)
    drawn = draw_without_replacement(degree[crowded], targets[crowded], take, seed)
    places = picked[crowded][:, None] + torch.arange(take, device=indptr.device)
    offset[places.flatten()] = drawn.flatten()
    return picked.to(index_dtype(total)), indptr[targets].long()[row] + offset


def draw_without_replacement(population: Tensor, nodes: Tensor, take: int, seed: int) -> Tensor:
    """Draw `take` distinct numbers below population[i] for each nodes[i]: [nodes, take], sorted.

    This is Floyd's algorithm for all rows at once: the j-th draw is uniform below
    n − take + j + 1; if it repeats an earlier draw, n − take + j is used instead.
    """
    draws = torch.arange(take, device=population.device)
    top = population[:, None] - take + draws
    drawn = _below(top + 1, nodes[:, None] * take + draws, seed)
    for j in range(1, take):
        repeated = (drawn[:, :j] == drawn[:, j, None]).any(1)
        drawn[:, j] = torch.where(repeated, top[:, j], drawn[:, j])
    # Sorted, because this is the order of the graph's rows in memory.
    return drawn.sort(1).values


def _below(bound: Tensor, counter: Tensor, seed: int) -> Tensor:
    """Numbers of a counter-based stream, each uniform below its bound."""
    z = hashed(signed(seed) + counter * signed(0x9E3779B97F4A7C15))
    return (shifted(z, 32) * bound) >> 32
