"""Ridge regression on propagated features: equal to scikit-learn, and settings from validation."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from sklearn.linear_model import Ridge as SklearnRidge
from torch import Tensor

from unimp.data.npz import save_npz
from unimp.data.synthetic import synthetic_task
from unimp.graph.features import SparseFeatures
from unimp.inference.incremental.changes import Change
from unimp.inference.incremental.logits import IncrementalLogits
from unimp.inference.logits import predict_logits
from unimp.model import least_squares, ridge, ridge_problem
from unimp.model.ridge import Ridge
from unimp.model.solved_model import cross_fitted, draw_folds
from unimp.runs.experiment import run
from unimp.runs.fitting import labels_to_solve
from unimp.runs.loading import load_run
from unimp.tasks.labels import Split, reveal_only
from unimp.tasks.task import Task

FORMS = ["average", "concat"]


def task_of(**sizes: Any) -> Task:
    given = {"num_nodes": 120, "num_edges": 500, "num_classes": 3, "num_features": 6}
    return synthetic_task(**given | sizes)


def solved(task: Task, **options: Any) -> tuple[Ridge, Tensor]:
    """The solved model and its logits."""
    torch.manual_seed(0)
    model = Ridge(task.sizes, **options)
    graph = model.prepare(task.graph)
    model.solve(graph, labels_to_solve(task), seed=0)
    return model, predict_logits(model, graph, reveal_only(task.split.train, task.labels))


def hop_features(task: Task, hops: int) -> list[Any]:
    """X, ÂX, …, written with dense matrices."""
    nodes = task.graph.num_nodes
    loops = task.graph.with_self_loops()
    matrix = np.zeros((nodes, nodes))
    np.add.at(matrix, (loops.target.numpy(), loops.source.numpy()), 1.0)
    spread = matrix / np.sqrt(matrix.sum(1)[:, None] * matrix.sum(0))
    found = [task.graph.x.double().numpy()]  # type: ignore[union-attr]
    for _ in range(hops):
        found.append(spread @ found[-1])
    return found


@pytest.mark.parametrize("labels", [False, True])
@pytest.mark.parametrize("train", [10, 60])  # fewer and more nodes than columns
@pytest.mark.parametrize("method", ["direct", "gradients"])
@pytest.mark.parametrize("form", FORMS)
def test_it_equals_scikit_learn_on_explicit_features(
    form: str, method: str, train: int, labels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if method == "gradients":
        monkeypatch.setattr(ridge_problem, "MAX_SIDE", 0)
        monkeypatch.setattr(least_squares, "TOLERANCE", 1e-12)
        monkeypatch.setattr(ridge_problem, "MAX_STEPS", 1000)
    task = task_of(num_features=20)
    known = torch.arange(train)
    empty = torch.empty(0, dtype=torch.int64)
    task = replace(task, split=Split(known, empty, torch.arange(90, 120)))
    model, logits = solved(task, hops=3, hop_features=form, strength=0.1, use_labels=labels)
    hops = hop_features(task, 3)
    rows = np.mean(hops, 0) if form == "average" else np.concatenate(hops, 1)
    centered = rows[:train] - rows[:train].mean(0)
    unit = np.square(centered).sum(1).mean()
    if method == "gradients":  # the mean length is estimated
        signs = np.random.Generator(np.random.PCG64(0)).choice((-1.0, 1.0), (rows.shape[1], 32))
        unit = np.square(centered @ signs).sum(0).mean() / train
    fitted = rows[:train]
    if labels:
        spread = partial(model.propagated, model.prepare(task.graph))
        inside = cross_fitted(labels_to_solve(task), spread, seed=0).double().numpy()
        scale = np.sqrt(unit / np.square(inside - inside.mean(0)).sum(1).mean())
        fitted = np.concatenate((fitted, scale * inside), 1)
        given = spread(reveal_only(known, task.labels)).double().numpy()
        rows = np.concatenate((rows, scale * given), 1)
    target = np.eye(3)[task.labels[known].numpy()]
    expected = SklearnRidge(alpha=0.1 * unit).fit(fitted, target).predict(rows)
    factor = float(np.ptp(logits.numpy()) / np.ptp(expected))
    np.testing.assert_allclose(logits.numpy() / factor, expected, atol=1e-4)
    assert model.num_layers == 3


@pytest.mark.parametrize("labels", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_solving_again_equals_solving_with_the_chosen_settings(form: str, labels: bool) -> None:
    task = task_of(num_features=20)
    model, _ = solved(task, hop_features=form, use_labels=labels)
    known = labels_to_solve(task)
    strength, factor, size = model.chosen.tolist()
    everyone = torch.cat((known.train, known.val))
    all_known = replace(known, train=everyone, val=everyone[:0])
    graph = model.prepare(task.graph)
    model.solve_again(graph, all_known, seed=0)
    if size not in (0.0, ridge.LABEL_SIZES[0]):
        pytest.skip("a model without validation labels uses another size")
    fixed = Ridge(
        task.sizes,
        hops=model.num_layers,
        hop_features=form,  # type: ignore[arg-type]
        strength=strength,
        use_labels=size > 0,
    )
    fixed.solve(graph, all_known, seed=0)
    observed = reveal_only(everyone, task.labels)
    ours = predict_logits(model, graph, observed) / factor
    theirs = predict_logits(fixed, fixed.prepare(task.graph), observed) / fixed.chosen[1].item()
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
def test_sparse_and_dense_features_give_equal_logits(form: str) -> None:
    task = task_of(num_features=200)  # more columns than known nodes
    x = task.graph.x
    assert isinstance(x, Tensor)
    words = torch.where(x > 0.8, x, 0.0)
    dense = task.with_graph(task.graph.with_features(words))
    sparse = SparseFeatures.from_scipy(csr_array(words.numpy()))
    _, one = solved(dense, hop_features=form)
    _, other = solved(task.with_graph(task.graph.with_features(sparse)), hop_features=form)
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("multilabel", [0, 4])
@pytest.mark.parametrize("use_labels", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_test_labels_change_nothing_and_validation_labels_only_the_settings(
    form: str, use_labels: bool, multilabel: int
) -> None:
    task = task_of(multilabel_tasks=multilabel)

    def weights(nodes: Tensor, **options: Any) -> dict[str, Tensor]:
        labels = task.labels.clone()
        labels[nodes] = labels[nodes].roll(1, 0)
        changed = replace(task, labels=labels)
        options = {"hop_features": form, "use_labels": use_labels} | options
        return solved(changed, **options)[0].state_dict()

    nobody = torch.empty(0, dtype=torch.int64)
    before = weights(nobody)
    for name, value in weights(task.split.test).items():
        assert torch.equal(value, before[name])
    # With fixed settings, validation labels determine one factor of all weights.
    fixed = {"hops": 2, "strength": 1.0, "use_labels": False}
    one, other = weights(nobody, **fixed), weights(task.split.val, **fixed)
    ratio = other["weight"] / one["weight"]
    torch.testing.assert_close(ratio, torch.full_like(ratio, float(ratio.mean())))
    changed = weights(task.split.train, **fixed)
    assert not torch.allclose(changed["weight"], one["weight"] * float(ratio.mean()))


def test_permuted_train_labels_predict_by_chance() -> None:
    task = task_of(num_nodes=2000, num_edges=8000, num_features=16)
    real = (solved(task)[1].argmax(1) == task.labels)[task.split.test].double().mean()
    labels = task.labels.clone()
    train = task.split.train
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
    labels[train] = labels[train][order]
    known = labels_to_solve(replace(task, labels=labels))
    model = Ridge(task.sizes, hops=4, strength=1.0)
    graph = model.prepare(task.graph)
    model.solve(graph, known, seed=0)
    guess = predict_logits(model, graph, labels).argmax(1)
    shuffled = (guess == task.labels)[task.split.test].double().mean()
    assert float(real) > 0.6
    assert abs(float(shuffled) - 1 / 3) < 0.15


def test_settings_are_those_with_the_best_score_on_validation() -> None:
    task = task_of()
    val = task.split.val

    def right(**options: Any) -> float:
        logits = solved(task, **options)[1]
        return float((logits.argmax(1) == task.labels)[val].double().mean())

    single = [
        right(hops=hops, strength=strength)
        for hops in ridge.AVERAGE_HOPS
        for strength in ridge.STRENGTHS
    ]
    assert right() == max(single) > min(single)


@pytest.mark.parametrize("form", FORMS)
def test_a_short_time_limit_leaves_out_all_but_the_first_number_of_hops(form: Any) -> None:
    task = task_of()
    model = Ridge(task.sizes, hop_features=form)
    graph, known = model.prepare(task.graph), labels_to_solve(task)
    found = model.solve(graph, known, seed=0, seconds=0.0)
    assert found.cut_short
    assert "left out to keep the time limit" in found.how
    first, _ = solved(task, hop_features=form, hops=model.candidates[0])
    assert torch.equal(model.weight[:, : first.weight.shape[1]], first.weight)
    assert not model.solve(graph, known, seed=0, seconds=3600.0).cut_short


def test_settings_include_a_solution_without_labels() -> None:
    """Labels that are wrong in validation are not used, so the scores are those of X,A."""
    task = task_of(num_nodes=400, num_edges=1600, homophily=0.0)
    alone, both = (solved(task, use_labels=use)[1] for use in (False, True))
    val = task.split.val
    right = [float((one.argmax(1) == task.labels)[val].sum()) for one in (alone, both)]
    assert right[1] >= right[0]


def test_the_row_of_a_train_node_does_not_depend_on_the_labels_of_its_group() -> None:
    task = task_of()
    groups = torch.arange(120) // 3
    known = replace(labels_to_solve(task), train=torch.arange(0, 90), groups=groups)
    known = replace(known, labels=task.labels)
    model = Ridge(task.sizes, use_labels=True)
    spread = partial(model.propagated, model.prepare(task.graph))
    before = cross_fitted(known, spread, seed=4)
    for group in (0, 7, 29):
        inside = groups[:90] == group
        labels = task.labels.clone()
        labels[:90][inside] = (labels[:90][inside] + 1) % 3
        after = cross_fitted(replace(known, labels=labels), spread, seed=4)
        assert torch.equal(after[inside], before[inside])
        assert not torch.equal(after, before)
    folds = draw_folds(known, seed=4)
    assert all(len(folds[groups[:90] == group].unique()) == 1 for group in range(30))
    assert folds.bincount().tolist() == [18] * 5


def test_labels_help_where_features_do_not() -> None:
    task = task_of(num_nodes=1000, num_edges=6000, homophily=0.9)
    noise = torch.randn(1000, 4, generator=torch.Generator().manual_seed(0))
    task = task.with_graph(task.graph.with_features(noise))
    test = task.split.test
    alone, both = (solved(task, use_labels=use)[1].argmax(1) for use in (False, True))
    right = [float((one == task.labels)[test].double().mean()) for one in (alone, both)]
    assert right[1] > right[0] + 0.2


@pytest.mark.parametrize("use_labels", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_incremental_and_chunked_inference_equal_exact_inference(
    form: str, use_labels: bool
) -> None:
    task = task_of()
    model, exact = solved(task, hop_features=form, use_labels=use_labels)
    if use_labels:  # also if validation prefers a solution without labels
        torch.nn.init.normal_(model.propagated_labels.linear.weight)  # type: ignore[union-attr]
    graph = model.prepare(task.graph)
    observed = reveal_only(task.split.train, task.labels)
    exact = predict_logits(model, graph, observed)
    chunks = predict_logits(model, graph, observed, chunk_edges=31)
    torch.testing.assert_close(chunks, exact)
    stored = IncrementalLogits(model, graph, observed)
    torch.testing.assert_close(stored.logits, exact)
    edges = task.graph.edge_index[:, [3, 70]]
    without = model.prepare(task.graph.without_edges(*edges))
    everyone = torch.arange(task.graph.num_nodes)
    (found,) = stored.after([Change(without=edges.long())], [everyone])
    expected = predict_logits(model, without, observed)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(expected, exact)


@pytest.mark.parametrize("multilabel", [0, 3])
@pytest.mark.parametrize("inputs", ["X,A", "X,A,Y"])
@pytest.mark.parametrize("form", FORMS)
def test_a_run_can_be_loaded_with_the_chosen_number_of_hops(
    form: str, inputs: str, multilabel: int, tmp_path: Path
) -> None:
    save_npz(task_of(multilabel_tasks=multilabel), tmp_path / "task.npz")
    settings = ["model.name=ridge", f"model.hop_features={form}", f"model.inputs={inputs}"]
    done = run(str(tmp_path / "task.npz"), settings=settings, out=tmp_path / "run", progress=False)
    again = load_run(tmp_path / "run")
    assert again.model.num_layers == done.model.num_layers
    assert torch.equal(again.predict(), done.predict())
    assert "hops" in done.metrics["stopped"]
    assert done.takes_labels == (inputs == "X,A,Y")
    assert done.metrics["scores"]["train"]["test"] > 0.4


def test_missing_entries_of_binary_tasks_are_not_fitted() -> None:
    task = task_of(multilabel_tasks=2)
    labels = task.labels.clone()
    labels[task.split.train[::2], 0] = -1
    labels[task.split.train, 1] = -1
    labels[task.split.train[::2], 1] = 1
    _, logits = solved(replace(task, labels=labels))
    assert bool(torch.isfinite(logits).all())
    assert bool((logits[:, 1] > 0).all())  # the only label of the task


@pytest.mark.parametrize("use_labels", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_one_train_node_per_class_and_no_validation(form: str, use_labels: bool) -> None:
    task = task_of(num_nodes=12, num_edges=15)
    train = torch.tensor([int((task.labels == label).nonzero()[0]) for label in range(3)])
    rest = torch.tensor([i for i in range(12) if i not in train.tolist()])
    empty = torch.empty(0, dtype=torch.int64)
    tiny = replace(task, split=Split(train, empty, rest))
    model, logits = solved(tiny, hop_features=form, use_labels=use_labels)
    assert bool(torch.isfinite(logits).all())
    assert model.num_layers == model.candidates[0]
    assert torch.equal(logits[train].argmax(1), torch.arange(3))


def test_equal_features_give_the_shares_of_the_classes() -> None:
    task = task_of()
    loops = type(task.graph).from_edges([[0], [0]], x=torch.ones(120, 2), num_nodes=120)
    _, logits = solved(task.with_graph(loops))
    torch.testing.assert_close(logits, logits[:1].expand_as(logits))
    assert int(logits[0].argmax()) == int(task.labels[task.split.train].bincount().argmax())
