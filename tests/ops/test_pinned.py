"""Features in pinned memory: the rows of a batch come from main memory or from the GPU."""

from typing import Any

import pytest
import torch

from unimp.ops import pinned
from unimp.ops.pinned import PinnedRows, hot_nodes, pinned_bytes

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytest.importorskip("triton", reason="Triton is not installed")


@pytest.fixture(autouse=True)
def without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE == "cpu":  # the interpreter of Triton reads ordinary memory
        monkeypatch.setattr(pinned, "read_by_gpu", lambda x, device: x.clone())


def rows_with(x: torch.Tensor, hot: int) -> PinnedRows:
    """Pinned rows of which `hot` are on the GPU: node 3 has the most out-edges, then 0, then 7."""
    source = torch.tensor([3, 3, 3, 0, 0, 7], dtype=torch.int32, device=DEVICE)
    rows = PinnedRows(x, DEVICE, source=source)
    rows.add_hot_rows(hot * x[0].nbytes)
    return rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("width", [1, 5, 128, 300])
@pytest.mark.parametrize("hot", [0, 1, 3, 40, 100])
def test_rows_are_those_of_the_features(width: int, hot: int, dtype: Any) -> None:
    x = torch.randn(40, width, generator=torch.Generator().manual_seed(0)).to(dtype)
    rows = rows_with(x, hot)
    assert len(rows.hot) == min(hot, 40)
    nodes = torch.tensor([39, 3, 3, 0, 12, 7, 7, 25] * 9)
    for some in (nodes[:1], nodes[:4], nodes, nodes[:0]):  # one row, and then several
        found = rows[some.to(DEVICE)]
        assert found.dtype == torch.float32
        assert torch.equal(found.cpu(), x[some].float())


def test_hot_rows_are_read_from_the_gpu_and_chosen_once() -> None:
    rows = rows_with(torch.zeros(8, 2), 2)
    rows.hot += 1
    rows.add_hot_rows(10**6)
    found = rows[torch.arange(8, device=DEVICE)].cpu()
    assert found[:, 0].tolist() == [1, 0, 0, 1, 0, 0, 0, 0]


def test_no_nodes_have_no_hot_rows() -> None:
    source = torch.empty(0, dtype=torch.int32, device=DEVICE)
    rows = PinnedRows(torch.zeros(0, 2), DEVICE, source=source)
    rows.add_hot_rows(100)
    assert rows[torch.empty(0, dtype=torch.int64, device=DEVICE)].shape == (0, 2)


def test_the_nodes_with_the_most_out_edges_are_hot() -> None:
    source = torch.tensor([2, 2, 2, 4, 4, 0], dtype=torch.int32)
    assert hot_nodes(source, 6, 2).tolist() == [2, 4]
    assert sorted(hot_nodes(source, 6, 100).tolist()) == list(range(6))
    assert hot_nodes(source, 6, 0).tolist() == []


def test_pinned_memory_is_a_power_of_two() -> None:
    assert pinned_bytes(torch.zeros(200)) == 1024
    assert pinned_bytes(torch.zeros(256)) == 1024
