"""Runs end to end on small graphs: they learn, use later labels, and can be repeated."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch
from torch import Tensor

import unimp
from unimp.config.recipe import Recipe
from unimp.data.npz import save_npz
from unimp.data.synthetic import synthetic_task
from unimp.errors import BackendError, RecipeError, RunError, TaskError, TrainingError, UnimpError
from unimp.graph.graph import Graph
from unimp.inference.logits import predict_logits, probabilities
from unimp.model.registry import build_model
from unimp.ops import native
from unimp.runs import experiment, fitting, preparation
from unimp.runs.context import Experiment
from unimp.runs.experiment import run
from unimp.runs.loading import load_run
from unimp.runs.preparation import task_of
from unimp.runs.run import Run
from unimp.runs.scoring import score_split
from unimp.tasks.labels import reveal_only
from unimp.tasks.metrics import score
from unimp.tasks.task import Task
from unimp.training.batch import Batches
from unimp.training.loop import Epoch
from unimp.training.masks import Masks


def recipe_of(*settings: str) -> Recipe:
    return Recipe(name="test").with_settings(["train.device=cpu", *settings])


def untrained_score(done: Run) -> float:
    """The test score of the same model without training."""
    torch.manual_seed(1)
    model = build_model(done.recipe.model, done.task.sizes)
    observed = reveal_only(done.task.split.train, done.task.labels)
    logits = predict_logits(model, done.task.graph, observed)
    return score_split(logits, done.task, "train")["test"]


def run_on(task: Task, *settings: str, on_epoch: Callable[[Epoch], None] | None = None) -> Run:
    """A run of a task that is used as if it had a name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparation, "load_task", lambda **options: task)
        return run(recipe_of(*settings), on_epoch=on_epoch or (lambda epoch: None))


@pytest.fixture(scope="module")
def homophilous() -> Run:
    """Features carry little information, labels of neighbors carry much, and few are known."""
    task = synthetic_task(
        num_nodes=800,
        num_edges=3200,
        num_classes=4,
        num_features=16,
        homophily=0.85,
        feature_signal=0.3,
        split_shares=(0.15, 0.35, 0.5),
    )
    return run_on(task, "model.width=16", "model.layers=2", "train.epochs=150", "train.lr=0.01")


@pytest.fixture(scope="module")
def proteins_like() -> Run:
    """Random parts in training and inference, edge features, binary tasks, a linear head."""
    task = synthetic_task(
        num_nodes=400,
        num_edges=3000,
        num_classes=3,
        num_features=8,
        edge_features=4,
        edge_signal=0.6,
        homophily=0.9,
        multilabel_tasks=12,
        missing_share=0.1,
        split_shares=(0.6, 0.2, 0.2),
    )
    return run_on(
        task,
        "model.layers=3",
        "model.width=8",
        "model.residual=simple",
        "model.head=linear",
        "model.feature_encoder=true",
        "model.edge_encoder=shared",
        "model.input_norm=false",
        "model.dropout=0.1",
        "model.input_dropout=0",
        "mask.label_rate=0.5",
        "mask.redraw=run",
        "batch.regime=partition",
        "batch.parts=4",
        "inference.regime=partition",
        "inference.parts=2",
        "inference.passes=2",
        "train.epochs=25",
        "train.eval_from=10",
        "train.eval_every=5",
        "train.lr=0.01",
    )


@pytest.fixture(scope="module")
def products_like() -> Run:
    """Sampled neighbors in training, exact inference in chunks."""
    task = synthetic_task(
        num_nodes=1000,
        num_edges=8000,
        num_classes=8,
        num_features=16,
        homophily=0.8,
        feature_signal=1.0,
        split_shares=(0.2, 0.1, 0.7),
    )
    return run_on(
        task,
        "model.layers=3",
        "model.width=16",
        "batch.regime=neighbors",
        "batch.batch_size=25",
        "batch.fanout=[5, 5, 10]",
        "batch.workers=2",
        "inference.chunk_edges=1500",
        "train.epochs=20",
        "train.eval_from=5",
        "train.eval_every=5",
        "train.lr=0.01",
    )


