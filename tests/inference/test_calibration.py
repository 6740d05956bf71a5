"""Calibration: a temperature that makes probabilities reliable, or the reason why there is none."""

import json
import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from unimp.config.recipe import Recipe
from unimp.data.synthetic import synthetic_task
from unimp.errors import RunError
from unimp.inference.calibration import (
    calibrate,
    calibration_error,
    checked_temperature,
    fit_temperature,
    measured,
)
from unimp.inference.reliability import MAX_TEMPERATURE, calibration_in_words
from unimp.runs.experiment import run
from unimp.runs.run import Run
from unimp.tasks.labels import Split
from unimp.tasks.task import Task

SETTINGS = [
    "task.name=synthetic",
    "task.scale=0.05",
    "model.width=16",
    "train.epochs=30",
    "train.lr=0.01",
    "train.device=cpu",
]


def drawn(number: int, classes: int, *, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits, and labels drawn from their softmax."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(number, classes, generator=generator)
    labels = torch.multinomial(torch.softmax(logits, 1), 1, generator=generator).squeeze(1)
    return logits, labels


@pytest.mark.parametrize("factor", [0.2, 1.0, 3.0])
def test_logits_of_any_scale_are_scaled_back(factor: float) -> None:
    logits, labels = drawn(20_000, 5)
    assert fit_temperature(factor * logits, labels) == pytest.approx(factor, rel=0.05)


def test_logits_of_binary_tasks_are_scaled_back_too() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(5000, 4, generator=generator)
    labels = torch.bernoulli(torch.sigmoid(logits), generator=generator).to(torch.int8)
    labels[::2, 1] = -1
    assert fit_temperature(2.5 * logits, labels) == pytest.approx(2.5, rel=0.05)
    before = calibration_error(torch.sigmoid(2.5 * logits), labels)
    assert calibration_error(torch.sigmoid(logits), labels) < 0.02 < 0.05 < before


def test_the_fitted_temperature_minimizes_the_loss() -> None:
    logits, labels = drawn(300, 4)
    degree = fit_temperature(1.7 * logits, labels)

    def loss(temperature: float) -> float:
        scaled = 1.7 * logits.double() / temperature
        return float(torch.nn.functional.cross_entropy(scaled, labels))

    assert all(loss(degree) <= loss(degree * factor) for factor in (0.9, 0.97, 1.03, 1.1))


def test_a_few_right_answers_do_not_make_a_model_certain() -> None:
    logits, labels = torch.tensor([[1.0, 0.0]]).repeat(3, 1), torch.tensor([0, 0, 0])
    assert 0.4 < fit_temperature(logits, labels) < 1
    assert fit_temperature(logits.repeat(2000, 1), labels.repeat(2000)) < 0.2


def test_temperatures_are_bounded_and_rows_that_are_not_finite_are_ignored() -> None:
    logits, labels = drawn(2000, 5)
    assert fit_temperature(1e-6 * logits, labels) >= 1 / MAX_TEMPERATURE - 1e-3
    assert fit_temperature(1e6 * logits, labels) <= MAX_TEMPERATURE + 1e-3
    broken = logits.clone()
    broken[:10] = torch.nan
    labels[20:30] = -1
    assert fit_temperature(broken, labels) == fit_temperature(
        torch.cat((logits[10:20], logits[30:])), torch.cat((labels[10:20], labels[30:]))
    )
    assert fit_temperature(torch.full_like(logits, torch.nan), labels) == 1.0


def test_only_validation_labels_are_used() -> None:
    task = synthetic_task(num_nodes=600, num_edges=900, num_classes=4, split_shares=(0.3, 0.4, 0.3))
    logits = 4 * torch.randn(600, 4, generator=torch.Generator().manual_seed(1))
    labels = task.labels.clone()
    labels[task.split.test] = (labels[task.split.test] + 1) % 4
    other = replace(task, labels=labels)
    assert calibrate(logits, task)["temperature"] == calibrate(logits, other)["temperature"]
    assert calibrate(logits, task)["ece"]["val"] == calibrate(logits, other)["ece"]["val"]


@pytest.fixture(scope="module")
def done() -> Run:
    return run(Recipe(name="small").with_settings(SETTINGS), seed=2)


def test_a_run_stores_its_temperature_and_the_measured_errors(done: Run) -> None:
    found, task = done.metrics["calibration"], done.task
    logits, chances = done.logits(done.observed_labels(reveal="train")), done.predict()
    assert found["temperature"] == done.temperature != 1.0
    for name in ("val", "test"):
        nodes = getattr(task.split, name)
        labels = task.labels[nodes]
        assert found["ece"][name] == {
            "before": calibration_error(torch.softmax(logits[nodes], 1), labels),
            "after": calibration_error(chances[nodes], labels),
        }
    assert found["note"] == ""


def test_a_temperature_changes_no_prediction(done: Run) -> None:
    scores = done.outputs(done.observed_labels(reveal="train"))
    assert torch.equal(done.probabilities_of(scores).argmax(1), scores.argmax(1))


def test_without_validation_labels_probabilities_stay_as_they_are() -> None:
    given = synthetic_task(num_nodes=60, num_edges=120, num_classes=3, num_features=4)
    split = given.split
    task = Task(
        given.name,
        given.graph,
        given.labels,
        Split(split.train, torch.empty(0), split.test),
        given.metric,
        3,
    )
    done = run(task, settings=["model.width=4", "train.epochs=2", "train.device=cpu"])
    found = done.metrics["calibration"]
    assert found["temperature"] == done.temperature == 1.0
    assert "no validation labels" in found["note"]
    assert list(found["ece"]) == ["test"]
    assert "not calibrated: there are no validation labels" in calibration_in_words([found])


def of_validation(logits: torch.Tensor, labels: torch.Tensor) -> Task:
    """A task whose validation nodes are all but the last two."""
    count = len(labels)
    graph = synthetic_task(num_nodes=count, num_edges=count, num_classes=2).graph
    split = Split(torch.tensor([count - 2]), torch.arange(count - 2), torch.tensor([count - 1]))
    return Task("few", graph, labels, split, "accuracy", logits.shape[1])


def test_a_few_validation_nodes_give_no_temperature() -> None:
    logits, labels = drawn(100, 4)
    few = calibrate(5 * logits[:31], of_validation(logits[:31], labels[:31]))
    assert few["temperature"] == 1.0
    assert few["note"].startswith("29 validation labels are too few")
    assert calibrate(5 * logits, of_validation(logits, labels))["temperature"] > 2


def test_a_temperature_that_increases_the_error_is_not_used() -> None:
    # Promised 75 % and right in 75 %, but for sure ones that are wrong and pull the likeliest up.
    logits = torch.zeros(102, 2)
    logits[:80, 0], logits[80:, 0] = 1.0986, 30.0
    labels = torch.zeros(102, dtype=torch.long)
    labels[:20] = 1
    labels[80:84] = 1
    task = of_validation(logits, labels)
    worse = measured(logits, task, fit_temperature(logits[:100], labels[:100]))["ece"]["val"]
    assert worse["after"] > worse["before"]
    found = calibrate(logits, task)
    assert found["temperature"] == 1.0
    assert found["ece"]["val"]["after"] == found["ece"]["val"]["before"]
    assert "would increase the calibration error" in calibration_in_words([found])


def test_label_propagation_is_measured_but_not_calibrated() -> None:
    recipe = Recipe(name="small").with_settings([*SETTINGS, "model.name=label-propagation"])
    done = run(recipe)
    found = done.metrics["calibration"]
    assert found["temperature"] == 1.0
    assert "label propagation gives shares" in found["note"]
    test = done.task.split.test
    assert found["ece"]["test"]["after"] == pytest.approx(
        calibration_error(done.predict()[test], done.task.labels[test]), abs=1e-3
    )


def test_smoothed_probabilities_are_calibrated_by_their_logarithms() -> None:
    done = run(Recipe(name="small").with_settings([*SETTINGS, "smooth.form=correct-and-smooth"]))
    scores = done.outputs(done.observed_labels(reveal="train"))
    assert done.temperature != 1.0
    assert torch.equal(done.probabilities_of(scores).argmax(1), scores.argmax(1))
    torch.testing.assert_close(done.probabilities_of(scores).sum(1), torch.ones(len(scores)))
    found = done.metrics["calibration"]["ece"]["val"]
    assert found["after"] < found["before"]


def test_one_line_states_means_over_runs() -> None:
    one = {"temperature": 1.2, "note": "", "ece": {"test": {"before": 0.06, "after": 0.02}}}
    two = {"temperature": 1.4, "note": "", "ece": {"test": {"before": 0.08, "after": 0.01}}}
    assert calibration_in_words([one, two]) == (
        "confidence: temperature 1.30; calibration error 7.00 % → 1.50 % on test"
    )
    left = {**one, "note": "too few"}
    assert calibration_in_words([one, left]).endswith("; 1 of 2 runs are not calibrated: too few")
    assert calibration_in_words([left]) == "confidence is not calibrated: too few"


def test_the_proof_measures_existing_runs(tmp_path: Path) -> None:
    """The short form of proofs/calibration.py."""
    made = run(Recipe(name="small").with_settings(SETTINGS), out=tmp_path / "run")
    proof = runpy.run_path(str(Path(__file__).parents[2] / "proofs" / "calibration.py"))
    code = proof["main"]([str(tmp_path / "run"), "--out", str(tmp_path / "found.json")])
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    for part, ece in made.metrics["calibration"]["ece"].items():
        assert found["runs"][0]["ece"][part] == pytest.approx(ece)
    after = made.metrics["calibration"]["ece"]["test"]["after"]
    assert found["passed"] == (after <= 0.03) == (code == 0)


def test_a_temperature_may_be_any_real_number_but_not_truth() -> None:
    for value in (2, np.float32(2), np.int64(2)):
        assert checked_temperature(value) == 2.0
    for wrong in (True, "2", 2j):
        with pytest.raises(RunError, match="temperature"):
            checked_temperature(wrong)
