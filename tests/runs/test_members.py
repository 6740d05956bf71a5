"""A run folder may hold an ensemble: it answers everything that a run can be asked."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import unimp
from unimp.config.run_files import CHECKPOINT, MANIFEST, MEMBERS
from unimp.ensemble import portfolio
from unimp.ensemble.model import Ensemble
from unimp.errors import RecipeError, RunError
from unimp.inference.incremental.changes import Change
from unimp.runs import members, time_shares, trained_members
from unimp.runs.run import Run
from unimp.runs.time_shares import TimeShares
from unimp.tasks.labels import Split
from unimp.tasks.task import Task

NAMES = ["label-propagation", "mlp", "unimp"]
SETTINGS = {
    "task.scale": 0.05,
    "task.split": 0,
    "train.device": "cpu",
    "ensemble.portfolio": "good",
    "ensemble.members": NAMES,
    "ensemble.folds": 0,
}


@pytest.fixture(autouse=True)
def short_trainings(monkeypatch: pytest.MonkeyPatch) -> None:
    short = {**portfolio.FRAME, "train.epochs": 12, "model.width": 16}
    monkeypatch.setattr(portfolio, "FRAME", short)
    # Every member keeps some weight, so that all of them are part of each answer.
    chosen = trained_members.choose_weights
    monkeypatch.setattr(
        trained_members,
        "choose_weights",
        lambda given, *more: (chosen(given, *more) + 1) / (1 + len(given)),
    )


def train(out: Path | None = None, **more: Any) -> Run:
    return unimp.run("synthetic", out=out, settings={**SETTINGS, **more}, report=False)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        short_trainings.__wrapped__(patch)  # type: ignore[attr-defined]
        folder = tmp_path_factory.mktemp("ensemble") / "run"
        train(folder)
    return folder


def test_an_ensemble_is_stored_and_loaded_and_predicts_the_same(stored: Path) -> None:
    run = unimp.load_run(stored, device="cpu")
    assert isinstance(run.model, Ensemble)
    assert [member.recipe.model.name for member in run.members] == NAMES
    assert torch.equal(run.predict(), train().predict())
    shutil.copytree(stored, moved := stored.parent / "moved")
    shutil.rmtree(moved / MEMBERS)  # the run does not depend on the folders of its members
    assert torch.equal(unimp.load_run(moved, device="cpu").predict(), run.predict())


def test_the_answer_is_the_weighted_mean_of_the_members_answers(stored: Path) -> None:
    run = unimp.load_run(stored, device="cpu")
    observed = run.observed_labels(reveal="train")
    expected = torch.zeros(run.task.graph.num_nodes, run.task.num_classes)
    assert isinstance(run.model, Ensemble)
    for row, scale in zip(run.metrics["ensemble"]["members"], run.model.scale, strict=True):
        alone = unimp.load_run(stored / MEMBERS / row["name"], device="cpu")
        chances = alone.probabilities_of(alone.outputs(observed)).clamp(min=1e-12) ** scale
        expected += row["weight"] * chances / chances.sum(1, keepdim=True)
    found = run.outputs(observed).softmax(1)
    assert torch.allclose(found, expected.float(), atol=1e-6)


def test_the_leaderboard_states_weights_scores_times_and_label_inputs(stored: Path) -> None:
    summary = unimp.load_run(stored, device="cpu").metrics["ensemble"]
    rows = {row["name"]: row for row in summary["members"]}
    assert list(rows) == NAMES
    assert sum(row["weight"] for row in rows.values()) == pytest.approx(1)
    assert not rows["mlp"]["takes_labels"]
    assert rows["unimp"]["takes_labels"]
    assert summary["optimism"] == pytest.approx(summary["val"] - summary["val_nested"])


def test_a_change_gives_the_answer_of_a_cold_prediction(stored: Path) -> None:
    run = unimp.load_run(stored, device="cpu")
    observed = run.observed_labels(reveal="train")
    nodes = run.task.split.test[:3]
    labels = run.task.labels[nodes]
    engine = run.incremental(observed)
    everyone = torch.arange(run.task.graph.num_nodes)
    (after,) = engine.after([Change(nodes, labels)], [everyone])
    changed = observed.clone()
    changed[nodes] = labels
    assert torch.allclose(after, run.outputs(changed), atol=1e-4)
    engine.commit(Change(nodes, labels))
    assert torch.allclose(engine.logits, run.outputs(changed), atol=1e-4)


def test_everything_that_a_run_can_be_asked_works_on_an_ensemble(stored: Path) -> None:
    run = unimp.load_run(stored, device="cpu")
    assert run.evaluate()["test"] == pytest.approx(run.metrics["scores"]["train"]["test"])
    assert len(run.predictions().to_arrow()) == run.task.graph.num_nodes
    assert run.explain(3).probability == pytest.approx(
        float(run.probabilities_of(run.outputs(run.observed_labels()))[3].max()), abs=1e-4
    )
    assert len(run.suggest(5).to_arrow()) == 5
    assert run.audit(folds=5) is not None
    page = run.report().read_text(encoding="utf-8")
    assert all(name in page for name in NAMES)


def permuted(task: Task, nodes: torch.Tensor) -> Task:
    labels = task.labels.clone()
    order = torch.randperm(len(nodes), generator=torch.Generator().manual_seed(0))
    labels[nodes] = labels[nodes[order]]
    return replace(task, labels=labels)


def own_run(task: Task, **more: Any) -> Run:
    settings = {k: v for k, v in SETTINGS.items() if not k.startswith("task.")}
    return unimp.run(task, settings={**settings, **more})


@pytest.fixture(scope="module")
def task() -> Task:
    return unimp.load_task("synthetic", scale=0.05)


def test_test_labels_change_neither_members_nor_weights(task: Task) -> None:
    one, other = own_run(task), own_run(permuted(task, task.split.test))
    observed = one.observed_labels(reveal="train")
    assert torch.equal(one.outputs(observed), other.outputs(observed))
    both = (run.metrics["ensemble"]["members"] for run in (one, other))
    for row, same in zip(*both, strict=True):
        assert all(row[key] == same[key] for key in ("name", "weight", "temperature", "val"))


def test_validation_labels_change_weights_but_no_member_that_ends_at_its_last_epoch(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the last epoch is scored, so validation cannot choose one. Members are not refitted."""
    frame = {**portfolio.FRAME, "train.eval_every": portfolio.FRAME["train.epochs"]}
    monkeypatch.setattr(portfolio, "FRAME", frame)
    tasks = (task, permuted(task, task.split.val))
    one, other = (own_run(given, **{"ensemble.refit": "never"}) for given in tasks)
    observed = one.observed_labels(reveal="train")
    assert [member.recipe.model.name for member in one.members] == NAMES
    for member, same in zip(one.members, other.members, strict=True):
        assert torch.equal(member.outputs(observed), same.outputs(observed))
    rows, others = (run.metrics["ensemble"]["members"] for run in (one, other))
    assert [row["weight"] for row in rows] != [row["weight"] for row in others]
    assert one.metrics["ensemble"]["val"] != other.metrics["ensemble"]["val"]


