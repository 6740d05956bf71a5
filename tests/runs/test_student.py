"""A student: one UniMP that learned the answers of another run, stored as an ordinary run."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import unimp
from unimp.config.run_files import CHECKPOINT, MANIFEST, TASK
from unimp.ensemble import portfolio
from unimp.errors import RecipeError, RunError
from unimp.inference.incremental.changes import Change
from unimp.inference.incremental.logits import IncrementalLogits
from unimp.runs import student as students
from unimp.runs.run import Run
from unimp.tasks.task import Task

NAMES = ["label-propagation", "unimp"]
SHORT = {"train.epochs": 8, "model.width": 8, "train.device": "cpu"}
LAST = {**SHORT, "train.eval_from": 8, "train.patience": 0}
"""The last epoch is the only one that is scored, so validation chooses nothing."""
SETTINGS = {
    "task.scale": 0.05,
    "train.device": "cpu",
    "ensemble.portfolio": "good",
    "ensemble.members": NAMES,
}


@pytest.fixture(autouse=True)
def short_members(monkeypatch: pytest.MonkeyPatch) -> None:
    short = {**portfolio.FRAME, "train.epochs": 12, "model.width": 16}
    monkeypatch.setattr(portfolio, "FRAME", short)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        short_members.__wrapped__(patch)  # type: ignore[attr-defined]
        folder = tmp_path_factory.mktemp("teacher") / "ensemble"
        unimp.run("synthetic", seed=3, out=folder, settings=SETTINGS, report=False)
    return folder


@pytest.fixture(scope="module")
def student(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("student") / "student"
    unimp.load_run(teacher, device="cpu").distill(out=folder, settings=SHORT)
    return folder


@pytest.fixture(scope="module")
def task() -> Task:
    return unimp.load_task("synthetic", scale=0.05)


def loaded(folder: Path) -> Run:
    return unimp.load_run(folder, device="cpu")


def weights(run: Run) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in run.model.state_dict().items()}


def same_weights(one: Run, other: Run) -> bool:
    first, second = weights(one), weights(other)
    return first.keys() == second.keys() and all(torch.equal(first[n], second[n]) for n in first)


def test_a_student_is_stored_as_one_unimp_on_the_split_of_its_teacher(
    teacher: Path, student: Path
) -> None:
    given, found = loaded(teacher), loaded(student)
    assert isinstance(found.model, unimp.UniMP)
    assert found.takes_labels
    assert found.recipe.model.propagated_labels
    assert (found.seed, found.recipe.task.split) == (3, 3)
    assert torch.equal(found.task.split.test, given.task.split.test)
    other = given.distill(seed=0, settings=SHORT)  # the split stays that of the teacher
    assert torch.equal(other.task.split.test, given.task.split.test)


def test_the_same_seed_gives_the_same_bytes(teacher: Path, student: Path, tmp_path: Path) -> None:
    loaded(teacher).distill(out=tmp_path / "again", settings=SHORT)
    for name in ("model.safetensors", "predictions.parquet"):
        assert (tmp_path / "again" / name).read_bytes() == (student / name).read_bytes()


def test_a_stored_student_does_not_need_its_teacher(
    teacher: Path, student: Path, tmp_path: Path
) -> None:
    run = loaded(shutil.copytree(student, tmp_path / "alone" / "student"))
    assert torch.equal(run.predict(), loaded(student).predict())
    assert run.evaluate()["test"] == run.metrics["scores"]["train"]["test"]
    assert len(run.suggest(5).to_arrow()) == 5
    assert run.explain(3).probability > 0
    assert run.audit(folds=5) is not None
    assert "Student" in run.report().read_text(encoding="utf-8")


def test_the_metrics_compare_a_student_with_its_teacher(teacher: Path, student: Path) -> None:
    given, section = loaded(teacher), loaded(student).metrics["student"]
    (row,) = (r for r in given.metrics["ensemble"]["members"] if r["name"] == "unimp")
    assert section["teacher"] == teacher.name
    for name, scores in section["scores"].items():
        assert scores["teacher"] == given.metrics["scores"]["train"][name]
        assert scores["student"] == loaded(student).metrics["scores"]["train"][name]
        assert scores["unimp"] == row[name]
    assert set(section["scores"]) == {"val", "test"}


def test_later_labels_change_the_answers_of_a_student_incrementally(student: Path) -> None:
    run = loaded(student)
    observed = run.observed_labels(reveal="train")
    nodes = run.task.split.test[:3]
    engine = run.incremental(observed)
    assert isinstance(engine, IncrementalLogits)
    before = run.outputs(observed)
    engine.commit(Change(nodes, run.task.labels[nodes]))
    changed = observed.clone()
    changed[nodes] = run.task.labels[nodes]
    assert torch.allclose(engine.logits, run.outputs(changed), atol=1e-4)
    assert not torch.allclose(run.outputs(changed), before, atol=1e-4)


def test_the_teacher_changes_the_weights(teacher: Path) -> None:
    given = loaded(teacher)
    one = given.distill(settings=SHORT)
    recipe = one.recipe.with_settings({"train.teacher": "", "train.teacher_sha256": ""})
    assert not same_weights(one, unimp.run(recipe, seed=one.seed))
    other = given.distill(settings={**SHORT, "train.teacher_weight": 0.1})
    assert not same_weights(one, other)


@pytest.mark.parametrize("regime", ["partition", "neighbors"])
def test_a_student_learns_in_the_other_regimes(teacher: Path, regime: str) -> None:
    settings = {**SHORT, "batch.regime": regime, "batch.parts": 2, "batch.batch_size": 50}
    given = loaded(teacher)
    one = given.distill(settings=settings)
    other = given.distill(settings={**settings, "train.teacher_weight": 0.1})
    assert one.recipe.batch.regime == regime
    assert not same_weights(one, other)


def permuted(task: Task, nodes: torch.Tensor) -> Task:
    labels = task.labels.clone()
    order = torch.randperm(len(nodes), generator=torch.Generator().manual_seed(0))
    labels[nodes] = labels[nodes[order]]
    assert not torch.equal(labels, task.labels)
    return replace(task, labels=labels)


def student_of(task: Task, out: Path, student: dict[str, Any], **teacher: Any) -> Run:
    settings = {"train.device": "cpu", **teacher}
    given = unimp.run(task, out=out, settings=settings, report=False)
    return given.distill(settings=student)


def test_test_labels_do_not_change_a_student(task: Task, tmp_path: Path) -> None:
    ensemble = {"ensemble.portfolio": "good", "ensemble.members": NAMES}
    one = student_of(task, tmp_path / "one", SHORT, **ensemble)
    changed = permuted(task, task.split.test)
    assert same_weights(one, student_of(changed, tmp_path / "other", SHORT, **ensemble))


@pytest.mark.parametrize("regime", ["full", "partition", "neighbors"])
def test_validation_and_test_labels_do_not_change_a_student_at_its_last_epoch(
    task: Task, tmp_path: Path, regime: str
) -> None:
    """Validation chooses nothing of label propagation either, so its answers are the same."""
    alone = {"model.name": "label-propagation"}
    settings = {**LAST, "batch.regime": regime, "batch.batch_size": 50}
    one = student_of(task, tmp_path / "one", settings, **alone)
    changed = permuted(task, torch.cat((task.split.val, task.split.test)))
    assert same_weights(one, student_of(changed, tmp_path / "other", settings, **alone))


def test_a_teacher_answers_with_train_labels_alone_as_inputs(
    teacher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, seen = loaded(teacher), []
    outputs = Run.outputs

    def noted(self: Run, observed: torch.Tensor) -> torch.Tensor:
        seen.append(observed)
        return outputs(self, observed)

    monkeypatch.setattr(Run, "outputs", noted)
    given.distill(settings=SHORT)
    assert torch.equal(seen[0], given.observed_labels(reveal="train"))


def test_an_unstored_task_is_stored_with_the_student(task: Task, tmp_path: Path) -> None:
    run = unimp.run(
        task,
        out=tmp_path / "teacher",
        settings={"model.name": "label-propagation", "task.self_loops": True},
        report=False,
    )
    one = run.distill(out=tmp_path / "student", settings=SHORT)
    assert (tmp_path / "student" / TASK).exists()
    shutil.rmtree(tmp_path / "teacher")
    again = loaded(tmp_path / "student")
    assert torch.equal(again.predict(), one.predict())
    assert again.task.graph.num_edges == run.task.graph.num_edges
    assert again.default_reveal == run.default_reveal


def test_binary_tasks_have_students(task: Task, tmp_path: Path) -> None:
    labels = torch.nn.functional.one_hot(task.labels, task.num_classes)[:, :3].to(torch.int8)
    binary = replace(task, labels=labels, num_classes=3, metric="rocauc", class_names=None)
    run = student_of(binary, tmp_path / "run", SHORT, **{"model.name": "label-propagation"})
    given = run.predict(reveal="train")
    assert bool(((given >= 0) & (given <= 1)).all())


class StoppedError(Exception):
    """Stands for the end of a process."""


def test_an_interrupted_student_resumes_and_a_finished_one_is_loaded(
    teacher: Path, student: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, given = tmp_path / "student", loaded(teacher)

    def stop(epoch: Any) -> None:
        if epoch.epoch == 4:
            raise StoppedError

    made = students.Experiment
    with monkeypatch.context() as patch:
        patch.setattr(students, "Experiment", lambda *a, **k: made(*a, **k, on_epoch=stop))
        with pytest.raises(StoppedError):
            given.distill(out=folder, settings=SHORT)
    assert (folder / CHECKPOINT).exists()
    assert not (folder / MANIFEST).exists()
    with pytest.raises(RunError, match=r"train\.teacher_weight"):
        given.distill(out=folder, settings={**SHORT, "train.teacher_weight": 2.0})
    given.distill(out=folder, settings=SHORT)
    weights = (folder / "model.safetensors").read_bytes()
    assert weights == (student / "model.safetensors").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(students, "Experiment", lambda *a, **k: made(*a, **k, on_epoch=stop))
        given.distill(out=folder, settings=SHORT)  # it is loaded: no epoch is trained


def test_a_folder_with_another_run_is_refused(teacher: Path, student: Path) -> None:
    given = loaded(teacher)
    with pytest.raises(RunError, match=r"train\.teacher"):
        given.distill(out=teacher, settings=SHORT)
    with pytest.raises(RunError, match="seed"):
        given.distill(out=student, settings=SHORT, seed=9)


def test_the_recipe_of_a_student_trains_the_same_student_or_nothing(
    teacher: Path, student: Path, tmp_path: Path
) -> None:
    copied = shutil.copytree(teacher, tmp_path / "ensemble")
    moved = tmp_path / "student"
    moved.mkdir()
    text = (student / "recipe.toml").read_text(encoding="utf-8")
    recipe = moved / "recipe.toml"
    line = next(line for line in text.splitlines() if line.startswith("teacher = "))
    recipe.write_text(text.replace(line, 'teacher = "../ensemble"'), encoding="utf-8")
    again = unimp.run(str(recipe), seed=3)
    assert same_weights(again, loaded(student))
    shutil.rmtree(copied)
    unimp.run("synthetic", seed=3, out=copied, settings={"task.scale": 0.05, **SHORT})
    with pytest.raises(RunError, match="not the teacher"):
        unimp.run(str(recipe), seed=3)
    shutil.rmtree(copied)
    with pytest.raises(RunError, match="ensemble"):
        unimp.run(str(recipe), seed=3)


def test_a_teacher_on_another_split_is_refused(teacher: Path, student: Path) -> None:
    recipe = loaded(student).recipe.with_settings({"task.split": 4})
    with pytest.raises(RunError, match=r"train\.teacher.*split"):
        unimp.run(recipe, seed=3)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"train.teacher": ""}, "train.teacher_sha256"),
        ({"model.name": "ridge"}, "training loop"),
        ({"model.name": "label-propagation"}, "training loop"),
        ({"ensemble.portfolio": "quick"}, "single model"),
    ],
)
def test_settings_that_a_student_cannot_use_are_refused(
    teacher: Path, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(RecipeError, match=words):
        loaded(teacher).distill(settings={**SHORT, **settings})


def test_a_run_that_is_not_the_stored_one_is_refused(teacher: Path, task: Task) -> None:
    with pytest.raises(RunError, match="smoothed"):
        loaded(teacher).smoothed().distill(settings=SHORT)
    with pytest.raises(RunError, match="folder"):
        unimp.run(task, settings={"model.name": "label-propagation"}).distill()


def test_a_changed_comparison_is_refused(student: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(student, tmp_path / "student")
    metrics = json.loads((folder / "metrics.json").read_text())
    metrics["student"]["scores"]["val"]["share_of_gain"] = 0.99
    (folder / "metrics.json").write_text(json.dumps(metrics))
    with pytest.raises(RunError, match=r"metrics\.json changed"):
        loaded(folder)
