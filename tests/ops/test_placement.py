"""The policy for device placement."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from unimp.graph.features import SparseFeatures
from unimp.graph.graph import Graph
from unimp.ops import placement
from unimp.ops.placement import (
    GPU_HEADROOM,
    choose_placement,
    fits_one_chunk,
    place_for_batches,
    place_graph,
)


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


def test_the_first_place_that_fits_is_chosen(
    graph: Graph, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(graph.x, SparseFeatures)
    machine.free = GPU_HEADROOM * graph.nbytes
    assert choose_placement(graph, "cuda") == "gpu"
    machine.free -= 1  # the features still fit, and sparse ones are not pinned
    assert choose_placement(graph, "cuda") == "features"
    machine.free = GPU_HEADROOM * graph.x.nbytes - 1
    assert choose_placement(graph, "cuda") == "memory"
    assert choose_placement(graph, "cuda", is_mapped=True) == "disk"

    dense = Graph.from_edges([[0, 1, 2], [1, 2, 3]], x=torch.ones(4, 50))
    edges = dense.nbytes - 800
    free = {"cuda": GPU_HEADROOM * edges, "cpu": 2000}
    monkeypatch.setattr(placement, "available_memory", lambda device: free[device])
    assert choose_placement(dense, "cuda") == "pinned"
    free["cpu"] = 1000  # pinned memory is rounded up to 1024 bytes
    assert choose_placement(dense, "cuda") == "memory"


def test_a_known_step_leaves_more_room_for_the_graph(graph: Graph, machine: Machine) -> None:
    machine.free = 2 * graph.nbytes
    assert choose_placement(graph, "cuda") != "gpu"
    assert choose_placement(graph, "cuda", step=graph.nbytes // 2) == "gpu"
    assert choose_placement(graph, "cuda", step=graph.nbytes) != "gpu"


def test_batches_are_cut_where_the_graph_is_placed(graph: Graph, machine: Machine) -> None:
    assert place_for_batches(graph, "cuda", "gpu") == (graph, None)
    assert machine.copied == [graph]
    placed, x = place_for_batches(graph, "cuda", "features")
    assert placed.x is None
    assert x is graph.x
    assert machine.copied == [graph, graph.x]
    assert place_for_batches(graph, "cuda", "memory") == (graph, None)
    assert machine.copied == [graph, graph.x]


def test_on_cpu_nothing_is_copied(graph: Graph, machine: Machine) -> None:
    machine.free = 2**40
    assert choose_placement(graph, "cpu") == "memory"
    assert choose_placement(graph, "cpu", is_mapped=True) == "disk"
    assert place_for_batches(graph, "cpu", "memory") == (graph, None)
    assert place_graph(graph, "cpu", chunk_edges=None) is graph
    assert place_graph(graph, "cpu", chunk_edges=100) is graph
    assert machine.copied == []
