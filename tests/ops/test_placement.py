"""The policy for device placement."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from unimp.graph.features import SparseFeatures
from unimp.graph.graph import Graph
from unimp.ops import placement
from unimp.ops.placement import GPU_HEADROOM, fits_one_chunk, place_for_batches, place_graph


@pytest.fixture
def graph() -> Graph:
    """A graph with 4 nodes and 3 edges, whose features are most of its size."""
    x = sp.csr_array(np.ones((4, 50), dtype=np.float32))
    return Graph.from_edges([[0, 1, 2], [1, 2, 3]], x=x)


class Machine:
    """A machine with a GPU that only records what is copied to it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free = 0
        self.copied: list[object] = []

        def to(data: object, device: torch.device | str) -> object:
            if torch.device(device).type == "cuda":
                self.copied.append(data)
            return data

        monkeypatch.setattr(placement, "available_memory", lambda device: self.free)
        monkeypatch.setattr(Graph, "to", to)
        monkeypatch.setattr(SparseFeatures, "to", to)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_exact_inference_needs_nodes_and_edges_within_one_chunk(graph: Graph) -> None:
    assert fits_one_chunk(graph, 7)
    assert not fits_one_chunk(graph, 6)


@pytest.mark.parametrize(("chunk_edges", "copies"), [(7, 1), (6, 0)])
def test_a_graph_is_placed_on_the_gpu_if_exact_inference_needs_one_chunk(
    graph: Graph, machine: Machine, chunk_edges: int, copies: int
) -> None:
    assert place_graph(graph, "cuda:0", chunk_edges=chunk_edges) is graph
    assert machine.copied == [graph] * copies


@pytest.mark.parametrize(("missing", "copies"), [(0, 1), (1, 0)])
def test_a_graph_for_inference_in_parts_is_placed_on_a_gpu_with_enough_memory(
    graph: Graph, machine: Machine, missing: int, copies: int
) -> None:
    machine.free = GPU_HEADROOM * graph.nbytes - missing
    place_graph(graph, "cuda", chunk_edges=None)
    assert machine.copied == [graph] * copies


def test_batches_are_cut_where_the_graph_or_the_features_fit(
    graph: Graph, machine: Machine
) -> None:
    assert isinstance(graph.x, SparseFeatures)
    machine.free = GPU_HEADROOM * graph.nbytes
    assert place_for_batches(graph, "cuda") == (graph, None)
    assert machine.copied == [graph]

    machine.free -= 1  # the features still fit
    placed, x = place_for_batches(graph, "cuda")
    assert placed.x is None
    assert x is graph.x
    assert machine.copied == [graph, graph.x]

    machine.free = GPU_HEADROOM * graph.x.nbytes - 1
    assert place_for_batches(graph, "cuda") == (graph, None)
    assert machine.copied == [graph, graph.x]


def test_on_cpu_nothing_is_copied(graph: Graph, machine: Machine) -> None:
    machine.free = 2**40
    assert place_for_batches(graph, "cpu") == (graph, None)
    assert place_graph(graph, "cpu", chunk_edges=None) is graph
    assert place_graph(graph, "cpu", chunk_edges=100) is graph
    assert machine.copied == []
