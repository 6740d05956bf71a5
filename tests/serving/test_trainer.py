"""Training again on the labels of the service."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import COLORS, SETTINGS, table_run

import unimp
from unimp.config.run_files import PLAN, TASK, WEIGHTS
from unimp.runs.run import Run
from unimp.serving import trainer
from unimp.serving.engine.applied import Applied
from unimp.serving.engine.process import load_with_split
from unimp.serving.events import Label, NewEdge, NewNode, Retraction, Write
from unimp.serving.store import Store
from unimp.serving.trainer import planned, retrain, task_now
from unimp.tasks.labels import Split, is_known
from unimp.tasks.task import Task
from unimp.training.loop import Epoch


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return table_run(tmp_path_factory.mktemp("tables"))


def tasks_after(
    run: Run, folder: Path, writes: Sequence[Write], old: Split | None = None
) -> tuple[Task, list[int]]:
    """The task of the next training after some writes, and the nodes that it holds out."""
    with Store(folder) as store:
        if not store.people.all():
            store.people.add("admin", "admin")
        for write in writes:
            store.write("admin", write)
        applied = Applied(run, store.reader)
        applied.apply()
    task, held = task_now(applied, old or run.task.split, refitted=False)
    return task, held.tolist()


def test_new_labels_are_learned_and_retracted_ones_are_not(run: Run, tmp_path: Path) -> None:
    gone = int(run.task.split.train[0])
    labels = [Label(node=f"n{n}", label="red") for n in range(0, 40, 2)]
    name = (run.task.node_names or ())[gone]
    task, held = tasks_after(run, tmp_path, [*labels, Retraction(node=name)])
    parts = torch.cat((task.split.train, task.split.val, task.split.test))
    assert len(parts) == len(torch.unique(parts))
    assert bool(is_known(task.labels[parts]).all())
    assert gone not in parts
    assert held == list(range(20, 40, 2))  # the last half
    assert not set(held) & set(parts.tolist())
    assert len(task.split.train) == len(run.task.split.train) - 1 + 8
    assert len(task.split.val) == len(run.task.split.val) + 2


def test_labels_that_the_active_model_learned_are_never_held_out(run: Run, tmp_path: Path) -> None:
    """The next generation learns the labels that were held out, and holds out later ones."""
    first, held = tasks_after(
        run, tmp_path, [Label(node=f"n{n}", label="red") for n in range(0, 40, 2)]
    )
    later = [Label(node=f"n{n}", label="blue") for n in range(40, 60, 2)]
    again = [Label(node="n0", label="green")]  # the first generation learned this node
    second, next_held = tasks_after(run, tmp_path, [*later, *again], first.split)
    seen = set(torch.cat((first.split.train, first.split.val)).tolist())
    assert not seen & set(next_held)
    assert next_held == list(range(40, 60, 2))
    assert set(held) <= set(torch.cat((second.split.train, second.split.val)).tolist())
    assert set(first.split.val.tolist()) <= set(second.split.val.tolist())


def test_held_out_labels_cannot_influence_the_new_model(run: Run, tmp_path: Path) -> None:
    weights = []
    for held_label in ("red", "blue"):
        folder = tmp_path / held_label
        labels = [Label(node=f"n{n}", label=COLORS[n % 3]) for n in range(0, 30, 2)]
        last = [Label(node=f"n{n}", label=held_label) for n in range(30, 60, 2)]
        folder.mkdir()
        task, held = tasks_after(run, folder, [*labels, *last])
        assert held == list(range(30, 60, 2))
        new = unimp.run(task, settings=SETTINGS, out=folder / "new", progress=False)
        assert new.folder is not None
        weights.append((new.folder / WEIGHTS).read_bytes())
    assert weights[0] == weights[1]


def served(folder: Path, writes: Sequence[Write]) -> None:
    """Store events in the folder of a run."""
    with Store(folder) as store:
        store.people.add("admin", "admin")
        for write in writes:
            store.write("admin", write)


def live_writes() -> list[Write]:
    values = {"size": 1.0, "kind": "a"}
    new: list[Write] = [NewNode(node="new", values=values), Label(node="new", label="blue")]
    new.append(NewEdge(node="new", target="n1", values={"weight": 2}))
    return [*new, *(Label(node=f"n{n}", label=COLORS[n % 3]) for n in range(0, 20, 2))]


@pytest.mark.parametrize(
    "kind", ["single", "refitted ensemble", "student", "student without its teacher"]
)
def test_every_kind_of_run_is_trained_again_on_the_live_graph(kind: str, tmp_path: Path) -> None:
    if kind == "single":
        run = table_run(tmp_path)
    else:
        members = ["ridge", "mlp"] if kind == "refitted ensemble" else ["ridge"]
        run = table_run(tmp_path, **{"ensemble.portfolio": "good", "ensemble.members": members})
        if "student" in kind:
            settings = {"train.epochs": 3, "train.patience": 0, "train.eval_from": 1}
            run = run.distill(out=tmp_path / "student", settings=settings, progress=False)
    folder = run.folder
    assert folder is not None
    if kind == "student without its teacher":
        (tmp_path / "run").rename(tmp_path / "away")
    served(folder, live_writes())
    out = folder / "generations" / "1"
    out.parent.mkdir()
    result = retrain(folder, out, 0, epochs=3)
    assert [check["name"] for check in result["checks"]] == [
        "finite",
        "validation",
        "calibration",
        "live labels",
    ]
    new, split = load_with_split(folder, out)
    stored = unimp.load_run(out)
    assert stored.task.graph.num_nodes == run.task.graph.num_nodes + 1
    assert stored.task.graph.num_edges == run.task.graph.num_edges + 2
    assert 60 in split.train.tolist() + split.val.tolist()  # the new node was learned
    assert new.is_refitted == run.is_refitted == (kind == "refitted ensemble")
    assert bool(stored.recipe.train.teacher) == (kind == "student")
    # The new model answers for the run and its events.
    with Store(folder) as store:
        applied = Applied(new, store.reader)
        applied.apply()
        rows = applied.answer(torch.arange(61))
    assert bool(torch.isfinite(rows.probabilities).all())


def test_a_repeated_training_uses_the_labels_that_it_started_with(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    served(folder, [Label(node=f"n{n}", label="red") for n in range(0, 20, 2)])
    out = tmp_path / "generations" / "1"
    out.mkdir(parents=True)
    plan, task = planned(folder, out, run, run.task.split)
    assert json.loads((out.parent / f"1.{PLAN}").read_text())["held"] == list(plan.held)
    unimp.run(task, settings=SETTINGS, out=out, progress=False)
    with Store(folder) as store:
        store.write("admin", *(Label(node=f"n{n}", label="blue") for n in range(0, 40, 2)))
    again, same = planned(folder, out, run, run.task.split)
    assert (again, same.data_hash()) == (plan, task.data_hash())
    (out / TASK).unlink()  # nothing was trained yet
    later, other = planned(folder, out, run, run.task.split)
    assert later.version > plan.version
    assert other.data_hash() != task.data_hash()


def test_groups_stay_together_with_new_nodes(run: Run, tmp_path: Path) -> None:
    grouped = replace(run, task=replace(run.task, groups=torch.arange(60) // 2))
    new = NewNode(node="new", values={"size": 1.0, "kind": "a"})
    task, _ = tasks_after(grouped, tmp_path, [new])
    assert task.groups is not None
    assert torch.equal(task.groups[:60], torch.arange(60) // 2)
    assert int(task.groups[60]) not in task.groups[:60].tolist()


def test_a_student_resumes_also_if_it_was_stopped_while_its_teacher_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"train.epochs": 3, "train.patience": 0, "train.eval_from": 1}
    run = table_run(tmp_path).distill(out=tmp_path / "student", settings=settings, progress=False)
    folder = run.folder
    assert folder is not None
    served(folder, live_writes())
    out = folder / "generations" / "1"
    out.parent.mkdir()
    epochs: list[str] = []

    def watched(*given: Any, out: Path, **options: Any) -> Run:
        def on_epoch(epoch: Epoch) -> None:
            epochs.append(out.name)
            if len(epochs) == 6:
                raise KeyboardInterrupt

        return unimp.run(*given, out=out, on_epoch=on_epoch, **options)

    monkeypatch.setattr(trainer, "train", watched)
    with pytest.raises(KeyboardInterrupt):
        retrain(folder, out, 0, epochs=10)
    assert not (out / TASK).exists()
    with Store(folder) as store:
        version = store.reader.head()
        store.write("admin", *(Label(node=f"n{n}", label="blue") for n in range(0, 40, 2)))
    result = retrain(folder, out, 0, epochs=10)
    assert result["version"] == version
    assert set(epochs[:6]) == {"1-teacher"}
    assert epochs[-1] == "1"


def test_the_gate_compares_only_on_labels_that_neither_model_has_learned(tmp_path: Path) -> None:
    folder = table_run(tmp_path).folder
    assert folder is not None
    served(folder, [Label(node=f"n{n}", label=COLORS[n % 3]) for n in range(0, 20, 2)])
    first, second = folder / "generations" / "1", folder / "generations" / "2"
    first.parent.mkdir()

    def counts(result: dict[str, Any]) -> tuple[int, int]:
        found = {check["name"]: check["count"] for check in result["checks"]}
        return found["validation"], found["live labels"]

    before = counts(retrain(folder, first, 0, epochs=2))
    assert before[1] == 5
    with Store(folder) as store:
        store.write("admin", *(Label(node=f"n{n}", label="red") for n in range(20, 60, 2)))
    retrain(folder, second, 0, epochs=2)
    _, learned = load_with_split(folder, second)
    assert set(range(10, 20, 2)) <= set(learned.train.tolist() + learned.val.tolist())
    again = retrain(folder, first, 2, epochs=2)
    assert (again["against"], counts(again)[1]) == (2, 0)
    val = unimp.load_run(first).task.split.val
    assert counts(again)[0] == int((~torch.isin(val, learned.train)).sum())
    assert counts(retrain(folder, first, 0, epochs=2)) == before
