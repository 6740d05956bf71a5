"""The graph as a value: it contains what it was built from, and invalid input is refused."""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from unimp.errors import GraphError
from unimp.graph.features import SparseFeatures
from unimp.graph.graph import Graph, Merge

Maker = Callable[..., Graph]
MERGES: dict[str, Callable[[list[float]], float]] = {
    "mean": lambda values: sum(values) / len(values),
    "sum": sum,
    "max": max,
    "min": min,
    "first": lambda values: values[0],
}


def edges_of(graph: Graph) -> list[tuple[float, ...]]:
    """Each edge as (target, source, *features), in slot order."""
    attr = graph.edge_attr_of(None)
    columns = [] if attr is None else attr.T.tolist()
    return list(zip(graph.target.tolist(), graph.source.tolist(), *columns, strict=True))


def attr_by_edge(graph: Graph) -> dict[tuple[int, int], float]:
    """A mapping from (source, target) to the only feature, for graphs without duplicates."""
    attr = graph.edge_attr_of(None)
    assert attr is not None
    pairs = list(zip(*graph.edge_index.tolist(), strict=True))
    assert len(pairs) == len(set(pairs))
    return dict(zip(pairs, attr[:, 0].tolist(), strict=True))


def merged(edges: list[tuple[int, int, float]], merge: str) -> dict[tuple[int, int], float]:
    """Deduplication computed with a dictionary."""
    rows = defaultdict(list)
    for source, target, value in edges:
        rows[source, target].append(value)
    return {edge: MERGES[merge](values) for edge, values in rows.items()}


def symmetrized(edges: list[tuple[int, int]], merge: str) -> dict[tuple[int, int], float]:
    """Symmetrization computed with a dictionary; edge k has the feature k."""
    forward = [(s, t, float(k)) for k, (s, t) in enumerate(edges)]
    backward = [(t, s, value) for s, t, value in forward if s != t]
    return merged(forward + backward, merge)


