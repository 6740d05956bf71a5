"""The engine of a service follows labels, nodes, edges and features as a cold prediction does."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import unimp
from unimp.data.structure import with_structure
from unimp.ensemble import portfolio
from unimp.ensemble.model import EnsembleLogits
from unimp.graph.graph import Graph
from unimp.inference.incremental.changes import Change, ChangeableLogits
from unimp.inference.incremental.logits import IncrementalLogits
from unimp.inference.incremental.recomputation import FullRecomputation
from unimp.runs import trained_members
from unimp.runs.run import Run

SETTINGS = {"task.scale": 0.01, "train.epochs": 3, "model.width": 8, "train.device": "cpu"}
ENSEMBLE = {
    "ensemble.portfolio": "good",
    "ensemble.members": ["label-propagation", "unimp", "mlp-structure", "trees-structure"],
}
RUNS: dict[str, tuple[dict[str, Any], type]] = {
    "one model": ({}, IncrementalLogits),
    "structural columns": ({"task.structure": True}, IncrementalLogits),
    "ridge with labels": ({"model.name": "ridge", "model.inputs": "X,A,Y"}, IncrementalLogits),
    "sign": ({"model.name": "sign"}, IncrementalLogits),
    "trees": ({"model.name": "trees", "task.structure": True}, IncrementalLogits),
    "smoothed": (
        {"smooth.form": "correct-and-smooth", "task.structure": True},
        FullRecomputation,
    ),
    "label propagation": ({"model.name": "label-propagation"}, FullRecomputation),
    "ensemble": (ENSEMBLE, EnsembleLogits),
    "ensemble with structural columns": ({**ENSEMBLE, "task.structure": True}, EnsembleLogits),
}


@pytest.fixture(scope="module")
def trained() -> Callable[[str], Run]:
    """A function that trains each run once."""
    known: dict[str, Run] = {}

    def run_of(name: str) -> Run:
        if name not in known:
            with pytest.MonkeyPatch.context() as patch:
                short = {**portfolio.FRAME, "train.epochs": 3, "model.width": 8}
                patch.setattr(portfolio, "FRAME", short)
                chosen = trained_members.choose_weights
                patch.setattr(
                    trained_members,
                    "choose_weights",
                    lambda given, *more: (chosen(given, *more) + 1) / (1 + len(given)),
                )
                known[name] = unimp.run("synthetic", settings={**SETTINGS, **RUNS[name][0]})
        return known[name]

    return run_of


def cold(run: Run, ends: torch.Tensor, x: torch.Tensor, observed: torch.Tensor) -> torch.Tensor:
    """The outputs of the run on a graph that is built again from a list of edges."""
    graph = Graph.from_edges(ends, x=x)
    if run.recipe.task.structure:
        graph = with_structure(graph)
    labels = torch.full((len(x),), -1)
    labels[: len(run.task.labels)] = run.task.labels
    return replace(run, task=replace(run.task, graph=graph, labels=labels)).outputs(observed)


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("hold", [None, False])
def test_a_live_engine_follows_every_kind_of_change(
    name: str, hold: bool | None, trained: Callable[[str], Run]
) -> None:
    run = trained(name)
    observed = run.observed_labels(reveal="train")
    engine: ChangeableLogits = run.live(observed, hold_projections=hold)
    assert isinstance(engine, RUNS[name][1])
    graph = run.task.graph
    assert isinstance(graph.x, torch.Tensor)
    x = graph.x[:, : graph.num_features - (3 if run.recipe.task.structure else 0)]
    count, ends = graph.num_nodes, graph.edge_index.long()
    assert torch.allclose(engine.logits, cold(run, ends, x, observed), atol=1e-5)

    row = torch.randn(1, x.shape[1], generator=torch.Generator().manual_seed(0))
    gone = ends[:, 5]
    changes = [
        Change(torch.tensor([3]), torch.tensor([1])),
        Change.add_nodes(count, row),
        Change.add_edges([(count, 0), (0, count), (4, 9)]),
        Change.remove_edges([gone.tolist()]),
        Change(featured=torch.tensor([7]), x=row),
    ]
    kept = ~((ends[0] == gone[0]) & (ends[1] == gone[1]))
    kept &= ~((ends[0] == 4) & (ends[1] == 9))
    ends = torch.cat((ends[:, kept], torch.tensor([[count, 0, 4], [0, count, 9]])), 1)
    x = torch.cat((x, row))
    x[7] = row
    observed = torch.cat((observed, torch.tensor([-1])))
    observed[3] = 1
    expected = cold(run, ends, x, observed)
    asked = torch.tensor([count, 0, 7, 3])
    (pulled,) = engine.after([Change.joined(changes)], [asked])
    assert torch.allclose(pulled, expected[asked], atol=1e-5)
    assert len(engine.logits) == count
    for change in changes:
        engine.commit(change)
    assert torch.allclose(engine.logits, expected, atol=1e-5)
    chances = run.probabilities_of(engine.logits)
    assert torch.allclose(chances.sum(1), torch.ones(count + 1))


def test_hidden_labels_cannot_reach_a_live_engine(trained: Callable[[str], Run]) -> None:
    run = trained("one model")
    observed = run.observed_labels(reveal="train")
    labels = run.task.labels.clone()
    labels[run.task.split.test] = (labels[run.task.split.test] + 1) % run.task.num_classes
    other = replace(run, task=replace(run.task, labels=labels))
    change = Change(run.task.split.train[:2], torch.tensor([0, 1]))
    one, two = run.live(observed), other.live(observed)
    one.commit(change)
    two.commit(change)
    assert torch.equal(one.logits, two.logits)


@pytest.mark.parametrize(
    "name", ["one model", "structural columns", "ridge with labels", "ensemble"]
)
def test_answers_between_the_steps_of_a_commit_disturb_nothing(
    name: str, trained: Callable[[str], Run]
) -> None:
    run = trained(name)
    graph, observed = run.task.graph, run.observed_labels()
    alone, disturbed = run.live(observed), run.live(observed)
    nodes = torch.arange(0, graph.num_nodes, 7)
    change = Change(nodes[:3], (observed[nodes[:3]] + 1) % run.task.num_classes)
    later = Change.joined([change, Change(nodes[3:5], observed[nodes[3:5]].clamp(min=0))])
    (expected,) = run.live(observed).after([later], [nodes])
    answers = []

    def ask() -> None:
        answers.extend(disturbed.after([later], [nodes]))

    alone.commit(change)
    disturbed.commit(change, ask)
    assert answers
    for answer in answers:
        assert torch.allclose(answer, expected, atol=1e-5)
    assert torch.equal(alone.logits, disturbed.logits)