def test_a_run_over_random_parts_learns_binary_tasks(proteins_like: Run) -> None:
    assert proteins_like.task.is_multilabel
    assert proteins_like.task.graph.num_edge_features == 4
    assert proteins_like.metrics["metric"] == "rocauc"
    test = proteins_like.metrics["scores"]["train"]["test"]
    assert test > 0.75
    assert test > untrained_score(proteins_like) + 0.2


def test_a_run_over_sampled_neighbors_learns_classes(products_like: Run) -> None:
    assert products_like.task.graph.num_edges > 10 * 1500  # inference runs in chunks
    test = products_like.metrics["scores"]["train"]["test"]
    assert test > 0.7  # eight classes
    assert test > untrained_score(products_like) + 0.4


@pytest.mark.parametrize("name", ["homophilous", "proteins_like", "products_like"])
def test_the_scores_of_a_run_are_the_scores_of_its_model(
    name: str, request: pytest.FixtureRequest
) -> None:
    done: Run = request.getfixturevalue(name)
    for protocol, scores in done.metrics["scores"].items():
        assert done.evaluate(protocol) == scores
    assert set(done.metrics["scores"]) == {"train", "train+val"}
    assert set(done.metrics["scores"]["train"]) == {"val", "test"}
    assert set(done.metrics["scores"]["train+val"]) == {"test"}
    assert not done.metrics["failed"]
    assert done.metrics["parameters"] == sum(p.numel() for p in done.model.parameters())  # type: ignore


def test_labels_that_arrive_later_help_without_training(homophilous: Run) -> None:
    less, more = (homophilous.evaluate(protocol)["test"] for protocol in ("train", "train+val"))
    assert more > less + 0.02
    assert less > 0.4


def test_later_labels_of_predict_have_the_effect_of_the_protocol(homophilous: Run) -> None:
    task = homophilous.task
    val = task.split.val
    later = reveal_only(val, task.labels)
    probabilities = homophilous.predict(later)
    assert (
        score("accuracy", probabilities[task.split.test], task.labels[task.split.test])
        == (homophilous.evaluate("train+val")["test"])
    )
    by_node = {int(node): int(task.labels[node]) for node in val}
    assert torch.equal(homophilous.predict(by_node), probabilities)
    known = torch.cat((task.split.train, val))
    logits = homophilous.logits(reveal_only(known, task.labels))
    expected = torch.softmax(logits / homophilous.temperature, 1)
    unknown = task.split.test
    assert torch.equal(probabilities[unknown], expected[unknown])


def test_by_default_the_train_labels_of_a_named_task_are_inputs(homophilous: Run) -> None:
    task = homophilous.task
    nothing_new = torch.full_like(task.labels, -1)
    assert torch.equal(homophilous.predict(), homophilous.predict(nothing_new))
    assert torch.equal(homophilous.predict(), homophilous.predict({}))
    logits = homophilous.logits(reveal_only(task.split.train, task.labels))
    expected = probabilities(logits / homophilous.temperature, multilabel=False)
    unknown = torch.cat((task.split.val, task.split.test))
    assert torch.equal(homophilous.predict()[unknown], expected[unknown])


def test_labels_of_val_and_test_never_leak_into_default_predictions(homophilous: Run) -> None:
    task = homophilous.task
    labels = task.labels.clone()
    unseen = torch.cat((task.split.val, task.split.test))
    labels[unseen] = (labels[unseen] + 1) % 4
    other_task = Task(task.name, task.graph, labels, task.split, task.metric, 4)
    other = Run(homophilous.recipe, 0, other_task, homophilous.model, homophilous.metrics, "cpu")
    assert torch.equal(other.predict(), homophilous.predict())
    # Without a choice that depends on validation labels.
    one, two = (run.suggest(20, smooth=False) for run in (other, homophilous))
    assert one.to_pylist() == two.to_pylist()
    assert not torch.equal(other.predict(reveal="known"), homophilous.predict(reveal="known"))


@pytest.mark.parametrize(
    ("labels", "named"),
    [
        ({800: 0}, "node 800.*799"),
        ({-1: 0}, "node -1.*799"),
        ({0: 4}, "class 4.*3"),
        ({0: -1}, "class -1.*3"),
    ],
)
def test_a_label_of_an_unknown_node_or_class_is_refused(
    homophilous: Run, labels: dict[int, int], named: str
) -> None:
    with pytest.raises(TaskError, match=named):
        homophilous.predict(labels)


