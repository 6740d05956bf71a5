"""What tests of several stages share: a graph with everything that is awkward in it."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import settings

from unimp.graph.graph import Graph

# The same examples in every run: a test that fails once fails again.
settings.register_profile("unimp", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("unimp")


@pytest.fixture(scope="session")
def random_graph() -> Callable[..., Graph]:
    """A maker of graphs with a hub (node 0), duplicate edges, and two last nodes without edges."""

    def make(
        num_nodes: int = 30,
        num_edges: int = 120,
        *,
        features: int = 0,
        edge_features: int = 0,
        seed: int = 0,
    ) -> Graph:
        generator = torch.Generator().manual_seed(seed)
        edges = torch.randint(num_nodes - 2, (2, num_edges), generator=generator)
        edges[1, : num_edges // 4] = 0
        edges[:, -(num_edges // 10) :] = edges[:, : num_edges // 10]
        x = torch.randn(num_nodes, features, generator=generator) if features else None
        attr = torch.randn(num_edges, edge_features, generator=generator) if edge_features else None
        return Graph.from_edges(edges, num_nodes=num_nodes, x=x, edge_attr=attr)

    return make
