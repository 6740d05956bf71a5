"""After scoring, the chosen members of an ensemble are trained again on all known labels."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import unimp
from unimp.config.run_files import METRICS, REFIT, WEIGHTS
from unimp.ensemble import portfolio
from unimp.errors import RunError
from unimp.runs import refit, trained_members, workers
from unimp.runs.evidence import find_runs
from unimp.runs.run import Run
from unimp.runs.student import distill
from unimp.tasks.task import Task

NAMES = ["label-propagation", "ridge", "gcn", "mlp"]
SETTINGS: dict[str, Any] = {
    "task.scale": 0.05,
    "task.split": 0,
    "train.device": "cpu",
    "ensemble.portfolio": "good",
    "ensemble.members": NAMES,
    "ensemble.jobs": 1,
    "ensemble.folds": 0,
}


@pytest.fixture(autouse=True)
def short_trainings(monkeypatch: pytest.MonkeyPatch) -> None:
    short = {**portfolio.FRAME, "train.epochs": 12, "model.width": 16}
    monkeypatch.setattr(portfolio, "FRAME", short)
    chosen = trained_members.choose_weights  # every member keeps some weight
    monkeypatch.setattr(
        trained_members,
        "choose_weights",
        lambda given, *more: (chosen(given, *more) + 1) / (1 + len(given)),
    )


def train(out: Path | None = None, when: str = "always", **more: Any) -> Run:
    settings = {**SETTINGS, "ensemble.refit": when, **more}
    return unimp.run("synthetic", out=out, settings=settings, report=False)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same ensemble with and without a refit."""
    with pytest.MonkeyPatch.context() as patch:
        short_trainings.__wrapped__(patch)  # type: ignore[attr-defined]
        base = tmp_path_factory.mktemp("refit")
        train(base / "with")
        train(base / "without", "never")
    return base / "with", base / "without"


def metrics_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / METRICS).read_text())
    return found


def test_scores_and_weights_are_those_from_before_the_refit(folders: tuple[Path, Path]) -> None:
    after, before = map(metrics_of, folders)
    assert {name: after["scores"][name] for name in before["scores"]} == before["scores"]
    assert list(after["scores"][REFIT]) == ["test"]
    for row, same in zip(after["ensemble"]["members"], before["ensemble"]["members"], strict=True):
        assert all(row[key] == same[key] for key in ("name", "weight", "temperature", "val"))
    assert (folders[0] / WEIGHTS).read_bytes() != (folders[1] / WEIGHTS).read_bytes()


def test_a_refitted_run_is_loaded_and_predicts_the_same(folders: tuple[Path, Path]) -> None:
    run, trained = unimp.load_run(folders[0], device="cpu"), train()
    assert torch.equal(run.predict(), trained.predict())
    assert run.evaluate() == pytest.approx(run.metrics["scores"][REFIT])
    assert len(run.predictions().to_arrow()) == run.task.graph.num_nodes
    node = int(run.task.split.test[0])
    assert run.explain(node).edges is not None


def test_only_the_test_set_of_a_refitted_run_is_scored(folders: tuple[Path, Path]) -> None:
    refitted, plain = (unimp.load_run(folder, device="cpu") for folder in folders)
    for protocol in ("train", "train+val"):
        with pytest.raises(RunError, match="validation labels"):
            refitted.evaluate(protocol)
    with pytest.raises(RunError, match="not refitted"):
        plain.evaluate(REFIT)


def test_calibration_is_that_from_before_the_refit(folders: tuple[Path, Path]) -> None:
    after, before = map(metrics_of, folders)
    assert after["calibration"] == before["calibration"]
    smooth = unimp.load_run(folders[0], device="cpu").smoothed()
    assert smooth.temperature == 1.0  # nothing can be fitted on labels that were learned
    assert "refitted" in smooth.metrics["calibration"]["note"]