def test_labels_of_another_shape_are_refused(homophilous: Run) -> None:
    with pytest.raises(TaskError, match=r"\(5,\).*\(800,\)"):
        homophilous.predict(torch.zeros(5, dtype=torch.int64))


def test_a_tensor_with_an_unknown_class_is_refused_with_its_node(homophilous: Run) -> None:
    labels = torch.full((800,), -1)
    labels[3] = 4
    with pytest.raises(TaskError, match="node 3"):
        homophilous.predict(labels)


def test_later_labels_may_be_a_list_an_array_or_a_tensor(homophilous: Run) -> None:
    labels = torch.full((800,), -1)
    labels[3] = 2
    expected = homophilous.predict({3: 2})
    for given in (labels, labels.numpy(), labels.tolist(), labels.numpy().astype(np.int8)):
        assert torch.equal(homophilous.predict(given), expected)


@pytest.mark.parametrize(
    "labels",
    [
        torch.ones(800, dtype=torch.bool),
        np.ones(800, dtype=bool),
        [True] * 800,
        np.full(800, np.nan),
        torch.full((800,), -2),
        np.full(800, 2**64 - 1, dtype=np.uint64),
        ["a"] * 800,
        3,
        {1, 2},
        object(),
    ],
)
def test_masks_and_other_values_are_refused_as_labels(labels: Any, homophilous: Run) -> None:
    with pytest.raises(UnimpError, match="label"):
        homophilous.predict(labels)


@pytest.mark.parametrize("settings", [42, [42], "train.epochs", {"train.epochs": [1]}, {3: 4}])
def test_what_is_not_a_setting_is_refused(settings: Any) -> None:
    with pytest.raises(UnimpError):
        run("synthetic", settings=settings)


def test_one_class_per_node_is_refused_for_binary_tasks(proteins_like: Run) -> None:
    with pytest.raises(TaskError):
        proteins_like.predict({0: 5})


def test_later_binary_labels_reach_the_prediction(proteins_like: Run) -> None:
    task = proteins_like.task
    later = reveal_only(task.split.val, task.labels)
    more = proteins_like.predict(later)
    assert more.shape == (400, 12)
    assert not torch.equal(more, proteins_like.predict())
    assert bool(((more >= 0) & (more <= 1)).all())


def test_an_unknown_protocol_is_refused(homophilous: Run) -> None:
    with pytest.raises(ValueError, match=r"'all'.*train"):
        homophilous.evaluate("all")


@pytest.mark.parametrize(
    ("settings", "protocols"),
    [
        (["model.name=mlp"], ["train"]),
        (["model.inputs=X,A"], ["train"]),
        (["model.inputs=A,Y"], ["train", "train+val"]),
        (["model.inputs=A,Y", "model.propagated_labels=true"], ["train", "train+val"]),
        (["model.inputs=X,A", "model.propagated_labels=true"], ["train"]),
        (["mask.rate=drawn", "mask.label_rate=0.9"], ["train", "train+val"]),
        (["mask.wrong_labels=0.1", "mask.feature_drop=0.3"], ["train", "train+val"]),
        (["model.name=label-propagation"], ["train", "train+val"]),
    ],
)
def test_baselines_and_ablations_are_run_like_any_model(
    settings: list[str], protocols: list[str]
) -> None:
    small = ["task.name=synthetic", "task.scale=0.05", "train.epochs=15", "train.lr=0.01"]
    done = run(recipe_of(*small, "model.width=16", "model.label_width=16", *settings))
    assert list(done.metrics["scores"]) == protocols
    assert done.metrics["scores"]["train"]["test"] > 0.15  # ten classes
    torch.testing.assert_close(done.predict().sum(1), torch.ones(500))


def test_the_seed_chooses_the_split_unless_the_recipe_does() -> None:
    recipe = recipe_of("task.name=synthetic", "task.scale=0.02")
    assert task_of(recipe, 1).data_hash() != task_of(recipe, 2).data_hash()
    fixed = recipe.with_settings(["task.split=1"])
    assert task_of(fixed, 2).data_hash() == task_of(recipe, 1).data_hash()