def test_without_validation_labels_all_members_count_the_same(task: Task) -> None:
    split = Split(task.split.train, task.split.val[:0], task.split.test)
    run = own_run(replace(task, split=split))
    weights = [row["weight"] for row in run.metrics["ensemble"]["members"]]
    assert weights == pytest.approx([1 / 3] * 3)


class StoppedError(Exception):
    """Stands for the end of a process."""


def test_an_interrupted_ensemble_resumes_and_ends_with_the_same_weights(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, counted = tmp_path / "run", 0

    def stop(epoch: Any) -> None:
        nonlocal counted
        counted += 1
        if counted == 16:  # in the middle of the second member
            raise StoppedError

    with pytest.raises(StoppedError):
        unimp.run("synthetic", out=folder, settings=SETTINGS, on_epoch=stop, report=False)
    assert (folder / CHECKPOINT).exists()
    assert not (folder / MANIFEST).exists()
    with pytest.raises(RunError, match=r"ensemble\.members"):
        train(folder, **{"ensemble.members": NAMES[:2]})
    train(folder)
    assert not (folder / CHECKPOINT).exists()
    for name in ("model.safetensors", "predictions.parquet"):
        assert (folder / name).read_bytes() == (stored / name).read_bytes()


def test_a_member_with_a_changed_weight_is_refused(stored: Path, tmp_path: Path) -> None:
    shutil.copytree(stored, folder := tmp_path / "run")
    metrics = json.loads((folder / "metrics.json").read_text())
    metrics["ensemble"]["members"][0]["weight"] = 0.9
    (folder / "metrics.json").write_text(json.dumps(metrics))
    with pytest.raises(RunError, match=r"metrics\.json changed"):
        unimp.load_run(folder)


def test_a_time_limit_that_is_over_leaves_members_out_and_says_so(tmp_path: Path) -> None:
    run = train(tmp_path / "run", **{"train.time_limit": 0.01})
    summary = run.metrics["ensemble"]
    assert [row["name"] for row in summary["members"]] == NAMES[:1]
    assert set(summary["left_out"]) == set(NAMES[1:])
    assert run.metrics["cut_short"]


def test_an_unknown_member_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(RecipeError, match=r"ensemble\.members.*nobody.*label-propagation"):
        train(**{"ensemble.members": ["nobody"]})


def test_binary_tasks_are_combined_per_task() -> None:
    graph = unimp.load_task("synthetic", scale=0.05)
    labels = torch.nn.functional.one_hot(graph.labels, graph.num_classes)[:, :3].to(torch.int8)
    task = replace(graph, labels=labels, num_classes=3, metric="rocauc", class_names=None)
    run = own_run(task)
    given = run.predict(reveal="train")
    assert given.shape == (graph.graph.num_nodes, 3)
    assert bool(((given >= 0) & (given <= 1)).all())


def test_a_finished_member_is_used_even_if_no_time_is_left(stored: Path, tmp_path: Path) -> None:
    shutil.copytree(stored / MEMBERS, tmp_path / "run" / MEMBERS)
    run = train(tmp_path / "run", **{"train.time_limit": 0.01})
    assert [row["name"] for row in run.metrics["ensemble"]["members"]] == NAMES
    assert not run.metrics["cut_short"]


def test_a_finished_member_is_used_even_if_its_family_is_weak_by_now(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was started when fewer members had finished."""
    monkeypatch.setattr(members, "why_left_out", lambda *given: "too weak")
    shutil.copytree(stored / MEMBERS / "unimp", tmp_path / "run" / MEMBERS / "unimp")
    summary = train(tmp_path / "run").metrics["ensemble"]
    assert [row["name"] for row in summary["members"]] == ["unimp"]
    assert set(summary["left_out"]) == {"label-propagation", "mlp"}


@pytest.mark.parametrize("enough", [1e-6, 1e6])
def test_a_member_is_not_started_if_too_little_time_is_left(
    enough: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first member that learns is always started."""
    monkeypatch.setattr(time_shares, "ENOUGH", enough)
    run = train(**{"train.time_limit": 60.0})
    left_out = run.metrics["ensemble"]["left_out"]
    assert left_out == ({"unimp": "there was too little time left"} if enough > 1 else {})
    assert run.metrics["cut_short"] == bool(left_out)


def test_a_resumed_ensemble_starts_no_member_that_was_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*given: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(time_shares, "ENOUGH", 1e6)
    limit = {"train.time_limit": 60.0}
    with monkeypatch.context() as patch:
        patch.setattr(members, "leaderboard", interrupt)
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "run", **limit)
    run = train(tmp_path / "run", **limit)
    assert run.metrics["ensemble"]["left_out"] == {"unimp": "there was too little time left"}


def test_an_ensemble_of_a_graph_without_features_has_a_time_limit(task: Task) -> None:
    bare = replace(task, graph=replace(task.graph, x=None))
    chosen = {"ensemble.portfolio": "good", "ensemble.members": ["gcn", "unimp"]}
    more = {**chosen, "train.time_limit": 60.0, "train.device": "cpu"}
    run = unimp.run(bare, settings=more, report=False)
    assert [row["name"] for row in run.metrics["ensemble"]["members"]] == ["gcn", "unimp"]


@pytest.mark.parametrize("name", ["label-propagation", "ridge"])
def test_the_recipe_of_an_ensemble_with_a_time_limit_may_name_any_model(name: str) -> None:
    chosen = {"ensemble.members": ["unimp", "recipe"], "model.name": name}
    run = train(**chosen, **{"train.time_limit": 60.0})
    assert "recipe" in [row["name"] for row in run.metrics["ensemble"]["members"]]


def test_a_damaged_member_is_left_out_and_named(stored: Path, tmp_path: Path) -> None:
    shutil.copytree(stored / MEMBERS, tmp_path / "run" / MEMBERS)
    (tmp_path / "run" / MEMBERS / "unimp" / "metrics.json").write_text("{}")
    summary = train(tmp_path / "run").metrics["ensemble"]
    assert [row["name"] for row in summary["members"]] == ["label-propagation", "mlp"]
    assert "metrics.json" in summary["left_out"]["unimp"]


def test_your_own_model_is_trained_alone(task: Task) -> None:
    def own(sizes: Any) -> Any:
        return unimp.MaskedLabels(torch.nn.Linear(8, sizes.classes), sizes, width=8, inputs="X")

    run = unimp.run(task, model=own, preset="good", settings={"train.epochs": 1})
    assert run.recipe.ensemble.portfolio == "none"
    assert "ensemble" not in run.metrics


def test_copies_of_important_members_have_other_draws_and_are_refitted(tmp_path: Path) -> None:
    more = {"ensemble.copies": 2, "ensemble.refit": "always", "task.split": "seed"}
    run = train(tmp_path / "run", **more)
    names = [row["name"] for row in run.metrics["ensemble"]["members"]]
    assert names == [*NAMES, "mlp.2", "unimp.2"]  # label propagation draws nothing
    first, second = (
        unimp.load_run(tmp_path / "run" / MEMBERS / name, device="cpu") for name in ("mlp", "mlp.2")
    )
    assert torch.equal(first.task.split.train, second.task.split.train)
    assert not torch.equal(first.predict(), second.predict())
    again = unimp.load_run(tmp_path / "run", device="cpu")
    names = [entry.name for entry in again.model.entries]
    mlp, copy = (again.members[names.index(name)].model for name in ("mlp", "mlp.2"))
    pairs = zip(mlp.parameters(), copy.parameters(), strict=True)
    assert not all(torch.equal(a, b) for a, b in pairs)
    assert torch.equal(again.predict(), run.predict())
    settings = {**SETTINGS, **more}
    resumed = unimp.run("synthetic", out=tmp_path / "run", settings=settings, report=False)
    assert torch.equal(resumed.predict(), run.predict())


def test_with_few_validation_labels_no_weights_are_chosen(
    task: Task,
) -> None:
    split = replace(task.split, val=task.split.val[:20])
    summary = own_run(replace(task, split=split)).metrics["ensemble"]
    weights = [row["weight"] for row in summary["members"]]
    assert weights == pytest.approx([1 / len(weights)] * len(weights))
    assert not (summary["optimism"] or 0.0) > 0
    assert not (summary["val_nested"] or 0.0) > 0


def test_a_resumed_ensemble_counts_the_time_of_members_and_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {"ensemble.copies": 2, "task.split": "seed"}
    train(tmp_path / "run", **more)
    for name in (MANIFEST, "metrics.json"):
        (tmp_path / "run" / name).unlink()
    read = members.read_run

    def slow(folder: Path) -> Any:
        recipe, metrics, manifest = read(folder)
        return recipe, {**metrics, "seconds": 1000.0}, manifest

    monkeypatch.setattr(members, "read_run", slow)
    resumed = train(tmp_path / "run", **more)
    assert len(resumed.metrics["ensemble"]["members"]) == 5
    assert resumed.metrics["seconds"] >= 5 * 1000


def test_copies_use_only_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        TimeShares, "of_first", lambda self, later, spent: 0.0 if "." in later[0].name else 9.0
    )
    run = train(**{"ensemble.copies": 3})
    assert [row["name"] for row in run.metrics["ensemble"]["members"]] == NAMES
    assert not run.metrics["cut_short"]
    assert not run.metrics["ensemble"]["left_out"]
