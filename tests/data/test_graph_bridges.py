"""Graphs of PyG, NetworkX, SciPy and NumPy: conversions in both directions."""

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

from unimp.data.networkx import graph_from_networkx, graph_to_networkx
from unimp.data.pyg import graph_from_pyg, graph_to_pyg
from unimp.data.scipy import graph_from_adjacency, graph_to_adjacency
from unimp.errors import GraphError
from unimp.graph.features import SparseFeatures
from unimp.graph.graph import Graph

# importorskip keeps the deprecations of its import to itself.
pyg = pytest.importorskip("torch_geometric.data", reason="needs torch_geometric")


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Directed graphs with self-loops and double edges, with or without features of each kind."""
    num_nodes = draw(st.integers(1, 7))
    node = st.integers(0, num_nodes - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=15))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    width, edge_width = draw(st.integers(0, 3)), draw(st.integers(0, 2))
    x: Any = torch.randn(num_nodes, width, generator=generator) if width else None
    if x is not None and draw(st.booleans()):
        x = sp.csr_array(x.numpy() * (x.numpy() > 0))
    attr = torch.randn(len(edges), edge_width, generator=generator) if edge_width else None
    index = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    return Graph.from_edges(index, num_nodes=num_nodes, x=x, edge_attr=attr)


def dense(graph: Graph) -> Graph:
    x = graph.x
    return graph.with_features(graph.nodes.features.toarray()) if is_sparse(x) else graph


def is_sparse(x: Any) -> bool:
    return isinstance(x, SparseFeatures)


def assert_same(one: Graph, other: Graph) -> None:
    pairs = list(zip(one.arrays, other.arrays, strict=True))
    assert all(a is b if a is None or b is None else torch.equal(a, b) for a, b in pairs)


@given(graphs())
def test_a_graph_goes_to_pyg_and_back(graph: Graph) -> None:
    data = graph_to_pyg(graph)
    assert data.validate()
    assert (data.num_nodes, data.num_edges) == (graph.num_nodes, graph.num_edges)
    back = graph_from_pyg(data)
    assert is_sparse(graph.x) == is_sparse(back.x)
    assert_same(dense(graph), dense(back))


@given(graphs())
def test_a_graph_goes_to_networkx_and_back(graph: Graph) -> None:
    network = graph_to_networkx(graph)
    assert network.number_of_edges() == graph.num_edges
    back = graph_from_networkx(
        network,
        features="x" if graph.x is not None else (),
        edge_features=["edge_attr"] if graph.num_edges and graph.edge_attr is not None else (),
    )
    if graph.num_edges == 0:
        graph = graph.without_edge_attr()
    assert Counter(edges_of(graph)) == Counter(edges_of(back))
    assert_same(dense(graph).without_edge_attr(), back.without_edge_attr())


def edges_of(graph: Graph) -> list[tuple[float, ...]]:
    attr = graph.edge_attr_of(None)
    columns = [] if attr is None else attr.T.tolist()
    return list(zip(*graph.edge_index.tolist(), *columns, strict=True))


@given(graphs(), st.booleans())
def test_a_graph_goes_to_a_matrix_and_back(graph: Graph, weighted: bool) -> None:
    graph = graph.deduplicate("first")
    weighted = weighted and graph.num_edge_features == 1
    matrix = graph_to_adjacency(graph, weighted=weighted)
    back = graph_from_adjacency(matrix, x=graph.x, weighted=weighted)
    assert_same(graph if weighted else graph.without_edge_attr(), back)
    if not weighted:
        assert_same(back, graph_from_adjacency(matrix.toarray(), x=graph.x))


def test_an_entry_of_a_matrix_is_an_edge_from_its_row_to_its_column() -> None:
    dense_matrix = np.array([[0, 2.5], [0, 0]])
    for matrix in (dense_matrix, sp.coo_matrix(dense_matrix), dense_matrix.tolist()):
        graph = graph_from_adjacency(matrix, weighted=True)
        assert edges_of(graph) == [(0, 1, 2.5)]
    stored_zero = sp.csr_array((np.array([0.0]), (np.array([0]), np.array([1]))), shape=(2, 2))
    assert graph_from_adjacency(stored_zero).num_edges == 1


def test_an_undirected_edge_goes_both_ways_and_a_loop_once() -> None:
    network = nx.Graph()
    network.add_node("c", size=3, place=[0.5, 1])
    network.add_node("a", size=1, place=[0, 0])
    network.add_edge("a", "c", weight=0.5)
    network.add_edge("a", "a", weight=2)
    graph = graph_from_networkx(network, features=["place", "size"], edge_features="weight")
    assert sorted(edges_of(graph)) == [(0, 1, 0.5), (1, 0, 0.5), (1, 1, 2.0)]
    assert graph.nodes.features.tolist() == [[0.5, 1, 3], [0, 0, 1]]
    several = nx.MultiGraph([(0, 1), (0, 1)])
    assert graph_from_networkx(several).num_edges == 4


def test_nodes_may_be_called_by_name() -> None:
    network = graph_to_networkx(Graph.from_edges([[0], [1]]), names=["git", "vim"])
    assert list(network.edges) == [("git", "vim")]
    assert type(network) is nx.DiGraph


def test_nodes_without_edges_are_counted_where_pyg_says_so() -> None:
    edges = torch.tensor([[0], [1]])
    assert graph_from_pyg(pyg.Data(edge_index=edges, num_nodes=5)).num_nodes == 5
    assert graph_from_pyg(pyg.Data(edge_index=edges, y=torch.zeros(4))).num_nodes == 4
    assert graph_from_pyg(pyg.Data(edge_index=edges)).num_nodes == 2
    weights = pyg.Data(edge_index=edges, edge_weight=torch.tensor([0.5]))
    assert edges_of(graph_from_pyg(weights)) == [(0, 1, 0.5)]


def hetero() -> Any:
    data = pyg.HeteroData()
    data["paper"].x = torch.zeros(2, 1)
    return data


def named(**attributes: Any) -> nx.Graph:
    network = nx.Graph()
    network.add_node("a", size=1, place=[1, 2])
    network.add_node("b", **attributes)
    network.add_edge("a", "b", weight="heavy")
    return network


DOUBLE = Graph.from_edges([[0, 0], [1, 1]])


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: graph_from_pyg(hetero()), r"several types .* data\.to_homogeneous"),
        (lambda: graph_from_pyg(pyg.Data(x=torch.zeros(2, 1))), "no edge_index"),
        (lambda: graph_from_pyg(pyg.Data(adj_t=torch.eye(2))), "adj_t instead of edge_index"),
        (lambda: graph_from_pyg(nx.Graph()), "torch_geometric Data.*Graph"),
        (
            lambda: graph_from_pyg(pyg.Data(edge_index=torch.tensor([[0, 1, 2]]))),
            r"need shape \(2, E\)",
        ),
        (lambda: graph_from_networkx([[0, 1]]), "networkx graph.*list"),
        (lambda: graph_from_networkx(nx.Graph()), "at least one node"),
        (
            lambda: graph_from_networkx(named(sise=2), features="size"),
            r"node 'b' .*'size'.*did you mean 'sise'",
        ),
        (
            lambda: graph_from_networkx(named(size="2"), features="size"),
            "'size' of node 'b' is '2'",
        ),
        (
            lambda: graph_from_networkx(named(place=[1]), features="place"),
            "'place' of node 'b' has 1 .*node 'a' has 2",
        ),
        (
            lambda: graph_from_networkx(named(), edge_features="weight"),
            "'weight' of edge 'a' → 'b' is 'heavy'",
        ),
        (
            lambda: graph_from_networkx(named(size=np.nan), features="size"),
            "nan at row 1",
        ),
        (lambda: graph_to_networkx(DOUBLE, names=["a", "a"]), "1 different names for 2"),
        (lambda: graph_from_adjacency(np.zeros((2, 5))), r"\(2, 5\).*Graph\.from_edges"),
        (lambda: graph_from_adjacency(np.zeros(3)), r"\(3,\)"),
        (lambda: graph_from_adjacency([["a"]]), "must be numbers"),
        (lambda: graph_to_adjacency(DOUBLE), "duplicate"),
        (lambda: graph_to_adjacency(DOUBLE, weighted=True), "has 0"),
    ],
)
def test_input_that_is_not_such_a_graph_is_refused(
    attempt: Callable[[], Any], message: str
) -> None:
    with pytest.raises(GraphError, match=message):
        attempt()


@pytest.mark.parametrize(
    ("convert", "package", "extra"),
    [
        (graph_to_pyg, "torch_geometric.data", r"unimp\[pyg\]"),
        (graph_to_networkx, "networkx", r"unimp\[networkx\]"),
    ],
)
def test_a_missing_library_is_reported_with_its_extra(
    convert: Callable[[Graph], Any], package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(GraphError, match=extra):
        convert(DOUBLE)
