"""With few validation labels, members are trained on folds of train and validation labels."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import unimp
from unimp.config.recipe import load_recipe
from unimp.config.run_files import METRICS, REFIT, WEIGHTS
from unimp.data.synthetic import synthetic_task
from unimp.ensemble import portfolio
from unimp.ensemble.calibration import fit_calibration
from unimp.ensemble.folds import fold_of, known_nodes, split_for
from unimp.ensemble.model import Entry
from unimp.errors import TrainingError
from unimp.runs import bags
from unimp.runs.run import Run
from unimp.tasks.task import Task

NAMES = ["label-propagation", "ridge", "gcn"]
FOLDS = 3
SETTINGS: dict[str, Any] = {
    "train.device": "cpu",
    "ensemble.portfolio": "good",
    "ensemble.members": NAMES,
    "ensemble.jobs": 1,
    "ensemble.folds": FOLDS,
}


@pytest.fixture(autouse=True)
def short_trainings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        portfolio, "FRAME", {**portfolio.FRAME, "train.epochs": 8, "model.width": 8}
    )


@pytest.fixture(scope="module")
def task() -> Task:
    """A task with few labels: 20 train and 10 validation nodes."""
    whole = unimp.load_task("synthetic", scale=0.05)
    known = known_nodes(whole.split)[:30]
    split = unimp.Split(known[:20], known[20:], whole.split.test)
    return replace(whole, split=split)


@pytest.fixture(scope="module")
def folder(task: Task, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        short_trainings.__wrapped__(patch)  # type: ignore[attr-defined]
        folder = tmp_path_factory.mktemp("bags") / "run"
        train(task, folder)
    return folder


def train(task: Task, place: Path | None = None, /, **more: Any) -> Run:
    return unimp.run(task, out=place, settings={**SETTINGS, **more}, report=False)


def summary_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / METRICS).read_text())["ensemble"]
    return found


def with_labels(task: Task, nodes: torch.Tensor) -> Task:
    """The task with changed labels of these nodes."""
    labels = task.labels.clone()
    labels[nodes] = (labels[nodes] + 1) % task.num_classes
    return replace(task, labels=labels)


def test_folds_cover_each_known_node_once_and_divide_every_class(task: Task) -> None:
    known = known_nodes(task.split)
    parts = [split_for(task, number, FOLDS, seed=1) for number in range(FOLDS)]
    assert torch.equal(torch.cat([part.val for part in parts]).sort()[0], known)
    for part in parts:
        assert torch.equal(torch.cat((part.train, part.val)).sort()[0], known)
        assert torch.equal(part.test, task.split.test)
    counts = torch.stack([task.labels[part.val].bincount(minlength=5) for part in parts])
    assert int((counts.amax(0) - counts.amin(0)).max()) <= 1
    assert split_for(task, None, FOLDS, seed=1) is task.split
    whole = split_for(task, "refit", FOLDS, seed=1)
    assert torch.equal(whole.train, known)
    assert not whole.val.numel()


def test_folds_keep_groups_together(task: Task) -> None:
    known = known_nodes(task.split)
    groups = torch.arange(task.graph.num_nodes) % 7
    fold = fold_of(replace(task, groups=groups), FOLDS, seed=0)
    for group in range(7):
        assert len(set(fold[groups[known] == group].tolist())) == 1
    assert len(set(fold.tolist())) == FOLDS
    pairs = torch.arange(task.graph.num_nodes) % 2
    assert set(fold_of(replace(task, groups=pairs), FOLDS, seed=0).tolist()) == {0, 1}


def test_the_run_contains_the_trainings_of_all_folds(folder: Path) -> None:
    run, summary = unimp.load_run(folder, device="cpu"), summary_of(folder)
    folds = {row["name"]: row["folds"] for row in summary["members"]}
    assert folds == {"label-propagation": 1, "ridge": FOLDS, "gcn": FOLDS}
    chosen = [row["folds"] for row in summary["members"] if row["weight"] > 0]
    assert len(run.members) == sum(chosen)
    assert sum(row["weight"] for row in summary["members"]) == pytest.approx(1)
    assert 0 <= summary["val_folds"] <= 1
    assert run.is_refitted
    assert run.evaluate() == pytest.approx(run.metrics["scores"][REFIT])
    assert run.explain(int(run.task.split.test[0])).edges is not None
    outputs = run.outputs(run.observed_labels())
    assert torch.allclose(run.live().logits, outputs, atol=1e-5)


def test_test_labels_do_not_influence_the_ensemble_and_validation_labels_do(task: Task) -> None:
    one, other = train(task), train(with_labels(task, task.split.test))
    for name, value in one.model.state_dict().items():
        assert torch.equal(value, other.model.state_dict()[name])
    assert torch.equal(one.predict(reveal="train"), other.predict(reveal="train"))
    changed = train(with_labels(task, task.split.val))
    assert not torch.equal(one.predict(reveal="train"), changed.predict(reveal="train"))


def test_answers_for_a_held_out_fold_do_not_depend_on_its_labels(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.Tensor] = []

    def watched(answers: torch.Tensor, labels: torch.Tensor) -> Any:
        seen.append(answers)
        return fit_calibration(answers, labels)

    monkeypatch.setattr("unimp.runs.bags.fit_calibration", watched)
    # With groups, the folds themselves do not depend on labels.
    task = replace(task, groups=torch.arange(task.graph.num_nodes))
    first = split_for(task, 0, FOLDS, seed=0).val
    # Label propagation chooses nothing on the held-out fold.
    alone = {"ensemble.members": ["label-propagation"]}
    for own in (task, with_labels(task, first)):
        train(own, **alone)
    of_first = torch.isin(known_nodes(task.split), first)
    assert torch.equal(seen[0][of_first], seen[1][of_first])
    assert not torch.equal(seen[0], seen[1])


def test_a_training_learns_nothing_from_its_held_out_fold(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Every training ends with its last epoch, so the held-out fold chooses nothing.
    last = {"train.epochs": 4, "train.eval_from": 4, "train.patience": 0}
    monkeypatch.setattr(portfolio, "FRAME", {**portfolio.FRAME, **last})
    task = replace(task, groups=torch.arange(task.graph.num_nodes))
    first = split_for(task, 0, FOLDS, seed=0).val
    for name, own in (("one", task), ("other", with_labels(task, first))):
        train(own, tmp_path / name, **{"ensemble.members": ["gcn"]})
    for fold in range(1, FOLDS + 1):
        folders = (tmp_path / name / REFIT / f"gcn-fold{fold}" for name in ("one", "other"))
        weights = [(place / WEIGHTS).read_bytes() for place in folders]
        assert (weights[0] == weights[1]) == (fold == 1)


def test_the_temperature_is_fitted_on_the_held_out_folds(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unimp.runs.bags.fit_temperature", lambda logits, labels: 1.5)
    wide, alone = replace(task, split=wider(task)), {"ensemble.members": ["gcn"]}
    run = train(wide, **alone)
    assert run.temperature == 1.5
    # The validation labels alone are too few to fit a temperature.
    assert train(wide, **alone, **{"ensemble.folds": 0}).temperature == 1.0
    monkeypatch.setattr("unimp.runs.bags.fit_temperature", lambda logits, labels: 0.5)
    assert train(wide, **alone).temperature == 1.0  # no prediction becomes more confident


def wider(task: Task) -> unimp.Split:
    """45 train and 15 validation nodes."""
    known = torch.cat((task.split.train, task.split.val, task.split.test[:30]))
    return unimp.Split(known[:45], known[45:], task.split.test[30:])


@pytest.mark.parametrize(("tasks", "metric"), [(4, "accuracy"), (4, "rocauc"), (0, "rocauc")])
def test_binary_tasks_are_scored_on_the_held_out_folds(tasks: int, metric: Any) -> None:
    whole = synthetic_task(
        num_nodes=200,
        num_edges=800,
        num_classes=2,
        num_features=8,
        feature_signal=2.0,
        multilabel_tasks=tasks,
        split_shares=(0.3, 0.1, 0.6),
    )
    whole = replace(whole, metric=metric)
    run = train(whole, **{"ensemble.members": ["gcn"]})
    summary = run.metrics["ensemble"]
    assert summary["folds"] == FOLDS
    # The same members answer the test nodes about as well as their held-out folds.
    assert summary["val_folds"] == pytest.approx(run.metrics["scores"][REFIT]["test"], abs=0.2)
    assert summary["val_folds"] > 0.5


def test_label_propagation_alone_is_not_trained_again(task: Task) -> None:
    run = train(task, **{"ensemble.members": ["label-propagation"]})
    assert not run.is_refitted


def test_many_validation_labels_or_no_folds_give_one_refit(task: Task) -> None:
    assert all(row["folds"] == 1 for row in _rows(train(task, **{"ensemble.folds": 0})))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unimp.runs.preparation.FEW_TO_CHOOSE", 5)
        assert all(row["folds"] == 1 for row in _rows(train(task)))


def _rows(run: Run) -> list[dict[str, Any]]:
    assert run.is_refitted
    rows: list[dict[str, Any]] = run.metrics["ensemble"]["members"]
    return rows


def test_members_are_refitted_once_if_folds_keep_too_little_of_the_weight(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bags._Bags, "_has_time", lambda self, entry: entry.name != "gcn")
    monkeypatch.setattr(bags, "LEAST_WEIGHT", 0.9)
    with monkeypatch.context() as patch:
        patch.setattr(bags, "FEW_NODES", 5)  # otherwise, all weights are equal
        assert all(row["folds"] == 1 for row in _rows(train(task)))
    run = train(task)
    assert run.metrics["ensemble"]["not_refitted"] == {"gcn": bags.NO_TIME}
    assert {row["name"]: row["weight"] for row in _rows(run)}["gcn"] == 0


@pytest.mark.parametrize(
    ("left", "jobs", "stored", "has_time"),
    [
        (None, 1, 0, True),
        (99.0, 1, 0, True),
        (29.0, 1, 0, False),  # three trainings of 10 seconds
        (19.0, 2, 0, False),  # two after the other
        (21.0, 2, 0, True),
        (9.0, 8, 0, False),  # one training is not divided
        (11.0, 8, 0, True),
        (11.0, 1, 2, True),  # two of them are finished
    ],
)
def test_a_member_is_trained_only_if_all_of_its_folds_can_finish(
    left: float | None, jobs: int, stored: int, has_time: bool
) -> None:
    class Times(bags._Bags):
        _left = left
        _folds, _jobs, _rows = FOLDS, jobs, {"gcn": {"seconds": 10.0}}

        def __init__(self) -> None:
            pass

        def _stored(self, entry: Entry) -> list[dict[str, Any]]:
            return [{}] * stored

    assert Times()._has_time(Entry("gcn", {}, 1.0, 1.0)) == has_time


@pytest.mark.parametrize(
    ("weights", "order"),
    [((0.2, 0.5, 0.3), [1, 2, 0]), ((1 / 3, 1 / 3, 1 / 3), [2, 0, 1])],
    ids=["the largest weights first", "equal weights: the fastest first"],
)
def test_members_are_trained_on_folds_in_the_order_of_weights_and_seconds(
    weights: tuple[float, ...], order: list[int]
) -> None:
    class Ordered(bags._Bags):
        _folds = 2

        def __init__(self) -> None:
            self._left_out: dict[str, str] = {}
            names, seconds = ("gcn", "grand-8", "appnp"), (2.0, 40.0, 1.0)
            self._rows = {name: {"seconds": s} for name, s in zip(names, seconds, strict=True)}
            self._bags = [
                bags._Bag(Entry(name, {}, weight, 1.0), torch.empty(0), {})
                for name, weight in zip(names, weights, strict=True)
            ]

        def _has_time(self, entry: Entry) -> bool:
            return True

        def _experiment_of(self, index: int, number: int) -> Any:
            return None

    found = [(fold.member, fold.number) for fold, _ in Ordered().due()]
    assert found == [(member, number) for member in order for number in range(2)]


def test_a_member_with_a_fold_that_was_cut_short_or_failed_is_left_out(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bags, "LEAST_WEIGHT", 0.1)
    add = bags._Bags.add

    def spoiled(self: bags._Bags, fold: Any, result: Any) -> None:
        entry = self._bags[fold.member].entry
        if entry.name == "gcn" and fold.number == 1:
            result.metrics["cut_short"] = True
        if entry.name == "ridge" and fold.number == 1:
            result = TrainingError("the loss became nan.")
        add(self, fold, result)

    monkeypatch.setattr(bags._Bags, "add", spoiled)
    members = ["label-propagation", "ridge", "gcn", "mlp"]
    run = train(task, **{"ensemble.members": members})
    left_out = run.metrics["ensemble"]["not_refitted"]
    assert left_out == {"ridge": "the loss became nan.", "gcn": bags.NO_TIME}
    weights = {row["name"]: row["weight"] for row in _rows(run)}
    assert weights["ridge"] == weights["gcn"] == 0
    assert weights["mlp"] > 0


def test_a_short_time_limit_ends_in_time_with_a_usable_run(task: Task, tmp_path: Path) -> None:
    run = train(task, tmp_path / "run", **{"train.time_limit": 3.0})
    assert run.metrics["seconds"] < 30
    again = unimp.load_run(tmp_path / "run", device="cpu")
    assert torch.equal(again.predict(), run.predict())


class StoppedError(Exception):
    """Simulates the end of a process."""


@pytest.mark.parametrize("after", [3, 12])  # in the first and in the second fold
def test_interrupted_folds_resume_and_end_with_the_same_weights(
    task: Task, folder: Path, tmp_path: Path, after: int
) -> None:
    place, counted = tmp_path / "run", 0

    def stop(epoch: Any) -> None:
        nonlocal counted
        counted += (place / REFIT).exists()
        if counted == after:
            raise StoppedError

    with pytest.raises(StoppedError):
        unimp.run(task, out=place, settings=SETTINGS, on_epoch=stop, report=False)
    train(task, place)
    assert (place / WEIGHTS).read_bytes() == (folder / WEIGHTS).read_bytes()


def test_workers_train_folds_with_the_same_result(task: Task, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        one, two = (train(task, tmp_path / str(n), **{"ensemble.jobs": n}) for n in (1, 2))
    finally:
        torch.set_num_threads(threads)
    for name, value in one.model.state_dict().items():
        assert torch.equal(value, two.model.state_dict()[name])


@pytest.mark.parametrize(("known", "first"), [(100, 50), (160, 1)])
def test_early_epochs_are_not_scored_on_small_folds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, known: int, first: int
) -> None:
    """Folds of 20 or 32 nodes, and 30 or 60 validation nodes, which are enough."""
    whole = unimp.load_task("synthetic", scale=0.05)
    nodes = torch.arange(known)
    split = unimp.Split(nodes[: known - 60], nodes[known - 60 :], nodes[:0])
    monkeypatch.setattr(bags, "LEAST_WEIGHT", 0.0)
    more = {"ensemble.folds": 5, "ensemble.members": ["gcn"]}
    train(replace(whole, split=split), tmp_path / "run", **more)
    recipe = load_recipe(tmp_path / "run" / REFIT / "gcn-fold1" / "recipe.toml")
    assert recipe.train.eval_from == first
