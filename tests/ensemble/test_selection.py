"""Weights are chosen on validation, and the optimism of this choice is measured."""

import pytest
import torch

from unimp.ensemble.selection import (
    _half,
    chances_of_answers,
    choose_weights,
    greedy_weights,
    mixed,
    nested_score,
)
from unimp.tasks.metrics import score


def log_loss(chances: torch.Tensor, weights: torch.Tensor) -> float:
    return float(-(weights.double() @ chances.clamp(min=1e-9)).log().mean())


def members(seed: int, count: int, entries: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.rand(count, entries, generator=draw, dtype=torch.float64)


@pytest.mark.parametrize("seed", range(5))
def test_the_chosen_mixture_is_at_least_as_good_as_every_member(seed: int) -> None:
    chances = members(seed, 6, 40)
    weights = greedy_weights(chances)
    assert weights.sum() == pytest.approx(1)
    alone = [log_loss(chances, row) for row in torch.eye(6)]
    assert log_loss(chances, weights) <= min(alone) + 1e-9


def test_two_members_that_know_different_halves_share_the_weight() -> None:
    one = torch.tensor([0.9] * 10 + [0.4] * 10, dtype=torch.float64)
    weights = greedy_weights(torch.stack((one, one.flip(0), torch.full((20,), 0.1).double())))
    assert weights[:2] == pytest.approx([0.5, 0.5])
    assert weights[2] == 0


def test_of_equal_members_the_first_is_taken() -> None:
    assert greedy_weights(members(0, 1, 9).repeat(3, 1)).tolist() == [1, 0, 0]


def test_without_entries_the_first_member_gets_all_the_weight() -> None:
    assert greedy_weights(torch.empty(3, 0, dtype=torch.float64)).tolist() == [1, 0, 0]


def test_the_order_of_the_members_changes_only_their_order() -> None:
    chances = members(3, 5, 60)
    order = torch.tensor([4, 2, 0, 1, 3])
    assert torch.equal(greedy_weights(chances)[order], greedy_weights(chances[order]))


def test_chances_of_answers_are_those_of_known_labels_only() -> None:
    classes = chances_of_answers(
        torch.tensor([[0.2, 0.8], [0.6, 0.4], [0.5, 0.5]]), torch.tensor([1, 0, -1])
    )
    assert classes == pytest.approx([0.8, 0.6])
    binary = chances_of_answers(
        torch.tensor([[0.2, 0.8], [0.6, 0.4]]), torch.tensor([[1, 0], [-1, 1]], dtype=torch.int8)
    )
    assert binary == pytest.approx([0.2, 0.2, 0.4])


def test_the_nested_score_of_members_that_only_guess_is_the_score_of_guessing() -> None:
    """With many members that guess, choosing on the scored labels would look better than chance."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.randint(2, (200,), generator=draw)
    guesses = [torch.rand(200, 2, generator=draw) for _ in range(60)]
    guesses = [g / g.sum(1, keepdim=True) for g in guesses]
    chances = torch.stack([chances_of_answers(g, labels) for g in guesses])
    answer = mixed(guesses, greedy_weights(chances))
    optimistic = float((answer.argmax(1) == labels).double().mean())
    nested = [nested_score(guesses, labels, "accuracy", seed=seed) for seed in range(10)]
    mean = sum(nested) / len(nested)
    assert optimistic > 0.58
    assert abs(mean - 0.5) < 0.04


def test_the_halves_of_the_nested_score_keep_groups_together() -> None:
    groups = torch.tensor([7, 3, 3, 9, 7, 1, 9, 9, 1, 7])
    for seed in range(10):
        half = _half(len(groups), groups, seed)
        assert 0 < int(half.sum()) < len(groups)
        for group in (1, 3, 7, 9):
            assert half[groups == group].unique().numel() == 1


def test_a_half_without_a_defined_score_does_not_vote_for_the_first_member() -> None:
    """ROC-AUC is not defined if a half contains only one class."""
    labels = torch.zeros(40, dtype=torch.int64)
    labels[3] = 1
    good = torch.nn.functional.one_hot(labels, 2) * 0.8 + 0.1
    weights = choose_weights([1 - good, good], labels, "rocauc")
    assert weights[1] > 0.9
    two = torch.tensor([0, 1])
    assert torch.isfinite(choose_weights([1 - good[2:4], good[2:4]], two, "rocauc")).all()


@pytest.mark.parametrize("seed", range(4))
def test_by_roc_auc_the_ensemble_is_never_below_its_best_member_on_validation(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    labels = (torch.rand(60, 3, generator=draw) < 0.2).long()
    # The second member decides any mixture, because the first gives nearly equal probabilities.
    first, second = (labels + torch.randn(60, 3, generator=draw) for _ in range(2))
    given = [0.2 + 1e-4 * first.double(), 0.5 + 0.05 * second.double()]
    weights = choose_weights(given, labels, "rocauc")
    found = score("rocauc", mixed(given, weights), labels)
    assert found >= max(score("rocauc", one, labels) for one in given)


@pytest.mark.parametrize("seed", range(3))
def test_rare_labels_that_a_part_of_the_rows_misses_give_weights_too(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    labels = torch.zeros(10_000, 1, dtype=torch.int64)
    labels[torch.randperm(10_000, generator=draw)[:4]] = 1
    given = [torch.rand(10_000, 1, generator=draw).double() for _ in range(3)]
    weights = choose_weights(given, labels, "rocauc")
    assert float(weights.sum()) == pytest.approx(1)