@pytest.mark.parametrize(
    ("settings", "scored", "stopped"),
    [
        (["train.eval_from=3", "train.eval_every=2"], [3, 5, 7, 8], "all epochs done"),
        (["train.time_limit=1e-9"], [1], "time limit"),  # at least one epoch
    ],
)
def test_the_recipe_decides_which_epochs_are_scored_and_when_training_stops(
    settings: list[str], scored: list[int], stopped: str
) -> None:
    epochs: list[Any] = []
    small = ["task.name=synthetic", "task.scale=0.02", "model.width=4", "train.epochs=8"]
    done = run(recipe_of(*small, *settings), on_epoch=epochs.append)
    assert [e.epoch for e in epochs if e.scores] == scored
    assert stopped in done.metrics["stopped"]
    assert done.metrics["epochs"] == len(epochs)
    best = max(
        (e for e in epochs if e.scores), key=lambda e: (e.scores["val"], e.epoch), default=None
    )
    assert done.metrics["best_epoch"] == (best.epoch if best else None)


def test_a_task_without_validation_labels_is_trained_to_the_last_epoch() -> None:
    task = synthetic_task(
        num_nodes=60, num_edges=120, num_classes=3, num_features=4, split_shares=(0.5, 0, 0.5)
    )
    done = run_on(task, "model.width=4", "train.epochs=4")
    assert done.metrics["best_epoch"] == 4
    assert list(done.metrics["scores"]["train"]) == ["test"]


DIVERGES = ["task.scale=0.02", "model.width=4", "train.device=cpu", "train.lr=1e30"]


def diverged(folder: Path, *settings: str) -> Path:
    """The folder of a run whose training failed."""
    with pytest.raises(TrainingError, match="epoch"):
        run("synthetic", out=folder, settings=[*DIVERGES, *settings])
    return folder


