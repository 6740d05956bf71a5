"""An edge list is grouped by target once, and again if its content changes."""

import gc
from typing import Any

import pytest
import torch
from torch import Tensor

from unimp.errors import GraphError
from unimp.graph import edge_list as module
from unimp.graph.edge_list import InEdges, on_edges

pytestmark = pytest.mark.filterwarnings("ignore:Sparse (invariant checks|CSR tensor support)")

NODES, EDGES = 30, 140


def some_edges() -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(28, (2, EDGES), generator=generator)


def grouped(edges: Any, nodes: int = NODES, flow: str = "source_to_target") -> InEdges:
    device = torch.device("cpu")
    return on_edges(edges, nodes, nodes, lambda found: found, flow=flow, device=device)


def ends(edges: Tensor) -> Tensor:
    """The sources and targets of the grouped edges, in the order of the list: [2, E]."""
    found = grouped(edges)
    rows = torch.stack((found.hop.source, found.hop.target), 1)
    return found.in_list_order(rows).t().long()


def test_edges_are_grouped_again_only_if_the_list_or_the_number_of_nodes_changes() -> None:
    edges = some_edges()
    first = grouped(edges)
    assert grouped(edges) is first
    assert grouped(edges.clone()) is not first
    assert grouped(edges, NODES + 1).hop.num_targets == NODES + 1
    assert torch.equal(ends(edges), edges)


def test_a_change_in_place_is_noticed() -> None:
    edges = some_edges()
    assert torch.equal(ends(edges), edges)
    edges[0, 5] = (edges[0, 5] + 1) % 28
    assert torch.equal(ends(edges), edges)
    edges[1][7] = (edges[1, 7] + 1) % 28  # through a view of it
    assert torch.equal(ends(edges), edges)
    edges.data = edges.flip(0)  # other memory behind the same tensor
    assert torch.equal(ends(edges), edges)
    edges.resize_(2, 10)
    assert torch.equal(ends(edges), edges)


def test_a_change_through_data_is_noticed() -> None:
    """A write through `.data` does not increase torch's version counter."""
    edges = some_edges()
    grouped(edges)
    version = edges._version
    edges.data[0, 5] = (edges[0, 5] + 1) % 28
    assert edges._version == version
    assert torch.equal(ends(edges), edges)


def test_a_change_through_shared_numpy_memory_is_noticed() -> None:
    array = some_edges().numpy().copy()
    shared = torch.from_numpy(array)
    grouped(shared)
    array[:] = array[::-1].copy()  # the other direction: the same numbers, sum and checksum
    assert torch.equal(ends(shared), shared)


def test_a_change_in_inference_mode_is_noticed() -> None:
    """torch counts no changes of a tensor that was created in inference mode."""
    edges = some_edges()
    with torch.inference_mode():
        inside = edges.clone()
        grouped(inside)
        inside[0, 5] = (inside[0, 5] + 1) % 28
        assert torch.equal(ends(inside), inside)


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_a_change_of_a_sparse_matrix_is_noticed(layout: str) -> None:
    matrix = torch.sparse_coo_tensor(some_edges(), torch.ones(EDGES), (NODES, NODES)).coalesce()
    if layout == "csr":
        matrix = matrix.to_sparse_csr()
    before = ends(matrix)
    columns = matrix.indices()[1] if layout == "coo" else matrix.col_indices()
    columns.copy_(columns.flip(0))
    assert torch.equal(ends(matrix)[0], columns)
    assert not torch.equal(ends(matrix), before)
    assert torch.equal(ends(matrix), ends(matrix.clone()))


def test_nothing_is_stored_for_a_deleted_edge_list() -> None:
    gc.collect()
    before = len(module._CACHE)
    for order in (slice(None), torch.arange(28)):
        edges = torch.arange(28, dtype=torch.int32).expand(2, -1)[:, order].clone()
        adj_t = torch.sparse_coo_tensor(edges, torch.ones(28), (NODES, NODES)).to_sparse_csr()
        grouped(edges)
        grouped(adj_t)
        assert len(module._CACHE) == before + 2
        del edges, adj_t
        gc.collect()
        assert len(module._CACHE) == before


FEW = torch.tensor([[0, 1, 2], [2, 2, 0]])


@pytest.mark.parametrize(
    ("edge_index", "message"),
    [
        (FEW.t().contiguous(), r"shape \(3, 2\).*transpose it"),
        (FEW.float(), "torch.float32.*integer node numbers"),
        (FEW - 1, "source -1, but x has 4 source rows"),
        (FEW.flip(0) - 1, "source -1|target -1"),
        (FEW + 2, r"source 4, but x has 4 source rows, numbered 0\.\.3"),
        (torch.tensor([[0], [4]]), "target 4"),
        ([[0], [1]], "edge_index is a list.*to_torch_sparse_csr_tensor"),
    ],
)
def test_invalid_edge_lists_are_refused(edge_index: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        grouped(edge_index, 4)


def test_invalid_sparse_matrices_are_refused() -> None:
    square = torch.sparse_coo_tensor(FEW, torch.ones(3), (4, 4))
    with pytest.raises(GraphError, match=r"shape \(3, 4\) for 4 targets and 4 sources"):
        grouped(square.to_dense()[:3].to_sparse_csr(), 4)
    with pytest.raises(GraphError, match="to_sparse_csr"):
        grouped(square.to_dense().to_sparse_bsr((2, 2)), 4)
    with pytest.raises(GraphError, match="pass edge_index"):  # its flow cannot be reversed
        grouped(square, 4, flow="target_to_source")
