"""Boosted trees: equal to scikit-learn, no label in its own row, stored and checked as tensors."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.ensemble import HistGradientBoostingClassifier
from torch import Tensor
from typer.testing import CliRunner

import unimp
from unimp.cli import app
from unimp.data.npz import save_npz
from unimp.data.synthetic import synthetic_task
from unimp.ensemble.calibration import Calibration
from unimp.ensemble.model import Ensemble, Entry
from unimp.errors import ModelError, RunError
from unimp.graph.features import SparseFeatures
from unimp.graph.graph import Graph
from unimp.inference.incremental.changes import Change
from unimp.inference.incremental.logits import IncrementalLogits
from unimp.inference.logits import predict_logits
from unimp.model import trees
from unimp.model.solved_model import FOLDS, KnownLabels, cross_fitted, draw_folds
from unimp.model.trees import (
    MAX_FEATURES,
    MAX_TASKS,
    Trees,
)
from unimp.runs.fitting import labels_to_solve
from unimp.tasks.labels import UNLABELED, Split, reveal_only
from unimp.tasks.task import Sizes, Task
from unimp.training.checkpoint import load_weights, save_weights

NONE = torch.tensor([], dtype=torch.int64)


def make_task(**sizes: Any) -> Task:
    few = {"num_nodes": 300, "num_edges": 1200, "num_classes": 3, "num_features": 6}
    return synthetic_task(**few | sizes, split_shares=(0.5, 0.2, 0.3))


@pytest.fixture(scope="module")
def task() -> Task:
    return make_task()


def solved(task: Task, *, seed: int = 0, **inputs: bool) -> Trees:
    model = Trees(task.sizes, **inputs)
    model.solve(model.prepare(task.graph), labels_to_solve(task), seed=seed)
    return model.eval()


def logits_of(model: Trees, task: Task) -> Tensor:
    observed = reveal_only(task.split.train, task.labels)
    return predict_logits(model, model.prepare(task.graph), observed)


def accuracy(logits: Tensor, task: Task) -> float:
    return float((logits.argmax(1) == task.labels)[task.split.test].float().mean())


def with_labels(task: Task, labels: Tensor) -> Task:
    return replace(task, labels=labels)


def same_weights(one: Trees, other: Trees) -> bool:
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("classes", [2, 3])
def test_the_logits_are_the_decision_function_of_scikit_learn(
    classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_task(num_classes=classes)
    fitted: list[HistGradientBoostingClassifier] = []

    class Spy(HistGradientBoostingClassifier):
        def fit(self, *args: Any, **kwargs: Any) -> Any:
            fitted.append(self)
            return super().fit(*args, **kwargs)

    monkeypatch.setattr("sklearn.ensemble.HistGradientBoostingClassifier", Spy)
    known = replace(labels_to_solve(task), val=NONE)  # all rounds are kept
    model = Trees(task.sizes)
    model.solve(model.prepare(task.graph), known, seed=0)
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(500, model.columns)).astype(np.float32)
    # Numbers at a threshold, and the next one above it, are on different sides of it.
    place = rng.integers(len(model.threshold), size=500)
    rows[np.arange(500), model.feature.numpy()[place]] = model.threshold.numpy()[place]
    rows[::2] = np.nextafter(rows[::2], np.float32(np.inf))
    found = model.read_out(torch.from_numpy(rows)).numpy()
    expected = fitted[0].decision_function(rows)
    if classes == 2:
        found = found[:, 1] - found[:, 0]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert len(fitted) == 1
    assert len(model.root) > 50


def test_validation_labels_choose_the_number_of_rounds(task: Task) -> None:
    known = labels_to_solve(task)
    model, whole = Trees(task.sizes), Trees(task.sizes)
    graph = model.prepare(task.graph)
    model.solve(graph, known, seed=0)
    whole.solve(graph, replace(known, val=NONE), seed=0)
    count = len(model.root)
    assert count < len(whole.root) == 3 * trees.ROUNDS_WITHOUT_VALIDATION
    # The trees are the first of those that grow without validation.
    for name in trees.PER_TREE:
        assert torch.equal(getattr(model, name), getattr(whole, name)[:count])
    for name in trees.PER_NODE:
        assert torch.equal(getattr(model, name), getattr(whole, name)[: len(model.value)])


@pytest.mark.parametrize("multilabel", [0, 3])
def test_solving_again_uses_all_labels_and_the_number_of_rounds_that_was_chosen(
    multilabel: int,
) -> None:
    sizes = {"num_nodes": 400, "num_edges": 1200, "num_classes": 3, "num_features": 8}
    task = synthetic_task(**sizes, multilabel_tasks=multilabel)
    known = labels_to_solve(task)
    model = Trees(task.sizes)
    graph = model.prepare(task.graph)
    model.solve(graph, known, seed=0)
    rounds, before = torch.bincount(model.score), model.value.clone()
    everyone = torch.cat((known.train, known.val))
    model.solve_again(graph, replace(known, train=everyone, val=NONE), seed=0)
    assert torch.equal(torch.bincount(model.score), rounds)
    assert not torch.equal(model.value, before)


def test_trees_are_better_than_chance_and_labels_help(task: Task) -> None:
    with_labels, without = solved(task), solved(task, use_labels=False)
    chance = float(task.labels.bincount().max()) / len(task.labels)
    assert accuracy(logits_of(with_labels, task), task) > chance + 0.1
    assert accuracy(logits_of(without, task), task) > chance
    assert without.columns < with_labels.columns
    assert not without.takes_labels


@pytest.mark.parametrize("multilabel", [0, 3])
def test_test_labels_change_neither_weights_nor_predictions(multilabel: int) -> None:
    task = make_task(multilabel_tasks=multilabel)
    model = solved(task)
    labels = task.labels.clone()
    test = task.split.test
    labels[test] = labels[test.flip(0)]
    other_task = with_labels(task, labels)
    assert not torch.equal(labels, task.labels)
    other = solved(other_task)
    assert same_weights(model, other)
    assert torch.equal(logits_of(model, task), logits_of(other, other_task))


def test_validation_labels_change_the_number_of_rounds_alone(task: Task) -> None:
    labels = task.labels.clone()
    val = task.split.val
    labels[val] = (labels[val] + 1) % 3
    model, other = solved(task), solved(with_labels(task, labels))
    fewer = min(len(model.root), len(other.root))
    assert fewer == len(other.root) < len(model.root)  # wrong labels stop it early
    assert torch.equal(model.score[:fewer], other.score)
    assert torch.equal(model.threshold[: len(other.threshold)], other.threshold)


def test_shuffled_train_labels_give_chance_level() -> None:
    """A label that leaked into its own row would be predicted at fitting, and not elsewhere."""
    task = make_task(num_nodes=1500, num_edges=6000, num_classes=2)
    labels = task.labels.clone()
    train = task.split.train
    generator = torch.Generator().manual_seed(0)
    labels[train] = labels[train[torch.randperm(len(train), generator=generator)]]
    shuffled = with_labels(task, labels)
    assert accuracy(logits_of(solved(task), task), task) > 0.6
    score = accuracy(logits_of(solved(shuffled), shuffled), task)
    assert abs(score - 0.5) < 0.1


@pytest.mark.parametrize("multilabel", [0, 3])
def test_the_row_of_a_train_node_does_not_depend_on_its_own_label(multilabel: int) -> None:
    task = make_task(num_nodes=60, num_edges=240, multilabel_tasks=multilabel)
    graph = task.graph.with_self_loops()  # a label returns to its node after one step
    train, model = task.split.train, Trees(task.sizes)
    rows_of = partial(model.propagated, graph)
    folds = draw_folds(known_labels(task.labels, train), seed=0)
    before = cross_fitted(known_labels(task.labels, train), rows_of, seed=0)
    changed = torch.zeros(len(train), dtype=torch.bool)
    for place, node in enumerate(train):
        labels = task.labels.clone()
        labels[node] = 1 - labels[node] if multilabel else (labels[node] + 1) % 3
        after = cross_fitted(known_labels(labels, train), rows_of, seed=0)
        inside = folds == folds[place]
        assert torch.equal(after[inside], before[inside])
        changed |= (after != before).any(1)
    assert float(changed.float().mean()) > 0.9  # by the labels of other folds


def test_the_mass_does_not_depend_on_the_share_of_observed_labels() -> None:
    graph = Graph.from_edges([[0, 1, 2, 3], [1, 2, 3, 0]], num_nodes=4).symmetrize()
    model = Trees(Sizes(0, 0, classes=2, multilabel=False), use_features=False)
    half = model.propagated(graph, torch.tensor([0, 1, UNLABELED, UNLABELED]))
    whole = model.propagated(graph, torch.tensor([0, 1, 1, 0]))
    torch.testing.assert_close(half[:, 2::3], torch.ones(4, 4))  # a half of the neighbors: as all
    torch.testing.assert_close(half[:, 2::3], whole[:, 2::3])


def known_labels(labels: Tensor, train: Tensor, groups: Tensor | None = None) -> KnownLabels:
    return KnownLabels(labels, train, train[:0], "accuracy", groups)


def test_folds_keep_groups_together_and_are_similar_in_size() -> None:
    train, groups = torch.arange(10, 110), torch.arange(120) // 4
    labels = torch.zeros(120, dtype=torch.int64)
    known = known_labels(labels, train, groups)
    folds = draw_folds(known, seed=3)
    for group in groups[train].unique():
        assert len(folds[groups[train] == group].unique()) == 1
    assert len(folds.unique()) == FOLDS
    assert int(folds.bincount().max()) <= 24
    assert not torch.equal(folds, draw_folds(known, seed=4))
    single = draw_folds(known_labels(labels, train), seed=0)
    assert single.bincount().tolist() == [20] * FOLDS
    one_group = known_labels(labels, train, torch.zeros_like(groups))
    assert draw_folds(one_group, seed=0).tolist() == [0] * 100


def test_the_columns_of_features_are_computed_as_by_hand() -> None:
    graph = Graph.from_edges([[0, 1, 2], [2, 2, 3]], x=[[1.0], [-3.0], [5.0], [-1.0]])
    task_sizes = unimp.Task("path", graph, [0, 1, 0, 1], Split([0, 1], [], []), "accuracy", 2).sizes
    model = Trees(task_sizes, use_labels=False)
    h = model.embed(graph.x, torch.full((4,), UNLABELED))
    for index in range(model.num_layers):
        h = model.propagate(h, graph.hop, index)
    two, one = np.log(3.0), np.log(2.0)  # log(1 + degree)
    expected = [[0, 0, 1, 0, 0], [0, 0, -3, 0, 0], [0, -1, 5, 1, two], [-1, 5, -1, 5, one]]
    torch.testing.assert_close(h, torch.tensor(expected, dtype=torch.float64))


def test_the_same_seed_gives_the_same_weights(task: Task) -> None:
    assert same_weights(solved(task), solved(task))
    assert not same_weights(solved(task), solved(task, seed=1))


@pytest.mark.parametrize("sparse", [False, True])
def test_wide_features_are_projected(sparse: bool) -> None:
    task = make_task(num_features=MAX_FEATURES + 40)
    if sparse:
        from scipy.sparse import csr_array

        assert isinstance(task.graph.x, Tensor)
        x = task.graph.x * (task.graph.x > 0.5)
        task = task.with_graph(task.graph.with_features(csr_array(x.numpy())))
        assert isinstance(task.graph.x, SparseFeatures)
    model = solved(task)
    assert model.projection is not None
    gram = model.projection.T @ model.projection
    torch.testing.assert_close(gram, torch.eye(MAX_FEATURES), atol=1e-4, rtol=0)
    assert accuracy(logits_of(model, task), task) > 0.4
    assert same_weights(model, solved(task))


def test_sparse_features_give_the_answer_of_dense_ones(task: Task) -> None:
    from scipy.sparse import csr_array

    assert isinstance(task.graph.x, Tensor)
    sparse = task.with_graph(task.graph.with_features(csr_array(task.graph.x.numpy())))
    assert torch.equal(logits_of(solved(task), task), logits_of(solved(sparse), sparse))


def test_fewer_nodes_than_columns_of_the_projection() -> None:
    task = make_task(num_nodes=20, num_edges=40, num_features=100)
    model = solved(task)
    assert model.projection is not None
    assert bool((model.projection[:, 20:] == 0).all())
    assert logits_of(model, task).shape == (20, 3)


def test_each_binary_task_reads_its_own_propagated_labels() -> None:
    task = make_task(multilabel_tasks=3)
    model = solved(task)
    splits = model.left != trees.LEAF
    tree = torch.searchsorted(model.root, torch.arange(len(model.left)), right=True) - 1
    for number in range(3):
        used = model.feature[splits & (model.score[tree] == number)]
        others = [n for n in range(3) if n != number]
        assert not set(used.tolist()) & {
            column for n in others for column in model._own(n)[model.shared :].tolist()
        }
    assert set(model.score.tolist()) == {0, 1, 2}


def test_binary_tasks_with_missing_or_constant_labels() -> None:
    task = make_task(multilabel_tasks=4)
    labels = task.labels.clone()
    labels[:, 0] = 1
    labels[task.split.train, 1] = UNLABELED
    labels[task.split.train[::2], 2] = UNLABELED
    logits = logits_of(solved(with_labels(task, labels)), task)
    assert bool((logits[:, 0] == logits[0, 0]).all())
    assert float(logits[0, 0]) > 2
    assert bool((logits[:, 1] == 0).all())  # nothing is known: as likely as not
    assert len(logits[:, 2].unique()) > 1


def test_too_many_binary_tasks_are_refused(task: Task) -> None:
    with pytest.raises(ModelError, match=str(MAX_TASKS)):
        Trees(replace(task.sizes, classes=MAX_TASKS + 1, multilabel=True))


def tiny(train: list[int], labels: list[int]) -> Task:
    graph = Graph.from_edges([[0, 1, 2, 3], [1, 2, 3, 4]], num_nodes=5).symmetrize()
    graph = graph.with_features(torch.arange(5.0)[:, None])
    return unimp.Task("tiny", graph, labels, Split(train, [], [4]), "accuracy", 3)


def test_two_train_nodes_are_enough() -> None:
    task = tiny([0, 3], [0, 0, 0, 2, 2])
    logits = logits_of(solved(task), task)
    assert logits.argmax(1).tolist()[0] == 0
    assert logits.argmax(1).tolist()[3] == 2


@pytest.mark.parametrize("train", [[0, 3], [0, 1], [0]])
def test_a_class_without_a_train_label_is_the_least_likely(train: list[int]) -> None:
    task = tiny(train, [0, 0, 0, 2, 2])
    logits = logits_of(solved(task), task)
    assert bool(logits.isfinite().all())
    assert not bool((logits.argmax(1) == 1).any())


def test_a_graph_without_edges() -> None:
    task = make_task()
    bare = task.with_graph(Graph.from_edges([[], []], num_nodes=300, x=task.graph.x))
    assert logits_of(solved(bare), bare).shape == (300, 3)


def test_inputs_without_features(task: Task) -> None:
    bare = task.with_graph(task.graph.with_features(None))
    with pytest.raises(ModelError, match="A,Y"):
        Trees(bare.sizes)
    model = solved(bare, use_features=False)
    assert accuracy(logits_of(model, bare), bare) > 0.4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("trees")
    save_npz(make_task(), root / "task.npz")
    settings = ["model.name=trees", "train.device=cpu"]
    unimp.run(str(root / "task.npz"), settings=settings, out=root / "run", progress=False)
    return root / "run"


def test_a_loaded_run_predicts_the_same_and_takes_later_labels(folder: Path) -> None:
    run = unimp.load_run(folder, device="cpu")
    again = unimp.load_run(folder, device="cpu")
    assert torch.equal(run.predict(), again.predict())
    assert "validation" in run.metrics["stopped"]
    assert run.metrics["parameters"] > 1
    observed = run.observed_labels(reveal="train")
    more = run.observed_labels(reveal="train+val")
    assert not torch.equal(run.outputs(observed), run.outputs(more))
    assert run.explain(3).node == 3


def test_incremental_answers_equal_a_full_computation(folder: Path) -> None:
    run = unimp.load_run(folder, device="cpu")
    observed = run.observed_labels(reveal="train")
    engine = run.incremental(observed)
    assert isinstance(engine, IncrementalLogits)
    torch.testing.assert_close(engine.logits, run.outputs(observed))
    node = int(run.task.split.train[0])
    pair = run.task.graph.edge_index[:, 10].long()
    observed[node] = UNLABELED
    engine.commit(Change.hide([node]))
    torch.testing.assert_close(engine.logits, run.outputs(observed))
    graph = run.task.graph.without_edges(pair[:1], pair[1:])
    engine.commit(Change.remove_edges([pair.tolist()]))
    other = replace(run, task=run.task.with_graph(graph))
    torch.testing.assert_close(engine.logits, other.outputs(observed))


def test_the_estimate_states_that_there_are_no_epochs() -> None:
    settings = ["--set", "model.name=trees", "--set", "task.scale=0.02"]
    result = CliRunner().invoke(app, ["estimate", "synthetic", *settings])
    assert result.exit_code == 0
    assert "trees" in result.output


@pytest.mark.parametrize(
    ("name", "change", "word"),
    [
        ("feature", lambda t: t.index_fill(0, torch.tensor([0]), 10_000), "feature"),
        ("feature", lambda t: t.index_fill(0, torch.tensor([0]), -1), "feature"),
        ("left", lambda t: t.index_fill(0, torch.tensor([0]), 0), "left child 0 of node 0"),
        ("left", lambda t: t.index_fill(0, torch.tensor([0]), 1_000_000), "left child"),
        ("right", lambda t: t.index_fill(0, torch.tensor([0]), -7), "right child"),
        ("right", lambda t: t.index_fill(0, torch.tensor([0]), 1), "exactly one"),
        ("root", lambda t: t.flip(0), "root"),
        ("root", lambda t: t + 1, "root"),
        ("score", lambda t: t + 5, "score"),
        ("value", lambda t: t[:-1], "equal length"),
        ("value", lambda t: t * float("nan"), "not finite"),
        ("threshold", lambda t: t.double(), "threshold"),
        ("baseline", lambda t: t[:-1], "baseline"),
        ("feature", lambda t: t[:0], "equal length"),
    ],
)
def test_damaged_trees_are_refused(
    name: str, change: Any, word: str, folder: Path, tmp_path: Path
) -> None:
    task = make_task()
    tensors = load_file(folder / "model.safetensors")
    tensors[name] = change(tensors[name]).contiguous()
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(RunError, match=word):
        load_weights(Trees(task.sizes), tmp_path / "model.safetensors")
    del tensors[name]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(RunError, match=name):
        load_weights(Trees(task.sizes), tmp_path / "model.safetensors")


def test_weights_are_restored_bit_by_bit(task: Task, tmp_path: Path) -> None:
    model = solved(task)
    save_weights(model, tmp_path / "weights")
    other = Trees(task.sizes)
    load_weights(other, tmp_path / "weights")
    assert same_weights(model, other)
    assert torch.equal(logits_of(model, task), logits_of(other, task))


def test_trees_are_restored_as_members_of_an_ensemble(task: Task, tmp_path: Path) -> None:
    one, two = solved(task), solved(task, use_labels=False)
    entries = [Entry(name, {}, 0.5, 1.0) for name in ("one", "two")]
    numbers = [Calibration(torch.ones(1).double(), torch.zeros(1).double())] * 2
    save_weights(Ensemble([one, two], entries, numbers), tmp_path / "weights")
    others = [Trees(task.sizes), Trees(task.sizes, use_labels=False)]
    load_weights(Ensemble(others, entries, numbers), tmp_path / "weights")
    assert same_weights(one, others[0])
    assert same_weights(two, others[1])


def test_groups_of_the_task_reach_the_folds(task: Task) -> None:
    groups = torch.arange(300) // 50
    known = labels_to_solve(replace(task, groups=groups))
    assert isinstance(known, KnownLabels)
    model, other = Trees(task.sizes), Trees(task.sizes)
    graph = model.prepare(task.graph)
    model.solve(graph, known, seed=0)
    other.solve(graph, replace(known, groups=None), seed=0)
    assert not same_weights(model, other)