def test_a_run_that_diverges_raises_and_stores_finite_weights(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = diverged(tmp_path / "run", "train.epochs=30")
    loaded = load_run(place, device="cpu")
    assert loaded.metrics["failed"]
    assert loaded.failure in caplog.text
    assert "epoch" in loaded.failure
    assert loaded.failure in repr(loaded)
    assert all(bool(torch.isfinite(p).all()) for p in loaded.model.parameters())
    assert bool(loaded.predict().isfinite().all())
    with pytest.raises(TrainingError, match="epoch"):  # also when the stored run is found again
        run("synthetic", out=place, settings=[*DIVERGES, "train.epochs=30"])


def test_a_run_without_any_state_that_gives_finite_scores_raises(tmp_path: Path) -> None:
    place = diverged(tmp_path / "run", "train.epochs=30", "train.eval_from=30")
    with pytest.raises(RunError):
        load_run(place)


def test_all_seeds_are_trained_although_some_diverge(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"seed 3: .*\nseed 4: "):
        run("synthetic", seeds=[3, 4], out=tmp_path, settings=[*DIVERGES, "train.epochs=3"])
    assert load_run(tmp_path / "seed-4").failure


def test_seeds_after_a_failed_one_are_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    train = experiment.run_seed

    def first_fails(one: Experiment) -> Run:
        if one.seed == 0:
            raise TrainingError("the loss is NaN")
        return train(one)

    monkeypatch.setattr(experiment, "run_seed", first_fails)
    finished: list[int] = []
    with pytest.raises(TrainingError, match=r"^seed 0: the loss is NaN$"):
        run(
            "synthetic",
            seeds=[0, 1],
            settings=["task.scale=0.02", "model.width=4", "train.epochs=1", "train.device=cpu"],
            on_run=lambda done: finished.append(done.seed),
        )
    assert finished == [1]


def test_numbers_of_numpy_and_pure_paths_are_accepted(tmp_path: Path) -> None:
    task = synthetic_task(num_nodes=60, num_edges=120, num_classes=3, num_features=4)
    done = run(
        replace(task, num_classes=np.int64(3)),
        seed=np.int64(1),
        out=PurePath(tmp_path / "run"),
        settings={"model.width": np.int64(4), "train.epochs": np.int64(1), "train.device": "cpu"},
    )
    assert load_run(PurePath(tmp_path / "run"), device="cpu").metrics == done.metrics
    assert type(replace(done, seed=np.int64(2)).seed) is int


def test_a_run_shows_its_scores_per_protocol(homophilous: Run) -> None:
    first, train, both = repr(homophilous).splitlines()
    assert "test" in first
    assert re.search(r"train labels.*val 0\.\d+, test 0\.\d+", train)
    assert re.search(r"train\+val labels.*test 0\.\d+", both)
    settings = ["task.scale=0.02", "train.epochs=1", "model.width=4", "model.inputs=X,A"]
    assert "no labels" in repr(run("synthetic", settings=settings)).splitlines()[1]


def test_the_package_exports_run_and_load_run() -> None:
    assert unimp.run is run
    assert unimp.load_run is load_run


# Which labels are inputs of predictions


def small_task() -> Task:
    """A task in which some labels are unknown."""
    task = synthetic_task(num_nodes=300, num_edges=900, num_classes=4, num_features=8)
    labels = task.labels.clone()
    labels[task.split.test[:20]] = -1
    return replace(task, labels=labels)


SMALL = ["train.device=cpu", "model.width=8", "model.layers=2", "train.epochs=5"]


@pytest.mark.parametrize("kind", ["object", "npz", "tables"])
def test_all_known_labels_of_the_users_own_data_are_inputs_by_default(
    kind: str, tmp_path: Path
) -> None:
    task = small_task()
    given: Any = task
    if kind == "npz":
        save_npz(task, tmp_path / "own.npz")
        given = str(tmp_path / "own.npz")
    if kind == "tables":
        given = recipe_of_tables(task, tmp_path)
    done = run(given, settings=SMALL, out=tmp_path / "run")
    for made in (done, load_run(tmp_path / "run", device="cpu")):
        assert made.default_reveal == "known"
        known = made.task.labels >= 0
        assert torch.equal(made.observed_labels(), made.task.labels)
        assert torch.equal(made.predict(), made.predict(reveal="known"))
        assert not torch.equal(made.predict()[~known], made.predict(reveal="train")[~known])
        rows = torch.nonzero(known).squeeze(1)
        assert bool((made.predict()[rows, made.task.labels[rows]] == 1).all())
        # Scores keep their protocol: only train labels are inputs.
        assert made.evaluate() == made.metrics["scores"]["train"]
        assert made.evaluate()["test"] < 1


def recipe_of_tables(task: Task, folder: Path) -> str:
    """The task as two CSV files and a recipe."""
    x = task.graph.x
    assert isinstance(x, Tensor)
    rows = [
        f"{node},{','.join(f'{value:.4f}' for value in x[node].tolist())},"
        f"{'' if label < 0 else f'c{label}'}"
        for node, label in enumerate(task.labels.tolist())
    ]
    columns = [f"x{column}" for column in range(x.shape[1])]
    (folder / "nodes.csv").write_text("\n".join([f"id,{','.join(columns)},label", *rows]) + "\n")
    pairs = [f"{a},{b}" for a, b in task.graph.edge_index.t().tolist() if a < b]
    (folder / "edges.csv").write_text("\n".join(["source,target", *pairs]) + "\n")
    kinds = ", ".join(f'{column} = "numeric"' for column in columns)
    (folder / "own.toml").write_text(
        '[tables]\nnodes = "nodes.csv"\nedges = "edges.csv"\nlabel = "label"\n'
        f"features = {{{kinds}}}\n"
    )
    return str(folder / "own.toml")


def test_only_train_labels_of_a_named_task_are_inputs_by_default(tmp_path: Path) -> None:
    done = run("synthetic", settings=["task.scale=0.03", *SMALL], out=tmp_path / "run")
    for made in (done, load_run(tmp_path / "run", device="cpu")):
        assert made.default_reveal == "train"
        seen = made.observed_labels() >= 0
        assert torch.equal(torch.nonzero(seen).squeeze(1), made.task.split.train.sort().values)
        assert torch.equal(made.predict(), made.predict(reveal="train"))
        table = made.predictions()
        assert torch.equal(made.predict(reveal="known"), made.predict()) is False
        assert table.to_arrow().equals(made.predictions(reveal="train").to_arrow())


def test_stored_predictions_use_train_labels_for_any_task(tmp_path: Path) -> None:
    """predictions.parquet belongs to the reported scores."""
    done = run(small_task(), settings=SMALL, out=tmp_path / "run")
    stored = pyarrow.parquet.read_table(tmp_path / "run" / "predictions.parquet")
    assert stored.equals(done.predictions(reveal="train").to_arrow())
    assert not stored.equals(done.predictions().to_arrow())


def test_later_labels_are_inputs_beside_the_default_ones() -> None:
    done = run(small_task(), settings=SMALL)
    node = int(torch.nonzero(done.task.labels < 0)[0])
    observed = done.observed_labels({node: 2})
    assert observed[node] == 2
    observed[node] = -1
    assert torch.equal(observed, done.task.labels)
    observed = done.observed_labels({node: 2}, reveal="train")
    assert observed[node] == 2
    assert int((observed >= 0).sum()) == done.task.split.train.numel() + 1


def test_a_set_whose_labels_are_inputs_is_not_scored(homophilous: Run) -> None:
    logits: Tensor = torch.zeros(800, 4)
    assert list(score_split(logits, homophilous.task, "train")) == ["val", "test"]
    assert list(score_split(logits, homophilous.task, "train+val")) == ["test"]


def other_answers(task: Task) -> Task:
    """The same task with another label at every node of val and test."""
    labels = task.labels.clone()
    for part in (task.split.val, task.split.test):
        labels[part] = (labels[part] + 1) % task.num_classes
    return replace(task, labels=labels)


LABEL_INPUTS = {
    "as in the paper": (),
    "propagated": ("model.propagated_labels=true",),
    "drawn, wrong and dropped": (
        "model.propagated_labels=true", "mask.rate=drawn", "mask.wrong_labels=0.2",
        "mask.feature_drop=0.3",
    ),
}  # fmt: skip


@pytest.mark.parametrize("inputs", LABEL_INPUTS)
@pytest.mark.parametrize("regime", ["full", "partition", "neighbors"])
def test_only_train_labels_reach_the_weights(regime: str, inputs: str) -> None:
    task = synthetic_task(num_nodes=300, num_edges=900, num_classes=4, num_features=8)
    settings = ("model.width=8", "model.layers=2", "train.epochs=5", "train.eval_from=5")
    settings += LABEL_INPUTS[inputs]
    first = run_on(task, *settings, f"batch.regime={regime}", "batch.parts=2")
    second = run_on(other_answers(task), *settings, f"batch.regime={regime}", "batch.parts=2")
    assert first.model is not None
    assert second.model is not None
    for mine, theirs in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_the_reported_validation_score_is_that_of_the_chosen_epoch() -> None:
    task = synthetic_task(num_nodes=300, num_edges=900, num_classes=4, num_features=8)
    epochs: list[Epoch] = []
    done = run_on(task, "model.width=8", "train.epochs=12", on_epoch=epochs.append)
    best = max(epoch.scores["val"] for epoch in epochs if epoch.scores)
    assert done.metrics["scores"]["train"]["val"] == best


@pytest.mark.parametrize("propagated", ["false", "true"])
def test_labels_of_val_and_test_do_not_change_logits(propagated: str) -> None:
    task = synthetic_task(num_nodes=300, num_edges=900, num_classes=4, num_features=8)
    settings = ("model.width=8", "train.epochs=2", "train.eval_from=2")
    settings += (f"model.propagated_labels={propagated}",)
    first, second = run_on(task, *settings), run_on(other_answers(task), *settings)
    observed = first.observed_labels(reveal="train")
    assert torch.equal(first.logits(observed), second.logits(observed))


def test_a_run_with_an_unavailable_backend_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "available", lambda: False)
    recipe = recipe_of("task.name=synthetic-arxiv", "task.scale=0.001", "model.backend=native")
    with pytest.raises(BackendError, match=r"native.*auto"):
        run(recipe, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def grouped_task() -> Task:
    task = synthetic_task(
        num_nodes=400,
        num_edges=1600,
        num_classes=4,
        num_features=8,
        homophily=0.85,
        split_shares=(0.3, 0.2, 0.5),
    )
    return replace(task, groups=torch.arange(400) // 4)


def test_a_run_with_masks_by_group_learns_and_is_repeatable() -> None:
    task = grouped_task()

    def losses(unit: str) -> list[float]:
        epochs: list[Epoch] = []
        settings = ("model.width=8", "model.layers=2", "train.epochs=25", "train.lr=0.01")
        done = run_on(task, *settings, f"mask.unit={unit}", on_epoch=epochs.append)
        test = done.metrics["scores"]["train"]["test"]
        assert test > 0.5  # four classes
        assert test > untrained_score(done) + 0.2
        return [epoch.loss for epoch in epochs]

    by_group = losses("group")
    assert by_group == losses("group")
    assert by_group != losses("node")


def test_masks_hide_the_groups_of_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = fitting
    make_batches = module.make_batches
    made: list[Masks] = []

    def keep(graph: Graph, labels: Tensor, masks: Masks, *words: Any, **options: Any) -> Batches:
        made.append(masks)
        return make_batches(graph, labels, masks, *words, **options)  # type: ignore[no-any-return]

    monkeypatch.setattr(module, "make_batches", keep)
    task = grouped_task()
    run_on(task, "mask.unit=group", "model.width=4", "train.epochs=1")
    (masks,) = made
    assert task.groups is not None
    groups = task.groups
    mask = masks.at(1, 0)
    observed, hidden = (set(groups[part].tolist()) for part in (mask.observed, mask.hidden))
    assert len(observed & hidden) <= 1  # the group that the exact number divides


def test_groups_of_the_users_own_task_are_stored_and_loaded(tmp_path: Path) -> None:
    task = grouped_task()
    settings = ["train.device=cpu", "mask.unit=group", "model.width=4", "train.epochs=2"]
    done = run(task, settings=settings, out=tmp_path / "run")
    again = load_run(tmp_path / "run", device="cpu")
    assert task.groups is not None
    assert again.task.groups is not None
    assert torch.equal(again.task.groups, task.groups)
    assert torch.equal(again.predict(), done.predict())


def test_masks_by_group_of_a_task_without_groups_are_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    save_npz(replace(grouped_task(), groups=None), tmp_path / "plain.npz")
    settings = ["train.device=cpu", "mask.unit=group"]
    with pytest.raises(RecipeError, match=r"mask\.unit.*plain.*mask\.unit=node"):
        run(str(tmp_path / "plain.npz"), settings=settings, out=tmp_path / "run")
    with pytest.raises(RecipeError, match=r"mask\.unit"):
        run(replace(grouped_task(), groups=None), settings=settings, out=tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["plain.npz"]


# Options that do not fit are refused before training


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (["model.name=uinmp"], r"model\.name.*'uinmp'.*'unimp'"),
        (["train.device=tpu"], r"train\.device.*'tpu'"),
        (["smooth.form=smooth", "model.name=label-propagation"], r"smooth\.form"),
        (["smooth.form=smooth", "task.name=synthetic-proteins"], r"smooth\.form.*proteins"),
        (["mask.label_rate=0.999"], r"mask\.label_rate is 0\.999"),
        (["model.edge_encoder=shared"], r"\[model\].*head"),
    ],
)
def test_an_option_that_does_not_fit_is_refused_by_name_before_training(
    settings: list[str], named: str, tmp_path: Path
) -> None:
    small = ["task.name=synthetic", "task.scale=0.0004", "model.width=4", "train.epochs=1"]
    with pytest.raises(RecipeError, match=named):
        run(recipe_of(*small), settings=settings, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_module_in_place_of_a_function_that_makes_it_is_refused() -> None:
    module: Any = torch.nn.Linear(2, 2)
    with pytest.raises(RecipeError, match="MaskedLabels"):
        run("synthetic", model=module)
    with pytest.raises(RecipeError, match=r"Linear.*MaskedLabels"):
        run("synthetic", model=lambda sizes: module)


def test_labels_of_a_bundled_task_are_not_inputs_even_if_it_is_passed_as_an_object() -> None:
    task = replace(small_task(), name="debian")
    done = run(task, settings=["train.epochs=1", "model.width=4", "train.device=cpu"])
    observed = done.observed_labels()
    assert torch.equal(observed, reveal_only(done.task.split.train, done.task.labels))
