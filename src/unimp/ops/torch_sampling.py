"""The sampling of `sampling.py` in torch, with the same results, for a graph on a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from unimp.graph.csr import pick_rows
from unimp.graph.graph import Graph
from unimp.graph.hop import Hop


def sample_hops(
    graph: Graph, seeds: Tensor, fanout: Sequence[int], *, seed: int
) -> tuple[Tensor, list[Hop]]:
    """Sample as `sampling.sample_hops` does."""
    nodes = graph.checked_nodes(seeds)
    local = torch.full((graph.num_nodes,), -1, dtype=torch.int32, device=graph.device)
    local[nodes] = torch.arange(len(nodes), dtype=torch.int32, device=graph.device)
    hops: list[Hop] = []
    for layer, take in enumerate(reversed(fanout)):
        indptr, slots = _in_edges(graph.indptr, nodes, take, seed + layer)
        source = graph.source[slots].long()
        new = _unique_in_order(source[local[source] < 0])
        count = len(nodes) + len(new)
        local[new] = torch.arange(len(nodes), count, dtype=torch.int32, device=graph.device)
        nodes = torch.cat((nodes, new))
        hops.append(Hop(indptr, local[source], count, graph.edge_attr_of(slots)))
    hops.reverse()
    return nodes, hops


def _unique_in_order(nodes: Tensor) -> Tensor:
    """Each node once, in the order of its first appearance."""
    unique: Tensor
    unique, which = torch.unique(nodes, return_inverse=True)
    place = torch.arange(len(nodes), device=nodes.device)
    first = torch.full_like(unique, len(nodes)).scatter_reduce_(0, which, place, "amin")
    return unique[torch.argsort(first)]


def _in_edges(indptr: Tensor, targets: Tensor, take: int, seed: int) -> tuple[Tensor, Tensor]:
    """Row pointers and slots of the in-edges of each target, or of a sample of them."""
    start = indptr[targets].long()
    degree = indptr[targets + 1].long() - start
    if take < 0 or not len(degree) or int(degree.max()) <= take:
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
    drawn = draw_without_replacement(degree[crowded], take, seed)
    places = picked[crowded][:, None] + torch.arange(take, device=indptr.device)
    offset[places.flatten()] = drawn.flatten()
    return picked.to(torch.int32), start[row] + offset


def draw_without_replacement(population: Tensor, take: int, seed: int) -> Tensor:
    """Draw as `sampling.draw_without_replacement` does."""
    drawn = population.new_empty((len(population), take))
    rows = torch.arange(len(population), device=population.device) * take
    for j in range(take):
        top = population - take + j
        number = _below(top + 1, rows + j, seed)
        repeated = (drawn[:, :j] == number[:, None]).any(1)
        drawn[:, j] = torch.where(repeated, top, number)
    return drawn.sort(1).values


def _below(bound: Tensor, counter: Tensor, seed: int) -> Tensor:
    """Draw as `sampling._below` does: splitmix64 in signed instead of unsigned integers."""
    z = _signed(seed) + (counter + 1) * _signed(0x9E3779B97F4A7C15)
    z = (z ^ _shifted(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shifted(z, 27)) * _signed(0x94D049BB133111EB)
    z = z ^ _shifted(z, 31)
    return (_shifted(z, 32) * bound) >> 32


def _shifted(z: Tensor, by: int) -> Tensor:
    """Shift z to the right as an unsigned integer."""
    return (z >> by) & ((1 << (64 - by)) - 1)


def _signed(number: int) -> int:
    """The signed 64-bit integer with the bits of an unsigned one."""
    number %= 2**64
    return number - 2**64 if number >= 2**63 else number
