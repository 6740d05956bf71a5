"""With few validation labels, members are trained on folds of train and validation labels."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import unimp
from unimp.config.run_files import METRICS, REFIT, WEIGHTS
from unimp.ensemble import portfolio
from unimp.ensemble.folds import fold_of, known_nodes, split_for
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


def train(task: Task, out: Path | None = None, **more: Any) -> Run:
    return unimp.run(task, out=out, settings={**SETTINGS, **more}, report=False)


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
    fit = bags.fit_calibration

    def watched(answers: torch.Tensor, labels: torch.Tensor) -> Any:
        seen.append(answers)
        return fit(answers, labels)

    monkeypatch.setattr(bags, "fit_calibration", watched)
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
    run = train(task)
    assert all(row["folds"] == 1 for row in _rows(run))
    monkeypatch.setattr(bags, "LEAST_WEIGHT", 0.1)
    run = train(task)
    assert run.metrics["ensemble"]["not_refitted"] == {"gcn": bags.NO_TIME}
    assert {row["name"]: row["weight"] for row in _rows(run)}["gcn"] == 0


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
