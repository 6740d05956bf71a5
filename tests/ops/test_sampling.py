"""Sampled hops: they contain edges of the graph, none twice, with targets first."""

import itertools
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from unimp.config.choices import ALL
from unimp.errors import GraphError
from unimp.graph.graph import Graph
from unimp.graph.hop import Hop
from unimp.ops import native, sampling
from unimp.ops.sampling import draw_without_replacement, induced_hop, sample_hops

Maker = Callable[..., Graph]


@pytest.fixture(scope="module")
def graph(random_graph: Maker) -> Graph:
    return random_graph(60, 600, edge_features=2).deduplicate()


SEEDS = torch.tensor([17, 0, 58, 3, 59])  # a hub and two nodes without in-edges among them


def sampled(graph: Graph, fanout: list[int], seed: int = 0) -> tuple[Tensor, list[Hop]]:
    return sample_hops(graph, SEEDS, fanout, seed=seed)


@pytest.mark.parametrize(
    "fanout", [[3, 2], [2, 40], [ALL, ALL], [4, ALL, 1], [1], [2, 2, 2], [0, 2]]
)
@pytest.mark.parametrize("seed", [0, 7, 2**63 - 2])
def test_sampling_with_torch_equals_sampling_with_the_native_core(
    graph: Graph, fanout: list[int], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes, hops = sample_hops(graph, SEEDS, fanout, seed=seed)
    there = graph.to("cuda" if torch.cuda.is_available() else "cpu")
    monkeypatch.setattr(native, "available", lambda: False)
    found, others = sample_hops(there, SEEDS, fanout, seed=seed)
    assert torch.equal(found.cpu(), nodes)
    for one, other in zip(hops, others, strict=True):
        assert one.num_sources == other.num_sources
        for name in ("indptr", "source", "edge_attr"):
            assert torch.equal(getattr(other, name).cpu(), getattr(one, name))


@pytest.mark.parametrize("fanout", [[3, 2], [40, 40], [2, 2, 2]])
def test_a_table_of_nodes_gives_the_same_numbers_as_an_array(
    graph: Graph, fanout: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes, hops = sampled(graph, fanout)
    monkeypatch.setattr(sampling, "LARGEST_ARRAY", 0)
    found, others = sampled(graph, fanout)
    assert torch.equal(found, nodes)
    assert all(torch.equal(a.source, b.source) for a, b in zip(hops, others, strict=True))
    assert all(torch.equal(a.indptr, b.indptr) for a, b in zip(hops, others, strict=True))
    with pytest.raises(GraphError, match="twice"):
        sample_hops(graph, torch.tensor([3, 5, 3]), fanout, seed=0)


def test_what_is_drawn_for_a_node_does_not_depend_on_the_other_seeds(graph: Graph) -> None:
    nodes, hops = sample_hops(graph, SEEDS, [3], seed=5)
    together = edges_of(hops[0], nodes)
    apart = []
    for part in (SEEDS[1::2], SEEDS[0::2]):
        nodes, hops = sample_hops(graph, part, [3], seed=5)
        apart += edges_of(hops[0], nodes)
    assert sorted(apart) == sorted(together)


def edges_of(hop: Hop, nodes: Tensor) -> list[tuple[float, ...]]:
    """Each edge of a hop as (source, target, *features) in node numbers of the graph."""
    assert hop.edge_attr is not None
    source, target = nodes[hop.source.long()].tolist(), nodes[hop.target.long()].tolist()
    return list(zip(source, target, *hop.edge_attr.T.tolist(), strict=True))


def graph_edges(graph: Graph) -> list[tuple[float, ...]]:
    return edges_of(graph.hop, torch.arange(graph.num_nodes))


@pytest.mark.parametrize("fanout", [[3, 5], [2, 2, 2], [1], [ALL, 4], [0, 2]])
def test_hops_contain_edges_of_the_graph_with_their_features_and_none_twice(
    graph: Graph, fanout: list[int]
) -> None:
    nodes, hops = sampled(graph, fanout)
    existing = set(graph_edges(graph))
    for hop in hops:
        drawn = edges_of(hop, nodes)
        assert len(drawn) == len(set(drawn))
        assert set(drawn) <= existing


@pytest.mark.parametrize("fanout", [[3, 5], [2, 2, 2], [1], [0, 2]])
def test_each_target_has_the_fanout_or_all_of_its_in_edges(graph: Graph, fanout: list[int]) -> None:
    nodes, hops = sampled(graph, fanout)
    for take, hop in zip(fanout, hops, strict=True):
        degree = graph.in_degree[nodes[: hop.num_targets]]
        assert torch.equal(hop.indptr.diff(), degree.clamp(max=take))
        assert int(hop.indptr.diff().max()) <= take


def test_targets_come_first_among_the_sources_and_seeds_come_first_of_all(graph: Graph) -> None:
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
def test_a_fanout_of_all_or_above_every_degree_keeps_all_in_neighbors(
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
    _, hops = sample_hops(graph, torch.tensor([0]), [4], seed=0)
    assert hops[0].edge_attr is not None
    assert hops[0].edge_attr.unique().numel() == 4


def test_the_seed_determines_the_hops(graph: Graph) -> None:
    def drawn(seed: int) -> list[list[int]]:
        nodes, hops = sampled(graph, [2, 2], seed)
        return [nodes.tolist()] + [hop.source.tolist() for hop in hops]

    assert drawn(4) == drawn(4)
    assert drawn(4) != drawn(5)


def test_a_graph_without_edges_or_edge_features_gives_empty_hops() -> None:
    graph = Graph.from_edges([[], []], num_nodes=4)
    nodes, hops = sample_hops(graph, torch.tensor([2, 1]), [3, 3], seed=0)
    assert nodes.tolist() == [2, 1]
    assert [(h.num_edges, h.num_targets, h.num_sources) for h in hops] == [(0, 2, 2)] * 2
    assert hops[0].edge_attr is None


def test_draws_are_distinct_sorted_and_below_their_population() -> None:
    population = torch.tensor([4, 5, 9, 1000])
    for seed in range(20):
        drawn = draw_without_replacement(population, torch.arange(len(population)), 4, seed)
        assert bool((drawn.diff(dim=1) > 0).all())
        assert bool((drawn >= 0).all())
        assert bool((drawn < population[:, None]).all())
        assert drawn[0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("take", [1, 2, 3])
def test_every_subset_is_equally_likely(take: int) -> None:
    rows, subsets = 30_000, list(itertools.combinations(range(6), take))
    drawn = draw_without_replacement(torch.full((rows,), 6), torch.arange(rows), take, 1)
    counts = Counter(map(tuple, drawn.tolist()))
    expected = rows / len(subsets)
    chi_square = sum((counts[subset] - expected) ** 2 / expected for subset in subsets)
    # Mean + 4 standard deviations of a chi-square of this many degrees of freedom.
    freedom = len(subsets) - 1
    assert chi_square < freedom + 4 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("count", [1, 7, 60])
def test_an_induced_hop_equals_the_hop_of_the_induced_subgraph(graph: Graph, count: int) -> None:
    nodes = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(count))[:count]
    expected = graph.induced_subgraph(nodes).hop
    got = induced_hop(graph, nodes)
    assert got.num_sources == expected.num_sources
    for name in ("indptr", "source", "edge_attr"):
        assert torch.equal(getattr(got, name), getattr(expected, name)), name


def test_batches_do_not_influence_later_batches(graph: Graph) -> None:
    fresh = sampled(graph, [2, 3], seed=8)
    with pytest.raises(GraphError, match="occurs twice"):
        sample_hops(graph, torch.tensor([3, 3]), [2], seed=0)
    induced_hop(graph, torch.arange(30))
    again = sampled(graph, [2, 3], seed=8)
    assert torch.equal(fresh[0], again[0])
    assert all(torch.equal(a.source, b.source) for a, b in zip(fresh[1], again[1], strict=True))


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (torch.tensor([3, -1]), " -1, but nodes"),
        (torch.tensor([60]), " 60, but nodes"),
        (torch.tensor([3, 5, 3]), "occurs twice"),
        (torch.ones(60, dtype=torch.bool), "integer node numbers"),
    ],
)
def test_invalid_nodes_are_refused(graph: Graph, nodes: Tensor, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        sample_hops(graph, nodes, [2], seed=0)
    with pytest.raises(GraphError, match=message):
        induced_hop(graph, nodes)
