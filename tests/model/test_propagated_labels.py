"""Labels that are propagated under the mask: their definition, and what they cannot contain."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from unimp.analysis.audit import audit
from unimp.analysis.explain import explain
from unimp.data.synthetic import synthetic_task
from unimp.graph.graph import Graph
from unimp.model import propagated_labels as propagated_labels_module
from unimp.model.propagated_labels import (
    FLOOR,
    STEPS,
    LabelSums,
    PropagatedLabels,
    propagated_labels,
)
from unimp.runs.experiment import run
from unimp.runs.loading import load_run
from unimp.tasks.task import Sizes

Maker = Callable[..., Graph]
CLASSES = 3


def propagate(graph: Graph, observed: Tensor) -> Tensor:
    sizes = Sizes(0, 0, CLASSES, multilabel=observed.ndim == 2)
    labels = PropagatedLabels(sizes, 4)
    rows = labels.of(graph, observed)
    assert labels.inputs(rows).shape == (graph.num_nodes, labels.linear.in_features)
    return rows


def some_labels(num_nodes: int, *, multilabel: bool, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (num_nodes, CLASSES) if multilabel else (num_nodes,)
    labels = torch.randint(-1, 2 if multilabel else CLASSES, shape, generator=generator)
    labels[::3] = -1
    return labels.to(torch.int8) if multilabel else labels


def dense_rows(graph: Graph, observed: Tensor) -> Tensor:
    """The definition in dense matrices: shares and masses of each number of steps."""
    matrix = torch.zeros(graph.num_nodes, graph.num_nodes, dtype=torch.float64)
    ends = (graph.target.long(), graph.source.long())
    matrix.index_put_(ends, torch.ones(graph.num_edges, dtype=torch.float64), accumulate=True)
    matrix /= matrix.sum(1, keepdim=True).clamp(min=1)
    if observed.ndim == 2:
        ones, known = (observed == 1).double(), (observed >= 0).double()
    else:
        ones = torch.stack([observed == c for c in range(CLASSES)], 1).double()
        known = (observed >= 0).double()[:, None]
    found = []
    for steps in STEPS:
        power = torch.linalg.matrix_power(matrix, steps)
        mass = power @ known + FLOOR
        found += [power @ ones / mass, 1.0 - mass.log() / math.log(FLOOR)]
    return torch.cat(found, 1)


@pytest.mark.parametrize("multilabel", [False, True])
def test_columns_that_are_used_again_equal_a_new_propagation_bit_by_bit(
    multilabel: bool, random_graph: Maker
) -> None:
    graphs = [random_graph(30, 80, seed=seed) for seed in range(2)]
    recent, observed = LabelSums(), some_labels(30, multilabel=multilabel)
    for step in range(12):
        graph, observed = graphs[step // 5 % 2], observed.clone()
        observed[step : step + step % 3] = some_labels(30, multilabel=multilabel, seed=step)[
            : step % 3
        ]
        dtype = torch.float64 if step % 4 == 3 else torch.float32
        found = propagated_labels(graph, observed, CLASSES, dtype=dtype, recent=recent)
        assert torch.equal(found, propagated_labels(graph, observed, CLASSES, dtype=dtype))


@pytest.mark.parametrize("multilabel", [False, True])
def test_rows_are_shares_and_masses_of_walks(multilabel: bool, random_graph: Maker) -> None:
    graph = random_graph(30, 80, edge_features=2)
    observed = some_labels(30, multilabel=multilabel)
    torch.testing.assert_close(
        propagate(graph, observed), dense_rows(graph, observed).float(), rtol=1e-4, atol=1e-5
    )


def test_binary_tasks_have_one_mass_per_step(random_graph: Maker) -> None:
    graph, observed = random_graph(30, 80), some_labels(30, multilabel=True)
    sizes = Sizes(0, 0, CLASSES, multilabel=True)
    rows = propagate(graph, observed)
    inputs = PropagatedLabels(sizes, 8).inputs(rows).unflatten(1, (len(STEPS), CLASSES + 1))
    by_step = rows.unflatten(1, (len(STEPS), 2 * CLASSES))
    assert torch.equal(inputs[:, :, :CLASSES], by_step[:, :, :CLASSES])
    torch.testing.assert_close(inputs[:, :, CLASSES], by_step[:, :, CLASSES:].mean(2))
    assert PropagatedLabels(sizes, 8)(rows[:0]).shape == (0, 8)


def test_shares_of_classes_sum_to_one_where_labels_arrive() -> None:
    graph = Graph.from_edges([[0, 1, 2], [1, 2, 0]], num_nodes=5)  # a cycle; 3 and 4 are alone
    first = propagate(graph, torch.tensor([1, -1, -1, 2, -1]))[:, : CLASSES + 1]
    torch.testing.assert_close(first[1], torch.tensor([0.0, 1.0, 0.0, 1.0]), atol=1e-5, rtol=0)
    assert bool((first[[0, 2, 3, 4]].abs() < 1e-6).all())


@pytest.mark.parametrize("multilabel", [False, True])
def test_without_observed_labels_all_rows_are_zero(multilabel: bool, random_graph: Maker) -> None:
    observed = torch.full_like(some_labels(30, multilabel=multilabel), -1)
    assert bool((propagate(random_graph(30, 80), observed).abs() < 1e-6).all())


def test_an_observed_label_reaches_nodes_farther_than_the_layers() -> None:
    chain = Graph.from_edges([list(range(10)), list(range(1, 11))])
    rows = propagate(chain, torch.tensor([2] + [-1] * 10))
    assert rows[10, -(CLASSES + 1) :].tolist() == pytest.approx([0, 0, 1, 1], abs=1e-5)


@pytest.mark.parametrize(
    "settings", [[], ["task.name=synthetic-proteins", "task.scale=0.003", "batch.parts=3"]]
)
@pytest.mark.parametrize("regime", ["full", "partition", "neighbors"])
def test_a_run_with_propagated_labels_is_stored_and_loaded(
    regime: str, settings: list[str], tmp_path: Path
) -> None:
    small: list[Any] = ["task.scale=0.02", "train.epochs=3", "model.width=8", "model.layers=2"]
    small += ["model.propagated_labels=true", f"batch.regime={regime}", *settings]
    done = run("synthetic", settings=small, out=tmp_path / "run")
    loaded = load_run(tmp_path / "run")
    observed = done.observed_labels()
    assert torch.equal(done.logits(observed), loaded.logits(observed))
    without = loaded.logits(torch.full_like(observed, -1))
    assert not torch.equal(without, loaded.logits(observed))


def test_scoring_propagates_the_same_labels_once(monkeypatch: pytest.MonkeyPatch) -> None:
    module, calls = propagated_labels_module, []
    compute = module._sums
    monkeypatch.setattr(module, "_sums", lambda *given: calls.append(1) or compute(*given))
    settings = {
        "task.scale": 0.02,
        "train.epochs": 6,
        "model.width": 8,
        "model.propagated_labels": True,
    }
    remembered = run("synthetic", settings=settings)
    assert remembered.model.recent is None
    few = len(calls)
    monkeypatch.setattr(module, "MOST_REMEMBERED", 0)
    again = run("synthetic", settings=settings)
    assert len(calls) - few == few + 5  # the first of six scorings computes them
    assert remembered.metrics["scores"] == again.metrics["scores"]
    for name, weight in remembered.model.state_dict().items():
        assert torch.equal(weight, again.model.state_dict()[name])


def test_explanations_audits_and_changes_follow_propagated_labels() -> None:
    task = synthetic_task(num_nodes=80, num_edges=160, num_classes=3, num_features=4)
    settings = ["model.width=8", "model.layers=2", "train.epochs=3"]
    done = run(task, settings=[*settings, "model.propagated_labels=true"])
    observed = done.observed_labels(reveal="train")
    node = int(task.split.test[0])
    chances = done.probabilities_of
    whole = done.incremental(observed)
    near = done.incremental(observed, around=torch.tensor([node]))
    found = [explain(one, task, observed, node, chances=chances) for one in (whole, near)]
    none = torch.full_like(observed, -1)
    for why in found:
        assert why.probability == pytest.approx(
            float(chances(done.logits(observed))[node, why.target]), rel=1e-4
        )
        assert why.without_labels == pytest.approx(
            float(chances(done.logits(none))[node, why.target]), rel=1e-4
        )
        hidden = observed.clone()
        hidden[why.labels[0].node] = -1
        assert why.labels[0].without == pytest.approx(
            float(chances(done.logits(hidden))[node, why.target]), rel=1e-4
        )
    known = task.split.train[:3]
    report = audit(whole, task, known, chances=chances, folds=0)
    for row, number in zip(report.to_pylist(), report.nodes.tolist(), strict=True):
        hidden = observed.clone()
        hidden[number] = -1
        given = float(chances(done.logits(hidden))[number, task.labels[number]])
        assert row["p_given"] == pytest.approx(given, abs=1e-4)
    assert whole.propagation_cost > 0
    assert run(task, settings=settings).incremental().propagation_cost == 0


def test_later_labels_beyond_the_layers_change_a_prediction() -> None:
    task = synthetic_task(num_nodes=60, num_edges=90, num_classes=3, num_features=4)
    settings = ["model.width=8", "model.layers=1", "train.epochs=2"]

    def reached(*more: str) -> int:
        done = run(task, settings=[*settings, *more])
        observed = done.observed_labels(reveal="train")
        unknown = int(task.split.test[0])
        given = observed.clone()
        given[unknown] = task.labels[unknown]
        return int((done.logits(given) != done.logits(observed)).any(1).sum())

    assert reached("model.propagated_labels=true") > reached()