@st.composite
def edge_lists(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    num_nodes = draw(st.integers(1, 9))
    node = st.integers(0, num_nodes - 1)
    return num_nodes, draw(st.lists(st.tuples(node, node), max_size=40))


def built(num_nodes: int, edges: list[tuple[int, int]], *, attr: bool = True) -> Graph:
    """Build a graph in which edge k has the feature k and node i has the feature i."""
    index = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    return Graph.from_edges(
        index,
        num_nodes=num_nodes,
        x=np.arange(num_nodes)[:, None],
        edge_attr=np.arange(len(edges))[:, None] if attr else None,
    )


@given(edge_lists())
def test_edges_are_sorted_by_target_and_then_by_source(
    given_edges: tuple[int, list[tuple[int, int]]],
) -> None:
    num_nodes, edges = given_edges
    graph = built(num_nodes, edges)
    assert edges_of(graph) == sorted((t, s, float(k)) for k, (s, t) in enumerate(edges))
    assert graph.in_degree.tolist() == [sum(t == i for _, t in edges) for i in range(num_nodes)]
    assert (graph.num_nodes, graph.num_edges) == (num_nodes, len(edges))


def test_indices_are_int32_where_they_fit(random_graph: Maker) -> None:
    for graph in (
        random_graph(edge_features=2),
        random_graph().symmetrize().with_self_loops(),
        random_graph(edge_features=2).induced_subgraph(torch.arange(5)),
        Graph.from_edges(np.zeros((2, 0)), num_nodes=3),
    ):
        dtypes = {t.dtype for t in (graph.indptr, graph.source, graph.edge_id, graph.target)}
        assert dtypes == {torch.int32}


def test_the_number_of_nodes_follows_from_x_or_from_the_largest_node_number() -> None:
    assert Graph.from_edges([[0, 2], [1, 0]]).num_nodes == 3
    assert Graph.from_edges([[0, 2], [1, 0]], x=np.zeros((5, 1))).num_nodes == 5
    assert Graph.from_edges([[0, 2], [1, 0]], num_nodes=7).num_nodes == 7


def test_a_graph_is_built_from_arrays_tensors_lists_and_sparse_matrices() -> None:
    edges, x = [[0, 1], [1, 2]], [[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]]
    expected = [(1, 0), (2, 1)]
    for form in (edges, np.array(edges, dtype=np.uint16), torch.tensor(edges, dtype=torch.int32)):
        assert edges_of(Graph.from_edges(form)) == expected
    assert Graph.from_edges(edges, x=x).x.tolist() == x  # type: ignore[union-attr]
    sparse = Graph.from_edges(edges, x=sp.csr_array(np.array(x)))
    assert isinstance(sparse.x, SparseFeatures)
    assert (sparse.num_features, sparse.num_nodes) == (2, 3)


def test_one_column_of_edge_features_may_be_given_flat() -> None:
    graph = Graph.from_edges([[1, 0], [0, 1]], edge_attr=[5.0, 7.0])
    assert attr_by_edge(graph) == {(1, 0): 5.0, (0, 1): 7.0}


def test_a_graph_is_immutable() -> None:
    x = np.zeros((2, 1), dtype=np.float32)
    graph = Graph.from_edges([[0], [1]], x=x)
    x[:] = 9.0
    assert graph.x.tolist() == [[0.0], [0.0]]  # type: ignore[union-attr]
    with pytest.raises(dataclasses.FrozenInstanceError):
        graph.x = None  # type: ignore[misc]


@given(edge_lists(), st.sampled_from(sorted(MERGES)))
def test_deduplicated_edges_have_the_merged_features_of_their_duplicates(
    given_edges: tuple[int, list[tuple[int, int]]], merge: Merge
) -> None:
    num_nodes, edges = given_edges
    graph = built(num_nodes, edges).deduplicate(merge)
    expected = merged([(s, t, float(k)) for k, (s, t) in enumerate(edges)], merge)
    assert attr_by_edge(graph) == pytest.approx(expected)
    assert [e[:2] for e in edges_of(graph)] == sorted((t, s) for s, t in set(edges))
    assert graph.indptr.tolist() == [
        sum(t < i for _, t in set(edges)) for i in range(num_nodes + 1)
    ]


@pytest.mark.parametrize("merge", MERGES)
def test_wide_edge_features_merge_column_by_column(random_graph: Maker, merge: Merge) -> None:
    graph = random_graph(edge_features=3)
    attr = graph.edge_attr_of(None)
    assert attr is not None
    got = graph.deduplicate(merge)
    assert got.num_edges < graph.num_edges
    for column in range(3):
        rows = zip(*graph.edge_index.tolist(), attr[:, column].tolist(), strict=True)
        only = dataclasses.replace(got, edge_attr=got.edge_attr[:, column : column + 1])  # type: ignore[index]
        assert attr_by_edge(only) == pytest.approx(merged(list(rows), merge), abs=1e-6)


def test_deduplication_without_duplicates_or_edges_changes_nothing() -> None:
    for graph in (Graph.from_edges([[0, 1], [1, 0]]), Graph.from_edges([[], []], num_nodes=2)):
        assert graph.deduplicate() is graph


@given(edge_lists(), st.sampled_from(sorted(MERGES)))
def test_symmetrizing_adds_each_reverse_with_the_same_features(
    given_edges: tuple[int, list[tuple[int, int]]], merge: Merge
) -> None:
    num_nodes, edges = given_edges
    # A self-loop is its own reverse: it is there once, and a sum does not count it twice.
    edges = [edge for edge in edges if edge[0] != edge[1]] + [(0, 0)]
    graph = built(num_nodes, edges).symmetrize(merge)
    assert attr_by_edge(graph) == pytest.approx(symmetrized(edges, merge))


def test_symmetrizing_does_not_count_parallel_self_loops_twice() -> None:
    edges = [(0, 0), (0, 0), (0, 1)]
    graph = built(2, edges).symmetrize("sum")
    assert attr_by_edge(graph) == pytest.approx(symmetrized(edges, "sum"))


def test_the_two_directions_of_an_edge_share_its_id_and_features(random_graph: Maker) -> None:
    one_way = random_graph(edge_features=2).without_self_loops().deduplicate()
    keep = one_way.source < one_way.target
    one_way = Graph.from_edges(
        one_way.edge_index[:, keep],
        num_nodes=one_way.num_nodes,
        edge_attr=one_way.edge_attr_of(torch.nonzero(keep).squeeze(1)),
    )
    both = one_way.symmetrize()
    ids = dict(zip(zip(*both.edge_index.tolist(), strict=True), both.edge_id.tolist(), strict=True))
    assert both.num_edges == 2 * one_way.num_edges
    assert all(ids[t, s] == number for (s, t), number in ids.items())
    assert both.edge_attr is not None
    assert both.edge_attr.shape == (one_way.num_edges, 2)


def test_self_loops_are_added_only_where_missing_and_with_zero_features() -> None:
    graph = Graph.from_edges([[1, 0, 2], [1, 1, 0]], num_nodes=4, edge_attr=[5.0, 6.0, 7.0])
    looped = graph.with_self_loops()
    expected = {(1, 1): 5.0, (0, 1): 6.0, (2, 0): 7.0, (0, 0): 0.0, (2, 2): 0.0, (3, 3): 0.0}
    assert attr_by_edge(looped) == expected
    assert edges_of(looped) == sorted(edges_of(looped))
    assert looped.with_self_loops() is looped
    assert attr_by_edge(looped.without_self_loops()) == {(0, 1): 6.0, (2, 0): 7.0}


def test_self_loops_without_edge_features_get_separate_ids(random_graph: Maker) -> None:
    looped = random_graph().with_self_loops()
    assert looped.edge_id.unique().numel() == looped.num_edges
    assert looped.edge_attr is None
    empty = Graph.from_edges([[], []], num_nodes=3).with_self_loops()
    assert edges_of(empty) == [(0, 0), (1, 1), (2, 2)]


@given(edge_lists(), st.randoms(use_true_random=False))
def test_an_induced_subgraph_has_exactly_the_edges_among_its_nodes(
    given_edges: tuple[int, list[tuple[int, int]]], random: Any
) -> None:
    num_nodes, edges = given_edges
    nodes = random.sample(range(num_nodes), random.randint(1, num_nodes))
    part = built(num_nodes, edges).induced_subgraph(torch.tensor(nodes))
    place = {node: i for i, node in enumerate(nodes)}
    expected = Counter(
        (place[t], place[s], float(k))
        for k, (s, t) in enumerate(edges)
        if s in place and t in place
    )
    assert Counter(edges_of(part)) == expected
    assert part.x.squeeze(1).tolist() == nodes  # type: ignore[union-attr]
    assert part.num_nodes == len(nodes)


@given(edge_lists(), st.randoms(use_true_random=False))
def test_renumbering_moves_edges_with_their_nodes_and_can_be_undone(
    given_edges: tuple[int, list[tuple[int, int]]], random: Any
) -> None:
    num_nodes, edges = given_edges
    graph = built(num_nodes, edges)
    order = torch.tensor(random.sample(range(num_nodes), num_nodes))
    moved = graph.renumber(order)
    place = {node: i for i, node in enumerate(order.tolist())}
    expected = sorted((place[t], place[s], float(k)) for k, (s, t) in enumerate(edges))
    assert edges_of(moved) == expected
    back = moved.renumber(torch.argsort(order))
    for name in ("indptr", "source", "edge_id", "x", "edge_attr"):
        assert torch.equal(getattr(back, name), getattr(graph, name)), name


def test_sparse_features_move_with_their_nodes() -> None:
    dense = np.array([[0, 1], [2, 0], [0, 0], [3, 4]], dtype=np.float32)
    graph = Graph.from_edges([[0, 1], [1, 2]], x=sp.csr_array(dense))
    order = torch.tensor([3, 0, 2, 1])
    moved = graph.renumber(order).x
    assert isinstance(moved, SparseFeatures)
    rebuilt = sp.csr_array(
        (moved.value.numpy(), moved.column.numpy(), moved.indptr.numpy()), moved.shape
    )
    assert np.array_equal(rebuilt.toarray(), dense[order.numpy()])


@pytest.mark.parametrize("sparse", [False, True])
def test_a_copy_shares_no_array_with_the_graph(sparse: bool) -> None:
    dense = np.array([[0, 1], [2, 0], [3, 4]], dtype=np.float32)
    x = sp.csr_array(dense) if sparse else dense
    graph = Graph.from_edges([[0, 1], [1, 2]], x=x, edge_attr=np.ones((2, 1))).symmetrize()
    copy = graph.copied()

    def places(graph: Graph) -> set[int]:
        parts = [graph.indptr, graph.source, graph.edge_id, graph.edge_attr]
        x = graph.x
        parts += [x.indptr, x.column, x.value] if isinstance(x, SparseFeatures) else [x]
        return {part.data_ptr() for part in parts if part is not None}

    assert places(copy).isdisjoint(places(graph))
    found = copy.x.to_dense() if isinstance(copy.x, SparseFeatures) else copy.x
    assert found is not None
    assert np.array_equal(found.numpy(), dense)


def test_the_whole_graph_is_one_square_hop(random_graph: Maker) -> None:
    graph = random_graph(edge_features=2)
    hop = graph.hop
    assert (hop.num_sources, hop.num_targets, hop.num_edges) == (30, 30, graph.num_edges)
    assert torch.equal(hop.target, graph.target)
    attr = graph.edge_attr_of(None)
    assert attr is not None
    assert hop.edge_attr is not None
    assert torch.equal(hop.edge_attr, attr)
    assert hop.with_edge_attr(None).edge_attr is None


def test_a_transposed_hop_has_the_same_edges_grouped_by_source(random_graph: Maker) -> None:
    hop = random_graph().hop
    transpose = hop.transpose
    source = torch.repeat_interleave(torch.arange(30), transpose.indptr.diff())
    assert torch.equal(hop.source[transpose.slot.long()].long(), source)
    assert torch.equal(hop.target[transpose.slot.long()], transpose.target)
    assert transpose.slot.sort().values.tolist() == list(range(hop.num_edges))


def test_features_can_be_replaced_or_removed(random_graph: Maker) -> None:
    graph = random_graph(features=4, edge_features=2)
    assert graph.with_features(None).num_features == 0
    assert graph.with_features(torch.ones(30, 7)).num_features == 7
    assert graph.without_edge_attr().num_edge_features == 0
    assert graph.num_features == 4
    assert graph.num_edge_features == 2
    with pytest.raises(GraphError, match="x has 29 rows for 30 nodes"):
        graph.with_features(torch.ones(29, 7))


def test_the_repr_contains_the_sizes(random_graph: Maker) -> None:
    text = repr(random_graph(features=4, edge_features=2))
    assert text == "Graph(30 nodes, 120 in-edges, 4 features, 2 edge features)"
    assert "sparse features" in repr(Graph.from_edges([[0], [1]], x=sp.eye_array(2)))


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("edges", "options", "words"),
    [
        ([[0, 1], [1, 5]], {"num_nodes": 3}, "target of edge 1 is 5, but nodes are numbered 0..2"),
        ([[0, 9, 9], [1, 1, 1]], {"num_nodes": 3}, "source of edge 1 is 9"),
        ([[0, 9, 9], [1, 1, 1]], {"num_nodes": 3}, "2 such numbers"),
        ([[0, 1], [1, -2]], {}, "target of edge 1 is -2"),
        ([[0, 1], [1, 2]], {"x": np.zeros((2, 1))}, "target of edge 1 is 2"),
        ([[0, 1, 2], [1, 2, 0]], {"x": [[0, 0], [0, NAN], [INF, 0]]}, "nan at row 1, column 1"),
        ([[0, 1, 2], [1, 2, 0]], {"x": [[0, 0], [0, NAN], [INF, 0]]}, "2 such values"),
        ([[0], [1]], {"x": [[1e300], [0.0]]}, "node features contain inf at row 0, column 0"),
        (
            [[0, 1], [1, 0]],
            {"edge_attr": [[0, 0], [0, -INF]]},
            "edge features contain -inf at row 1",
        ),
        ([[0], [1]], {"x": [["a"], ["b"]]}, "node features must be numbers"),
        ([[0], [1]], {"x": [1.0, 2.0]}, "node features have shape (2,)"),
        ([[0], [1]], {"x": [[1.0], [2.0], [3.0]], "num_nodes": 2}, "x has 3 rows for 2 nodes"),
        ([[0], [1]], {"edge_attr": [[1.0], [2.0]]}, "shape (2, 1) for 1 edges"),
        ([[0], [1]], {"edge_attr": np.zeros((1, 1, 1))}, "shape (1, 1, 1) for 1 edges"),
        ([[0.0], [1.0]], {}, "float64; they must be integer node numbers"),
        (np.ones((2, 2), dtype=bool), {}, "bool; they must be integer node numbers"),
        ([["a"], ["b"]], {}, "edges must be numbers"),
        ([[0, 1], [1, 2], [2, 0]], {}, "edges have shape (3, 2)"),
        ([[0, 1], [1, 2], [2, 0]], {}, "transpose it"),
        ([0, 1, 2], {}, "edges have shape (3,)"),
        (np.zeros((2, 0)), {}, "a graph needs at least one node"),
        (np.zeros((2, 0)), {"num_nodes": 0}, "a graph needs at least one node"),
    ],
)
def test_invalid_input_is_refused_with_its_position(
    edges: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(GraphError) as caught:
        Graph.from_edges(edges, **options)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        (torch.tensor([0, 30]), "entry 1 is 30, but nodes are numbered 0..29"),
        (torch.tensor([-1]), "entry 0 is -1"),
        (torch.tensor([3, 4, 3]), "occurs twice"),
    ],
)
def test_subgraphs_of_unknown_or_repeated_nodes_are_refused(
    random_graph: Maker, nodes: Tensor, words: str
) -> None:
    with pytest.raises(GraphError, match=words):
        random_graph().induced_subgraph(nodes)


def test_renumbering_needs_every_node(random_graph: Maker) -> None:
    with pytest.raises(GraphError, match=r"30 nodes once, not 29.*induced_subgraph"):
        random_graph().renumber(torch.arange(29))


def test_a_graph_is_symmetric_if_every_edge_has_a_reverse() -> None:
    one_way = Graph.from_edges(torch.tensor([[0, 1, 2], [1, 2, 2]]), num_nodes=3)
    assert not one_way.is_symmetric
    assert one_way.symmetrize().is_symmetric
    assert Graph.from_edges(torch.empty(2, 0, dtype=torch.int64), num_nodes=3).is_symmetric
