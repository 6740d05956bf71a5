"""The loss uses hidden labels only; consistency uses no labels."""

import pytest
import torch
from torch.nn import functional as F

from unimp.tasks.labels import UNLABELED
from unimp.training.objective import consistency_loss, masked_label_loss

HIDDEN = torch.tensor([True, False, True, True, False, False])
ROWS = torch.nonzero(HIDDEN).squeeze(1)


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.randn(6, 3, generator=torch.Generator().manual_seed(0))


def test_class_loss_is_the_cross_entropy_of_the_hidden_nodes(logits: torch.Tensor) -> None:
    labels = torch.tensor([0, 1, 2, 0, UNLABELED, 1])
    expected = F.cross_entropy(logits[HIDDEN], labels[HIDDEN])
    assert torch.equal(masked_label_loss(logits, labels, ROWS), expected)
    by_hand = -logits.log_softmax(1)[[0, 2, 3], [0, 2, 0]].mean()
    torch.testing.assert_close(masked_label_loss(logits, labels, ROWS), by_hand)


def test_binary_loss_is_the_mean_cross_entropy_over_tasks(logits: torch.Tensor) -> None:
    labels = torch.tensor([[0, 1, 1]] * 6, dtype=torch.int8)
    expected = F.binary_cross_entropy_with_logits(logits[HIDDEN], labels[HIDDEN].float())
    torch.testing.assert_close(masked_label_loss(logits, labels, ROWS), expected)


def test_missing_entries_are_ignored(logits: torch.Tensor) -> None:
    labels = torch.tensor(
        [[0, 1, -1], [1, 1, 1], [-1, -1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 0]], dtype=torch.int8
    )
    known = (labels != UNLABELED) & HIDDEN[:, None]
    expected = F.binary_cross_entropy_with_logits(logits[known], labels[known].float())
    torch.testing.assert_close(masked_label_loss(logits, labels, ROWS), expected)


@pytest.mark.parametrize("tasks", [0, 3])
def test_only_hidden_nodes_change_the_loss_and_receive_gradients(
    logits: torch.Tensor, tasks: int
) -> None:
    labels = torch.zeros(6, dtype=torch.int64)
    if tasks:
        labels = torch.zeros(6, tasks, dtype=torch.int8)
        labels[0, 1] = UNLABELED
    logits.requires_grad_()
    loss = masked_label_loss(logits, labels, ROWS)
    loss.backward()
    assert logits.grad is not None
    assert bool((logits.grad[~HIDDEN] == 0).all())
    assert bool((logits.grad[HIDDEN] != 0).any(1).all())
    if tasks:
        assert logits.grad[0, 1] == 0
    other_labels, other_logits = labels.clone(), logits.detach().clone()
    other_labels[~HIDDEN], other_logits[~HIDDEN] = 1, torch.nan
    assert masked_label_loss(other_logits, other_labels, ROWS) == loss.detach()


def naive_consistency(
    probabilities: list[list[list[float]]], rows: list[int], temperature: float
) -> float:
    """The formula with loops: probabilities of passes, nodes and classes."""
    passes, total = len(probabilities), 0.0
    for node in rows:
        mean = [
            sum(p[node][c] for p in probabilities) / passes
            for c in range(len(probabilities[0][node]))
        ]
        powers = [m ** (1 / temperature) for m in mean]
        target = [power / sum(powers) for power in powers]
        for p in probabilities:
            total += sum((a - t) ** 2 for a, t in zip(p[node], target, strict=True)) / passes
    return total / len(rows)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 0.2])
def test_consistency_is_the_squared_distance_from_the_sharpened_mean(temperature: float) -> None:
    logits = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = naive_consistency(logits.softmax(-1).tolist(), [0, 2, 3], temperature)
    loss = consistency_loss(logits, HIDDEN, temperature=temperature, multilabel=False)
    assert loss.item() == pytest.approx(expected)


def test_a_binary_task_is_consistent_as_two_classes() -> None:
    logits = torch.randn(3, 6, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    positive = torch.sigmoid(logits)
    of_tasks = [
        naive_consistency(torch.stack((p, 1 - p), -1).tolist(), [0, 2, 3], 0.5)
        for p in positive.unbind(-1)
    ]
    loss = consistency_loss(logits, HIDDEN, temperature=0.5, multilabel=True)
    assert loss.item() == pytest.approx(sum(of_tasks) / 2)
    # Two classes with these probabilities have the same loss.
    first = torch.stack((logits[..., 0], torch.zeros_like(logits[..., 0])), -1)
    as_classes = consistency_loss(first, HIDDEN, temperature=0.5, multilabel=False)
    assert as_classes.item() == pytest.approx(of_tasks[0])


def test_no_gradient_passes_through_the_target_of_consistency() -> None:
    logits = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logits.requires_grad_()
    consistency_loss(logits, HIDDEN, temperature=0.5, multilabel=False).backward()
    fixed = logits.detach().clone().requires_grad_()
    p = fixed.softmax(-1)
    power = logits.detach().softmax(-1).mean(0) ** 2
    target = power / power.sum(-1, keepdim=True)
    (p - target).square().sum(-1).mean(0)[HIDDEN].mean().backward()
    torch.testing.assert_close(logits.grad, fixed.grad)
    assert logits.grad is not None
    assert bool((logits.grad[:, ~HIDDEN] == 0).all())


def test_certain_predictions_have_a_finite_consistency_loss_and_gradient() -> None:
    logits = torch.tensor([[[200.0, -200.0, 0.0]], [[-200.0, 200.0, 0.0]]], requires_grad=True)
    everyone = torch.ones(1, dtype=torch.bool)
    for multilabel in (False, True):
        loss = consistency_loss(logits, everyone, temperature=0.01, multilabel=multilabel)
        loss.backward()
        assert bool(loss.isfinite())
        assert logits.grad is not None
        assert bool(logits.grad.isfinite().all())
    same = consistency_loss(logits[:1], everyone, temperature=0.5, multilabel=False)
    assert same.item() == pytest.approx(0.0, abs=1e-6)