def test_a_student_of_a_refitted_ensemble_learns_from_its_predictions_before(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    settings = {"train.epochs": 3, "model.width": 8, "model.layers": 2, "train.device": "cpu"}
    students = [
        distill(folder, out=tmp_path / folder.name, settings=settings, progress=False)
        for folder in folders
    ]
    one, other = (student.model.state_dict() for student in students)
    for name, value in one.items():
        assert torch.allclose(value, other[name], atol=1e-5)
    sections = [student.metrics["student"]["scores"] for student in students]
    assert sections[0] == sections[1]


def test_members_are_not_runs_of_their_own(folders: tuple[Path, Path]) -> None:
    assert (folders[0] / REFIT / "gcn").is_dir()
    assert find_runs([folders[0].parent]) == list(folders)


def test_a_folder_of_runs_may_have_any_name(tmp_path: Path) -> None:
    unimp.run(
        "synthetic",
        out=tmp_path / REFIT / "first",
        settings={"task.scale": 0.02, "train.epochs": 1, "model.width": 4, "train.device": "cpu"},
        report=False,
    )
    assert find_runs([tmp_path]) == [tmp_path / REFIT / "first"]


def with_labels(task: Task, nodes: torch.Tensor) -> Task:
    """The task with other labels of some nodes."""
    labels = task.labels.clone()
    labels[nodes] = labels[nodes].roll(1)
    return replace(task, labels=labels)


def own_run(task: Task) -> Run:
    settings = {k: v for k, v in SETTINGS.items() if not k.startswith("task.")}
    return unimp.run(task, settings=settings)


def test_your_own_data_is_refitted_and_test_labels_change_nothing() -> None:
    task = unimp.load_task("synthetic", scale=0.05)
    one, other = own_run(task), own_run(with_labels(task, task.split.test))
    assert one.is_refitted
    for name, value in one.model.state_dict().items():
        assert torch.equal(value, other.model.state_dict()[name])


def test_the_refit_learns_from_validation_labels() -> None:
    task = unimp.load_task("synthetic", scale=0.05)
    one, other = own_run(task), own_run(with_labels(task, task.split.val))
    for index, name in enumerate(NAMES):
        weights = [run.members[index].model.state_dict() for run in (one, other)]
        equal = all(torch.equal(value, weights[1][key]) for key, value in weights[0].items())
        assert equal == (name == "label-propagation")


def test_a_task_with_a_name_is_not_refitted_by_default() -> None:
    assert not train(when="own").is_refitted


def test_members_that_fail_or_have_no_time_stay_as_they_were(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refit._Refit, "_time_left", lambda self, entry: 0.0)
    run = train(tmp_path / "run")
    assert set(run.metrics["ensemble"]["not_refitted"]) == {"ridge", "gcn", "mlp"}
    assert not run.is_refitted
    assert REFIT not in run.metrics["scores"]
    before = unimp.load_run(folders[1], device="cpu")
    observed = run.observed_labels(reveal="train")
    assert torch.equal(run.outputs(observed), before.outputs(observed))


class StoppedError(Exception):
    """Stands for the end of a process."""


@pytest.mark.parametrize("limit", [0.0, 600.0])
@pytest.mark.parametrize("after", [3, 14])  # in the first and in the second member
def test_an_interrupted_refit_resumes_and_ends_with_the_same_weights(
    folders: tuple[Path, Path], tmp_path: Path, limit: float, after: int
) -> None:
    folder, counted = tmp_path / "run", 0
    settings = {**SETTINGS, "ensemble.refit": "always", "train.time_limit": limit}

    def stop(epoch: Any) -> None:
        nonlocal counted
        counted += (folder / REFIT).exists()
        if counted == after:
            raise StoppedError

    with pytest.raises(StoppedError):
        unimp.run("synthetic", out=folder, settings=settings, on_epoch=stop, report=False)
    run = train(folder, **{"train.time_limit": limit})
    assert run.metrics["ensemble"]["not_refitted"] == {}
    assert (folder / WEIGHTS).read_bytes() == (folders[0] / WEIGHTS).read_bytes()


def test_workers_refit_with_the_same_result(folders: tuple[Path, Path], tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        one, two = (train(tmp_path / str(n), **{"ensemble.jobs": n}) for n in (1, 2))
    finally:
        torch.set_num_threads(threads)
    assert two.metrics["ensemble"]["not_refitted"] == {}
    for name, value in one.model.state_dict().items():
        assert torch.equal(value, two.model.state_dict()[name])


def test_workers_are_planned_for_ensembles_with_members_that_are_solved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The shapes of a solved model are not known before it is solved."""
    monkeypatch.setattr(workers, "is_small", lambda graph: False)
    monkeypatch.setattr(workers, "usable_cores", lambda: 2)
    run = train(**{"ensemble.jobs": 0, "ensemble.members": ["ridge", "gcn", "mlp"]})
    assert run.is_refitted
    assert run.metrics["ensemble"]["not_refitted"] == {}
