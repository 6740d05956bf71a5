"""Sampled hops: real edges, none twice, targets first, all of them where asked."""

import itertools
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from unimp.graph.graph import Graph
from unimp.graph.hop import Hop
from unimp.ops.sampling import ALL, draw_without_replacement, sample_hops

Maker = Callable[..., Graph]


@pytest.fixture(scope="module")
def graph(random_graph: Maker) -> Graph:
    return random_graph(60, 600, edge_features=2).deduplicate()


SEEDS = torch.tensor([17, 0, 58, 3, 59])  # a hub and two nodes without in-edges among them


def sampled(graph: Graph, fanout: list[int], seed: int = 0) -> tuple[Tensor, list[Hop]]:
    return sample_hops(graph, SEEDS, fanout, rng=np.random.default_rng(seed))


def edges_of(hop: Hop, nodes: Tensor) -> list[tuple[float, ...]]:
    """Each edge of a hop as (source, target, *features) in the graph's own numbers."""
    assert hop.edge_attr is not None
    source, target = nodes[hop.source.long()].tolist(), nodes[hop.target.long()].tolist()
    return list(zip(source, target, *hop.edge_attr.T.tolist(), strict=True))


def graph_edges(graph: Graph) -> list[tuple[float, ...]]:
    return edges_of(graph.hop, torch.arange(graph.num_nodes))


@pytest.mark.parametrize("fanout", [[3, 5], [2, 2, 2], [1], [ALL, 4], [0, 2]])
def test_hops_hold_edges_of_the_graph_with_their_features_none_twice(
    graph: Graph, fanout: list[int]
) -> None:
    nodes, hops = sampled(graph, fanout)
    existing = set(graph_edges(graph))
    for hop in hops:
        drawn = edges_of(hop, nodes)
        assert len(drawn) == len(set(drawn))
        assert set(drawn) <= existing


@pytest.mark.parametrize("fanout", [[3, 5], [2, 2, 2], [1], [0, 2]])
def test_each_target_takes_its_fanout_or_all_it_has(graph: Graph, fanout: list[int]) -> None:
    nodes, hops = sampled(graph, fanout)
    for take, hop in zip(fanout, hops, strict=True):
        degree = graph.in_degree[nodes[: hop.num_targets]]
        assert torch.equal(hop.indptr.diff(), degree.clamp(max=take))
        assert int(hop.indptr.diff().max()) <= take


def test_targets_come_first_among_the_sources_and_seeds_first_of_all(graph: Graph) -> None:
    nodes, hops = sampled(graph, [3, 2, 2])
    assert nodes[: len(SEEDS)].tolist() == SEEDS.tolist()
    assert nodes.unique().numel() == nodes.numel() == hops[0].num_sources
    assert hops[-1].num_targets == len(SEEDS)
    for wide, narrow in itertools.pairwise(hops):
        assert wide.num_targets == narrow.num_sources
    for hop in hops:
        assert hop.num_sources >= hop.num_targets
        # Every source past the targets was reached by an edge.
        reached = set(hop.source.tolist()) | set(range(hop.num_targets))
        assert reached == set(range(hop.num_sources))


@pytest.mark.parametrize("fanout", [[ALL, ALL], [1000, 1000], [ALL, 1000]])
def test_a_fanout_of_all_or_above_every_degree_takes_all_in_neighbors(
    graph: Graph, fanout: list[int]
) -> None:
    nodes, hops = sampled(graph, fanout)
    for hop in hops:
        targets = set(nodes[: hop.num_targets].tolist())
        assert Counter(edges_of(hop, nodes)) == Counter(
            edge for edge in graph_edges(graph) if edge[1] in targets
        )


def test_duplicate_edges_are_each_drawn_at_most_once() -> None:
    graph = Graph.from_edges([[1] * 6, [0] * 6], edge_attr=np.arange(6.0))
    _, hops = sample_hops(graph, torch.tensor([0]), [4], rng=np.random.default_rng(0))
    assert hops[0].edge_attr is not None
    assert hops[0].edge_attr.unique().numel() == 4


def test_the_same_generator_draws_the_same_hops_and_another_others(graph: Graph) -> None:
    def drawn(seed: int) -> list[list[int]]:
        nodes, hops = sampled(graph, [2, 2], seed)
        return [nodes.tolist()] + [hop.source.tolist() for hop in hops]

    assert drawn(4) == drawn(4)
    assert drawn(4) != drawn(5)


def test_a_graph_without_edges_or_edge_features_gives_empty_hops() -> None:
    graph = Graph.from_edges([[], []], num_nodes=4)
    nodes, hops = sample_hops(graph, torch.tensor([2, 1]), [3, 3], rng=np.random.default_rng(0))
    assert nodes.tolist() == [2, 1]
    assert [(h.num_edges, h.num_targets, h.num_sources) for h in hops] == [(0, 2, 2)] * 2
    assert hops[0].edge_attr is None


def test_draws_are_distinct_sorted_and_below_their_population() -> None:
    population = np.array([4, 5, 9, 1000])
    for seed in range(20):
        drawn = draw_without_replacement(population, 4, np.random.default_rng(seed))
        assert bool((np.diff(drawn, axis=1) > 0).all())
        assert bool((drawn >= 0).all())
        assert bool((drawn < population[:, None]).all())
        assert drawn[0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("take", [1, 2, 3])
def test_every_subset_is_equally_likely(take: int) -> None:
    rows, subsets = 30_000, list(itertools.combinations(range(6), take))
    drawn = draw_without_replacement(np.full(rows, 6), take, np.random.default_rng(1))
    counts = Counter(map(tuple, drawn.tolist()))
    expected = rows / len(subsets)
    chi_square = sum((counts[subset] - expected) ** 2 / expected for subset in subsets)
    # Mean + 4 standard deviations of a chi-square of this many degrees of freedom.
    freedom = len(subsets) - 1
    assert chi_square < freedom + 4 * (2 * freedom) ** 0.5
