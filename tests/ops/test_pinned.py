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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("width", [1, 5, 128, 300])
@pytest.mark.parametrize("hot", [[], [3], [7, 0, 3], list(range(40))])
def test_rows_are_those_of_the_features(width: int, hot: list[int], dtype: Any) -> None:
    x = torch.randn(40, width, generator=torch.Generator().manual_seed(0)).to(dtype)
    rows = PinnedRows(x, DEVICE, hot=torch.tensor(hot, dtype=torch.int64))
    nodes = torch.tensor([39, 3, 3, 0, 12, 7, 7, 25] * 9)
    found = rows[nodes.to(DEVICE)]
    assert found.dtype == torch.float32
    assert torch.equal(found.cpu(), x[nodes].float())
    assert rows[nodes[:0].to(DEVICE)].shape == (0, width)


def test_hot_rows_are_read_from_the_gpu() -> None:
    x = torch.zeros(6, 2)
    rows = PinnedRows(x, DEVICE, hot=torch.tensor([4, 1]))
    rows.hot += 1
    found = rows[torch.arange(6, device=DEVICE)].cpu()
    assert found[:, 0].tolist() == [0, 1, 0, 0, 1, 0]


def test_the_nodes_with_the_most_out_edges_are_hot() -> None:
    source = torch.tensor([2, 2, 2, 4, 4, 0], dtype=torch.int32)
    assert hot_nodes(source, 6, 2).tolist() == [2, 4]
    assert sorted(hot_nodes(source, 6, 100).tolist()) == list(range(6))
    assert hot_nodes(source, 6, 0).tolist() == []


def test_pinned_memory_is_a_power_of_two() -> None:
    assert pinned_bytes(torch.zeros(200)) == 1024
    assert pinned_bytes(torch.zeros(256)) == 1024
