"""The loss of a student, and the share of its teacher's gain that it keeps."""

import math

import pytest
import torch
from torch.nn import functional as F

from unimp.ensemble.distillation import Distillation
from unimp.ensemble.student import (
    gain_in_words,
    share_of_gain,
    student_section,
    teacher_summary,
)

TRAIN = torch.tensor([0, 3])
UNKNOWN = torch.tensor([1, 2, 4])


def numbers(seed: int, columns: int = 4) -> torch.Tensor:
    return torch.randn(5, columns, generator=torch.Generator().manual_seed(seed))


def test_the_loss_of_classes_is_the_cross_entropy_on_nodes_outside_the_train_set() -> None:
    q, z = numbers(0).softmax(1), numbers(1)
    loss = Distillation.of(q, TRAIN, weight=2.0, multilabel=False)
    expected = -(q * z.log_softmax(1))[UNKNOWN].sum(1).mean()
    assert loss(z, torch.arange(5)) == pytest.approx(2 * expected.item(), rel=1e-6)
    order = torch.tensor([4, 0, 1])
    part = -(q * z.log_softmax(1))[[4, 1]].sum(1).mean()
    assert loss(z[order], order) == pytest.approx(2 * part.item(), rel=1e-6)


def test_the_loss_of_binary_tasks_is_their_mean_binary_cross_entropy() -> None:
    q, z = numbers(0).sigmoid(), numbers(1)
    loss = Distillation.of(q, TRAIN, weight=0.5, multilabel=True)
    expected = F.binary_cross_entropy(z.sigmoid()[UNKNOWN], q[UNKNOWN])
    assert loss(z, torch.arange(5)) == pytest.approx(0.5 * expected.item(), rel=1e-5)


def test_neither_train_nodes_nor_padding_count() -> None:
    q, z = numbers(0).softmax(1), numbers(1).requires_grad_()
    loss = Distillation.of(q, TRAIN, weight=1.0, multilabel=False)
    value = loss(z, torch.tensor([0, 1, 2, 3, 5]))  # 5 is the node number of padding
    value.backward()
    assert z.grad is not None
    assert (z.grad[[0, 3, 4]] == 0).all()
    assert (z.grad[[1, 2]] != 0).any()
    other = q.clone()
    other[TRAIN] = numbers(7).softmax(1)[TRAIN]
    changed = Distillation.of(other, TRAIN, weight=1.0, multilabel=False)
    assert torch.equal(value, changed(z, torch.tensor([0, 1, 2, 3, 5])))


def test_a_batch_of_train_nodes_alone_has_no_loss() -> None:
    loss = Distillation.of(numbers(0).softmax(1), TRAIN, weight=1.0, multilabel=False)
    assert loss(numbers(1)[:2], TRAIN).item() == 0


def test_the_share_of_the_gain() -> None:
    assert share_of_gain(0.85, 0.9, 0.8) == pytest.approx(0.5)
    assert share_of_gain(0.78, 0.9, 0.8) == pytest.approx(-0.2)
    assert share_of_gain(0.85, 0.8, 0.8) is None  # there is no gain
    assert share_of_gain(0.85, 0.9, None) is None
    assert share_of_gain(math.nan, 0.9, 0.8) is None


def test_the_comparison_with_a_teacher_names_the_share_in_words() -> None:
    rows = [
        {"name": "unimp", "val": 0.7, "test": None, "settings": {}},
        {"name": "unimp-deep", "val": 0.8, "test": None, "settings": {"model.layers": 6}},
        {"name": "gcn", "val": 0.85, "test": None, "settings": {"model.name": "gcn"}},
    ]
    metrics = {"scores": {"train": {"val": 0.9, "test": 0.7}}, "ensemble": {"members": rows}}
    teacher = teacher_summary("best", "0" * 64, metrics)
    section = student_section(teacher, {"val": 0.875, "test": 0.6})
    assert section["scores"]["val"]["share_of_gain"] == pytest.approx(0.75)
    assert section["scores"]["test"]["share_of_gain"] is None
    assert "75 %" in gain_in_words(section)
    single = teacher_summary("one", "0" * 64, {"scores": metrics["scores"]})
    assert "share of the gain is unknown" in gain_in_words(student_section(single, {"val": 0.875}))
