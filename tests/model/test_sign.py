"""SIGN: an MLP on the features of all hops, trained on propagated rows."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from torch import Tensor
from torch.nn import functional as F

from unimp.data.synthetic import synthetic_task
from unimp.errors import TrainingError
from unimp.graph.features import SparseFeatures
from unimp.inference.incremental.changes import Change
from unimp.inference.incremental.logits import IncrementalLogits
from unimp.inference.logits import predict_logits
from unimp.model import sign
from unimp.model.sign import SIGN
from unimp.model.solved_model import Solved
from unimp.runs.experiment import run
from unimp.runs.fitting import labels_to_solve
from unimp.runs.loading import load_run
from unimp.tasks.labels import UNLABELED, reveal_only
from unimp.tasks.task import Task


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sign, "MOST_EPOCHS", 30)
    monkeypatch.setattr(sign, "LEAST_BATCH", 32)


def task_of(**sizes: Any) -> Task:
    given = {"num_nodes": 120, "num_edges": 500, "num_classes": 3, "num_features": 6}
    return synthetic_task(**given | sizes)


def solved(task: Task, seed: int = 0, **options: Any) -> tuple[SIGN, Tensor]:
    """The trained model and its logits, with train labels as inputs."""
    torch.manual_seed(0)
    model = SIGN(task.sizes, **{"width": 8, **options}).eval()
    graph = model.prepare(task.graph)
    model.solve(graph, labels_to_solve(task), seed=seed)
    return model, predict_logits(model, graph, reveal_only(task.split.train, task.labels))


def right(task: Task, logits: Tensor) -> float:
    test = task.split.test
    return float((logits.argmax(1) == task.labels)[test].double().mean())


@pytest.mark.parametrize("use_labels", [False, True])
def test_logits_follow_the_equation(use_labels: bool) -> None:
    task = task_of()
    model, logits = solved(task, hops=2, use_labels=use_labels)
    nodes = task.graph.num_nodes
    loops = task.graph.with_self_loops()
    matrix = np.zeros((nodes, nodes))
    np.add.at(matrix, (loops.target.numpy(), loops.source.numpy()), 1.0)
    spread = torch.from_numpy(matrix / np.sqrt(matrix.sum(1)[:, None] * matrix.sum(0))).float()
    x = task.graph.x
    assert isinstance(x, Tensor)
    parts = [x @ model.weight[:, 0], spread @ x @ model.weight[:, 1]]
    parts.append(spread @ spread @ x @ model.weight[:, 2])
    if use_labels:
        observed = reveal_only(task.split.train, task.labels)
        rows = model.propagated(model.prepare(task.graph), observed)
        parts.insert(0, rows @ model.propagated_labels.linear.weight.t())  # type: ignore[union-attr]
    tail = model.perceptron
    h = F.relu(tail.norm(torch.cat(parts, 1) + model.bias))
    expected = tail.head(F.relu(tail.hidden_norm(tail.hidden(h))))
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "kind", ["dense", "sparse", "half", "wide", "wide half", "wide and sparse"]
)
def test_predictions_equal_the_network_that_was_trained(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind.startswith("wide"):
        monkeypatch.setattr(sign, "MOST_COLUMNS", 4)
    task = task_of(num_features=12)
    x = task.graph.x
    assert isinstance(x, Tensor)
    words: Tensor | SparseFeatures = torch.where(x > 0.5, x, 0.0)
    if kind.endswith("sparse"):
        words = SparseFeatures.from_scipy(csr_array(words.numpy()))  # type: ignore[union-attr]
    task = task.with_graph(task.graph.with_features(words))
    trained: list[Tensor] = []
    train = sign.fit

    def fit(network: Any, blocks: Any, known: Any, *limits: Any) -> Any:
        result = train(network, blocks, known, *limits)
        trained.append(network([rows[len(known.train) :] for rows in blocks]).detach())
        return result

    monkeypatch.setattr(sign, "fit", fit)
    _, logits = solved(task, use_labels=True)
    torch.testing.assert_close(logits[task.split.val], trained[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("multilabel", [0, 4])
def test_test_labels_change_nothing(multilabel: int) -> None:
    task = task_of(multilabel_tasks=multilabel)
    labels = task.labels.clone()
    labels[task.split.test] = labels[task.split.test].roll(1, 0)
    (before, _), (after, _) = (solved(one) for one in (task, replace(task, labels=labels)))
    for name, value in after.state_dict().items():
        assert torch.equal(value, before.state_dict()[name])


def test_permuted_labels_predict_by_chance() -> None:
    task = task_of(num_nodes=2000, num_edges=8000, num_features=16)
    labels = task.labels.clone()
    for nodes in (task.split.train, task.split.val):  # true validation labels choose a good epoch
        order = torch.randperm(len(nodes), generator=torch.Generator().manual_seed(0))
        labels[nodes] = labels[nodes][order]
    assert right(task, solved(task)[1]) > 0.6
    shuffled = replace(task, labels=labels)
    assert abs(right(task, solved(shuffled)[1]) - 1 / 3) < 0.15


def test_labels_help_where_features_do_not() -> None:
    task = task_of(num_nodes=1000, num_edges=6000, homophily=0.9)
    noise = torch.randn(1000, 4, generator=torch.Generator().manual_seed(0))
    task = task.with_graph(task.graph.with_features(noise))
    alone, both = (right(task, solved(task, use_labels=use)[1]) for use in (False, True))
    assert both > alone + 0.2


def test_unknown_entries_of_binary_tasks_are_not_learned() -> None:
    task = task_of(multilabel_tasks=4)
    labels = task.labels.clone()
    labels[::3, 1] = UNLABELED
    logits = torch.randn(120, 4, generator=torch.Generator().manual_seed(0))
    before = sign.loss(logits, labels)
    logits[::3, 1] += 5.0
    assert torch.equal(sign.loss(logits, labels), before)
    logits[1, 1] += 5.0
    assert not torch.equal(sign.loss(logits, labels), before)


def test_a_seed_gives_one_set_of_weights_and_leaves_other_draws_alone() -> None:
    task = task_of()
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    model = SIGN(task.sizes, width=8)
    torch.manual_seed(7)
    model.solve(model.prepare(task.graph), labels_to_solve(task), seed=1)
    assert torch.equal(torch.rand(3), expected)
    one, again, other = (solved(task, seed)[1] for seed in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_the_inputs_of_a_train_node_do_not_contain_its_own_label() -> None:
    task = task_of()
    model = SIGN(task.sizes, width=8)
    graph, known = model.prepare(task.graph), labels_to_solve(task)

    def rows(labels: Tensor) -> Tensor:
        block = model._blocks(graph, replace(known, labels=labels), seed=0)[0]
        return block.rows[: len(known.train)] / block.factor + block.mean

    before = rows(known.labels)
    labels = known.labels.clone()
    labels[known.train[4]] = (labels[known.train[4]] + 1) % 3
    after = rows(labels)
    torch.testing.assert_close(after[4], before[4], rtol=0, atol=1e-5)
    assert not torch.allclose(after, before, atol=1e-3)


@pytest.mark.parametrize("constant", ["everywhere", "on known nodes"])
def test_constant_features_are_ignored(constant: str) -> None:
    task = task_of(num_features=3)
    x = torch.full((120, 3), 0.1)
    if constant == "on known nodes":
        x[task.split.test] += torch.rand(len(task.split.test), 3)
    task = task.with_graph(task.graph.with_features(x))
    model, logits = solved(task, hops=1)
    assert float(model.weight.detach()[:, 0].abs().max()) == 0.0
    assert float(logits.abs().max()) < 100


def test_an_undefined_validation_score_keeps_the_last_epoch() -> None:
    task = synthetic_task(num_nodes=120, num_edges=500, num_classes=2, num_features=6)
    labels = task.labels.clone()
    labels[task.split.val] = 1
    model, _ = solved(replace(task, labels=labels, metric="rocauc"))
    assert int(model.epochs) == 30


def test_weights_that_overflow_are_reported_as_a_failed_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sign, "RATE", 1e30)
    with pytest.raises(TrainingError, match="training failed"):
        run(task_of(), settings={"model.name": "sign", "model.width": 8})


def test_solving_again_trains_for_the_chosen_number_of_epochs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = task_of()
    model, _ = solved(task)
    chosen = int(model.epochs)
    assert 1 <= chosen <= 30
    known = labels_to_solve(task)
    everyone = torch.cat((known.train, known.val))
    graph = model.prepare(task.graph)
    limits, train = [], sign.fit

    def fit(*given: Any) -> Any:
        limits.append(given[3])
        return train(*given)

    monkeypatch.setattr(sign, "fit", fit)
    before = model.weight.detach().clone()
    model.solve_again(graph, replace(known, train=everyone, val=everyone[:0]), seed=0)
    assert limits == [chosen]
    assert not torch.equal(model.weight, before)


@pytest.mark.parametrize("with_validation", [False, True])
def test_a_time_limit_ends_training_after_at_least_one_epoch(
    with_validation: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count()
    monkeypatch.setattr(sign.time, "perf_counter", lambda: float(next(clock)))
    task = task_of()
    known = labels_to_solve(task)
    if not with_validation:
        known = replace(known, val=known.val[:0])
    model = SIGN(task.sizes, width=8)
    found = model.solve(model.prepare(task.graph), known, seed=0, seconds=0.0)
    assert found == Solved(found.how, cut_short=True)
    assert int(model.epochs) == 1


@pytest.mark.parametrize("use_labels", [False, True])
def test_incremental_and_chunked_inference_equal_exact_inference(use_labels: bool) -> None:
    task = task_of()
    model, exact = solved(task, use_labels=use_labels)
    graph = model.prepare(task.graph)
    observed = reveal_only(task.split.train, task.labels)
    torch.testing.assert_close(predict_logits(model, graph, observed, chunk_edges=31), exact)
    stored = IncrementalLogits(model, graph, observed)
    torch.testing.assert_close(stored.logits, exact)
    edges = task.graph.edge_index[:, [3, 70]]
    without = model.prepare(task.graph.without_edges(*edges))
    everyone = torch.arange(task.graph.num_nodes)
    (found,) = stored.after([Change(without=edges.long())], [everyone])
    expected = predict_logits(model, without, observed)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(expected, exact)


def test_a_stored_run_predicts_the_same(tmp_path: Any) -> None:
    settings = {"model.name": "sign", "model.width": 8, "task.scale": 0.02, "train.device": "cpu"}
    done = run("synthetic", settings=settings, out=tmp_path / "run")
    observed = done.observed_labels(reveal="train")
    again = load_run(tmp_path / "run")
    assert torch.equal(again.outputs(observed), done.outputs(observed))
    assert "epoch" in done.metrics["stopped"]
