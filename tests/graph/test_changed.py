"""A changed graph equals one that is built from the changed list of edges."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from torch import Tensor

from unimp.graph.changed import changed_graph
from unimp.graph.features import SparseFeatures
from unimp.graph.graph import Graph


def rebuilt(graph: Graph, num_nodes: int, without: Tensor, edges: Tensor, attr: Tensor) -> Graph:
    """The same change, by a list of edges."""
    dropped = {tuple(pair) for pair in torch.cat((without, edges), 1).t().tolist()}
    ends, rows = graph.edge_index.long(), graph.edge_attr_of(None)
    assert rows is not None
    kept = torch.tensor([tuple(pair) not in dropped for pair in ends.t().tolist()], dtype=bool)
    return Graph.from_edges(
        torch.cat((ends[:, kept], edges), 1),
        num_nodes=num_nodes,
        edge_attr=torch.cat((rows[kept], attr)),
    )


@given(seed=st.integers(0, 10_000), more=st.integers(0, 3), plain=st.booleans())
def test_edges_and_nodes_change_as_in_a_list(seed: int, more: int, plain: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    ends = torch.randint(6, (2, seed % 20), generator=generator)
    graph = Graph.from_edges(
        ends, num_nodes=7, edge_attr=torch.randn(ends.shape[1], 2, generator=generator)
    )
    num_nodes = 7 + more
    without = torch.randint(7, (2, seed % 4), generator=generator)
    edges = torch.randint(num_nodes, (2, seed % 5), generator=generator).unique(dim=1)
    edges = edges[:, torch.randperm(edges.shape[1], generator=generator)]
    attr = torch.randn(edges.shape[1], 2, generator=generator)
    expected = rebuilt(graph, num_nodes, without, edges, attr)
    if plain:
        graph, expected = graph.without_edge_attr(), expected.without_edge_attr()
    found = changed_graph(
        graph,
        num_nodes=num_nodes,
        without=without,
        edges=edges,
        edge_attr=None if plain else attr,
    )
    for one, other in zip(found.arrays, expected.arrays, strict=True):
        assert one is other is None or (one.dtype == other.dtype and torch.equal(one, other))
    assert found.edge_id.unique().numel() == found.num_edges


@pytest.mark.parametrize("sparse", [False, True])
def test_rows_of_features_are_replaced_and_added(sparse: bool) -> None:
    rows = np.random.default_rng(0).random((4, 3), dtype=np.float32)
    new = torch.tensor([[0.0, 5.0, 0.0], [1.0, 2.0, 3.0]])
    graph = Graph.from_edges([[0, 1], [1, 2]], x=csr_array(rows) if sparse else rows)
    given_rows = SparseFeatures.from_scipy(csr_array(new.numpy())) if sparse else new
    found = changed_graph(graph, num_nodes=5, nodes=torch.tensor([4, 1]), x=given_rows).x
    dense = torch.from_numpy(found.to_scipy().toarray()) if sparse else found
    expected = torch.from_numpy(np.concatenate((rows, rows[:1])))
    expected[[4, 1]] = new
    assert torch.equal(dense, expected)
    assert graph.num_nodes == 4
