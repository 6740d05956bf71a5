"""Input rows in pieces: the same rows and gradients as at once, without tensors of their size."""

import pytest
import torch
from torch import Tensor

from unimp.data.synthetic import synthetic_task
from unimp.model.unimp import UniMP
from unimp.ops import embedding
from unimp.tasks.task import Task


@pytest.fixture(scope="module")
def task() -> Task:
    return synthetic_task(num_nodes=90, num_edges=300, num_classes=3, num_features=20)


def inputs_and_gradients(task: Task) -> tuple[Tensor, list[Tensor]]:
    torch.manual_seed(0)
    model = UniMP(task.sizes, layers=2, width=4, heads=2).double()
    assert isinstance(task.graph.x, Tensor)
    observed = torch.where(torch.arange(90) % 3 == 0, task.labels, -1)
    rows = model.embed(task.graph.x.double(), observed)
    rows.square().sin().sum().backward()
    return rows, [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("piece", [20, 140, 10**6])
def test_pieces_give_the_rows_and_gradients_of_autograd(
    task: Task, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, gradients = inputs_and_gradients(task)
    monkeypatch.setattr(embedding, "LARGE", 1)
    monkeypatch.setattr(embedding, "PIECE", piece)
    found, others = inputs_and_gradients(task)
    assert torch.equal(found, expected)
    assert len(gradients) == len(others) == 3  # the table, and the weight and bias of the norm
    for one, other in zip(gradients, others, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-12, atol=1e-12)


def test_pieces_are_used_for_large_batches_only(task: Task) -> None:
    norm = torch.nn.LayerNorm(4)
    assert not embedding.is_large(torch.zeros(3, 4), norm)
    large = torch.empty(embedding.LARGE // 4, 4)
    assert embedding.is_large(large, norm)
    assert not embedding.is_large(large, None)
    assert not embedding.is_large(large.requires_grad_(), norm)
