"""Scores equal those of scikit-learn and OGB."""

import importlib.util
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, roc_auc_score
from torch import Tensor

from unimp.errors import NonFiniteError
from unimp.tasks.labels import UNLABELED
from unimp.tasks.means import mean_and_std
from unimp.tasks.metrics import accuracy, mean_roc_auc, score


@pytest.fixture(scope="module")
def ogb_evaluator() -> Any:
    """OGB's Evaluator from its own file, because `import ogb` contacts the network."""
    pytest.importorskip("pandas", reason="OGB's evaluator reads its table with pandas")
    found = importlib.util.find_spec("ogb")
    if found is None or not found.submodule_search_locations:
        pytest.skip("OGB's evaluator is not installed: pip install 'unimp[ogb]'")
    path = Path(found.submodule_search_locations[0]) / "nodeproppred" / "evaluate.py"
    spec = importlib.util.spec_from_file_location("ogb_evaluate", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Evaluator


def random_scores(nodes: int, tasks: int, *, ties: bool, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(nodes, tasks, generator=generator)
    if ties:
        scores = (scores * 2).round()
    labels = torch.randint(2, (nodes, tasks), generator=generator).to(torch.int8)
    return scores, labels


@pytest.mark.parametrize("ties", [False, True])
def test_mean_roc_auc_is_scikit_learns(ties: bool) -> None:
    scores, labels = random_scores(300, 7, ties=ties, seed=1)
    expected = roc_auc_score(labels.numpy(), scores.numpy(), average="macro")
    assert mean_roc_auc(scores, labels) == pytest.approx(expected, abs=1e-12)


def test_missing_entries_and_tasks_of_one_class_are_left_out() -> None:
    scores, labels = random_scores(300, 6, ties=True, seed=2)
    labels[torch.rand(labels.shape, generator=torch.Generator().manual_seed(3)) < 0.4] = UNLABELED
    labels[:, 1] = 1
    labels[:, 4] = labels[:, 4].clamp(max=0)
    labels[:, 5] = UNLABELED
    areas = []
    for task in (0, 2, 3):
        known = labels[:, task] != UNLABELED
        areas.append(roc_auc_score(labels[known, task].numpy(), scores[known, task].numpy()))
    assert mean_roc_auc(scores, labels) == pytest.approx(statistics.mean(areas), abs=1e-12)


def test_no_task_with_both_classes_has_no_area() -> None:
    assert math.isnan(mean_roc_auc(torch.zeros(4, 2), torch.ones(4, 2, dtype=torch.int8)))


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=1, max_size=30))
def test_the_area_is_the_share_of_pairs_in_the_right_order(pairs: list[tuple[int, bool]]) -> None:
    positive = [s for s, label in pairs if label]
    negative = [s for s, label in pairs if not label]
    scores = torch.tensor([[float(s)] for s, _ in pairs])
    labels = torch.tensor([[int(label)] for _, label in pairs])
    area = mean_roc_auc(scores, labels)
    if not positive or not negative:
        assert math.isnan(area)
        return
    right = sum((p > n) + 0.5 * (p == n) for p in positive for n in negative)
    assert area == pytest.approx(right / (len(positive) * len(negative)))


def test_mean_roc_auc_is_ogbs_for_proteins(ogb_evaluator: Any) -> None:
    scores, labels = random_scores(200, 112, ties=True, seed=4)
    labels[:, 5] = 0
    labels[:, 9] = 1
    theirs = ogb_evaluator("ogbn-proteins").eval({"y_true": labels, "y_pred": scores})
    assert mean_roc_auc(scores, labels) == pytest.approx(float(theirs["rocauc"]), abs=1e-12)


def test_accuracy_is_ogbs_for_arxiv(ogb_evaluator: Any) -> None:
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(500, 40, generator=generator)
    labels = torch.where(torch.rand(500, generator=generator) < 0.4, logits.argmax(1), 3)
    given_to_ogb = {"y_true": labels[:, None], "y_pred": logits.argmax(1, keepdim=True)}
    theirs = ogb_evaluator("ogbn-arxiv").eval(given_to_ogb)
    assert accuracy(logits, labels) == pytest.approx(float(theirs["acc"]), abs=1e-12)


def test_accuracy_counts_known_labels_only() -> None:
    logits = torch.eye(4)
    labels = torch.tensor([0, 1, 0, UNLABELED])
    assert accuracy(logits, labels) == pytest.approx(
        accuracy_score(labels[:3].numpy(), logits.argmax(1)[:3].numpy())
    )
    assert math.isnan(accuracy(logits, torch.full((4,), UNLABELED)))


def test_accuracy_of_binary_tasks_counts_each_known_entry() -> None:
    logits = torch.tensor([[1.0, -1.0], [-1.0, 2.0], [3.0, 3.0]])
    labels = torch.tensor([[1, 1], [0, UNLABELED], [1, 0]], dtype=torch.int8)
    assert accuracy(logits, labels) == pytest.approx(3 / 5)


def test_the_metric_of_a_task_chooses_the_score() -> None:
    scores, labels = random_scores(50, 3, ties=False, seed=6)
    assert score("rocauc", scores, labels) == mean_roc_auc(scores, labels)
    assert score("accuracy", scores, labels) == accuracy(scores, labels)


def test_two_classes_are_ranked_by_the_probability_of_the_second() -> None:
    logits = torch.randn(80, 2, generator=torch.Generator().manual_seed(7))
    labels = torch.arange(80) % 2
    labels[:5] = UNLABELED
    probability = logits.double().softmax(1)[:, 1]
    expected = roc_auc_score(labels[5:].numpy(), probability[5:].numpy())
    assert score("rocauc", logits, labels) == pytest.approx(expected)


def test_the_deviation_over_runs_is_unbiased() -> None:
    values = [0.71, 0.74, 0.70, 0.73]
    mean, std = mean_and_std(values)
    assert mean == pytest.approx(statistics.mean(values))
    assert std == pytest.approx(statistics.stdev(values))
    mean, std = mean_and_std([0.5])
    assert mean == 0.5
    assert math.isnan(std)


@pytest.mark.parametrize("metric", ["accuracy", "rocauc"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite_have_no_score(metric: Any, bad: float) -> None:
    labels, logits = torch.tensor([0, 1, 0]), torch.zeros(3, 2)
    assert math.isnan(score("rocauc", logits, labels * 0))  # undefined: one class
    logits[1] = bad
    with pytest.raises(NonFiniteError, match="1"):
        score(metric, logits, labels)
