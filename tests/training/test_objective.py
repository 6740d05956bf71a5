"""The loss uses hidden labels only."""

import pytest
import torch
from torch.nn import functional as F

from unimp.tasks.labels import UNLABELED
from unimp.training.objective import masked_label_loss

HIDDEN = torch.tensor([True, False, True, True, False, False])


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.randn(6, 3, generator=torch.Generator().manual_seed(0))


def test_class_loss_is_the_cross_entropy_of_the_hidden_nodes(logits: torch.Tensor) -> None:
    labels = torch.tensor([0, 1, 2, 0, UNLABELED, 1])
    expected = F.cross_entropy(logits[HIDDEN], labels[HIDDEN])
    assert torch.equal(masked_label_loss(logits, labels, HIDDEN), expected)
    by_hand = -logits.log_softmax(1)[[0, 2, 3], [0, 2, 0]].mean()
    torch.testing.assert_close(masked_label_loss(logits, labels, HIDDEN), by_hand)


def test_binary_loss_is_the_mean_cross_entropy_over_tasks(logits: torch.Tensor) -> None:
    labels = torch.tensor([[0, 1, 1]] * 6, dtype=torch.int8)
    expected = F.binary_cross_entropy_with_logits(logits[HIDDEN], labels[HIDDEN].float())
    torch.testing.assert_close(masked_label_loss(logits, labels, HIDDEN), expected)


def test_missing_entries_are_ignored(logits: torch.Tensor) -> None:
    labels = torch.tensor(
        [[0, 1, -1], [1, 1, 1], [-1, -1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 0]], dtype=torch.int8
    )
    known = (labels != UNLABELED) & HIDDEN[:, None]
    expected = F.binary_cross_entropy_with_logits(logits[known], labels[known].float())
    torch.testing.assert_close(masked_label_loss(logits, labels, HIDDEN), expected)


@pytest.mark.parametrize("tasks", [0, 3])
def test_only_hidden_nodes_change_the_loss_and_receive_gradients(
    logits: torch.Tensor, tasks: int
) -> None:
    labels = torch.zeros(6, dtype=torch.int64)
    if tasks:
        labels = torch.zeros(6, tasks, dtype=torch.int8)
        labels[0, 1] = UNLABELED
    logits.requires_grad_()
    loss = masked_label_loss(logits, labels, HIDDEN)
    loss.backward()
    assert logits.grad is not None
    assert bool((logits.grad[~HIDDEN] == 0).all())
    assert bool((logits.grad[HIDDEN] != 0).any(1).all())
    if tasks:
        assert logits.grad[0, 1] == 0
    other_labels, other_logits = labels.clone(), logits.detach().clone()
    other_labels[~HIDDEN], other_logits[~HIDDEN] = 1, torch.nan
    assert masked_label_loss(other_logits, other_labels, HIDDEN) == loss.detach()
