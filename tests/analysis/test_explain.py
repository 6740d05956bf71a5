"""Explanations: effects are exact, shares sum to 1, and names are those of the task."""

from typing import Any

import numpy as np
import pytest
import torch

from unimp.analysis.explain import Explanation, explain
from unimp.analysis.rollout import roll_out, weigh_by_attention, weigh_evenly
from unimp.config.recipe import load_recipe
from unimp.graph.graph import Graph
from unimp.inference.incremental.logits import IncrementalLogits
from unimp.model.registry import build_model
from unimp.runs.preparation import task_of
from unimp.runs.run import Run
from unimp.tasks.labels import Split
from unimp.tasks.task import Task

SMALL = ["task.scale=0.02", "model.width=4", "train.device=cpu"]


def run_of(*settings: str, **options: Any) -> Run:
    """A run with random weights."""
    recipe = load_recipe("synthetic", [*SMALL, *settings])
    task = options.get("task") or task_of(recipe, 0)
    torch.manual_seed(0)
    return Run(recipe, 0, task, build_model(recipe.model, task.sizes).eval(), {}, "cpu")


def explained(run: Run, node: int, **options: Any) -> Explanation:
    answers = options.pop("answers", None) or run.incremental()
    return explain(
        answers,
        run.task,
        run.observed_labels(reveal="train"),
        node,
        chances=run.probabilities_of,
        takes_labels=run.takes_labels,
        **options,
    )


def probability(run: Run, node: int, target: int, *, hidden: int = -1, without: Any = ()) -> float:
    """Predict everything on the remaining graph and labels."""
    observed, graph = run.observed_labels(reveal="train"), run.task.graph
    if hidden >= 0:
        observed[hidden] = -1
    if len(without):
        source, target_of = torch.tensor(without).t()
        graph = graph.without_edges(source, target_of)
    changed = Run(run.recipe, 0, run.task.with_graph(graph), run.model, {}, "cpu")
    return float(run.probabilities_of(changed.outputs(observed)[[node]])[0, target])


@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["model.layers=2"],
        ["model.name=gat"],
        ["model.name=gcn"],
        ["model.inputs=X,A"],
        ["model.name=appnp", "model.propagation_steps=2"],
        ["model.name=label-propagation", "model.steps=3"],
        ["smooth.form=correct-and-smooth", "smooth.steps=3"],
    ],
    ids=lambda settings: " ".join(settings) or "unimp",
)
def test_effects_equal_a_full_prediction_without_the_label_or_edge(settings: list[str]) -> None:
    run = run_of(*settings)
    found = explained(run, 3, exact=4, top=6)
    assert found.probability == pytest.approx(probability(run, 3, found.target), abs=1e-5)
    assert found.exact_edges == 4
    for edge in found.edges[:4]:
        ways = [(edge.source, edge.target), (edge.target, edge.source)]
        expected = probability(run, 3, found.target, without=ways)
        assert edge.without == pytest.approx(expected, abs=1e-5)
    if not run.takes_labels:
        assert found.labels == []
        assert found.without_labels is None
        return
    assert found.exact_labels == 4
    for label in found.labels[:4]:
        expected = probability(run, 3, found.target, hidden=label.node)
        assert label.without == pytest.approx(expected, abs=1e-5)
        assert label.label == int(run.task.labels[label.node])
        assert label.node in run.task.split.train
    bare = run.probabilities_of(run.outputs(torch.full_like(run.task.labels, -1))[[3]])[
        0, found.target
    ]
    assert found.without_labels == pytest.approx(float(bare), abs=1e-5)


def test_without_edges_a_node_depends_only_on_itself() -> None:
    run = run_of()
    alone = run.task.graph.without_edges(*run.task.graph.edge_index)
    changed = Run(run.recipe, 0, run.task.with_graph(alone), run.model, {}, "cpu")
    for node in (0, 3, int(run.task.graph.in_degree.argmax())):
        found = explained(run, node, exact=0)
        expected = changed.probabilities_of(
            changed.logits(run.observed_labels(reveal="train"))[[node]]
        )
        assert found.without_edges == pytest.approx(float(expected[0, found.target]), abs=1e-5)


def test_the_states_around_one_node_give_the_same_explanation() -> None:
    run = run_of()
    whole = explained(run, 7)
    around = explained(run, 7, answers=run.incremental(around=torch.tensor([7])))
    assert around.probability == pytest.approx(whole.probability, abs=1e-5)
    assert around.without_labels == pytest.approx(whole.without_labels, abs=1e-5)
    assert {one.node for one in around.labels} == {one.node for one in whole.labels}
    assert around.known_labels == whole.known_labels


def test_the_strongest_effects_come_first_and_those_not_computed_last() -> None:
    run = run_of()
    found = explained(run, 3, exact=5, top=12)
    sizes = [abs(one.effect) for one in found.labels if one.effect is not None]
    assert len(sizes) == 5
    assert sizes == sorted(sizes, reverse=True)
    assert [one.without is None for one in found.labels] == [False] * 5 + [True] * 7
    # Those computed are those with the largest shares.
    least = min(one.share for one in found.labels if one.without is not None)
    assert all(one.share <= least for one in found.labels if one.without is None)


def test_a_small_budget_computes_fewer_effects() -> None:
    run = run_of()
    assert explained(run, 3, budget=0).exact_labels == 0
    some = explained(run, 3, budget=3000)
    assert some.exact_labels < explained(run, 3).exact_labels


def test_another_class_can_be_explained() -> None:
    run = run_of()
    likeliest = explained(run, 3, exact=2)
    other = (likeliest.target + 1) % 10
    found = explained(run, 3, target=other, exact=2)
    assert found.target == other
    assert found.probability == pytest.approx(probability(run, 3, other), abs=1e-5)
    assert found.classes == likeliest.classes


def test_attention_of_a_layer_belongs_to_the_node() -> None:
    run = run_of()
    found = explained(run, 3, top=200)
    assert len(found.attention) == 3
    begin, end = run.task.graph.indptr[3:5].tolist()
    neighbors = set(run.task.graph.source[begin:end].tolist())
    for layer in found.attention:
        assert {n for n, _ in layer} <= neighbors
        assert sum(weight for _, weight in layer) == pytest.approx(1.0, abs=1e-4)


def test_shares_of_a_rollout_sum_to_one() -> None:
    run = run_of()
    incremental = run.incremental()
    assert isinstance(incremental, IncrementalLogits)
    weigh = weigh_by_attention(incremental)
    assert weigh is not None
    rollout = roll_out(incremental.graph, 3, 3, weigh, beam=10_000)
    assert rollout.followed == pytest.approx(1.0, abs=1e-4)
    assert (np.diff(rollout.share) <= 0).all()
    assert 0 < roll_out(incremental.graph, 3, 3, weigh, beam=3).followed < 1


def test_a_uniform_walk_gives_every_in_edge_the_same_share() -> None:
    # 1 and 2 → 0, 3 → 1: a node keeps half of its share and splits the rest evenly.
    graph = Graph.from_edges(torch.tensor([[1, 2, 3], [0, 0, 1]]))
    rollout = roll_out(graph, 0, 2, weigh_evenly)
    share = dict(zip(rollout.nodes.tolist(), rollout.share.tolist(), strict=True))
    # Node 2 has no in-edges and keeps everything.
    assert share == pytest.approx({0: 0.25, 1: 0.125 + 0.125, 2: 0.125 + 0.25, 3: 0.125})
    assert dict(zip(rollout.nodes.tolist(), rollout.hops.tolist(), strict=True))[3] == 2


def test_names_are_those_of_the_task() -> None:
    nodes = torch.arange(8)
    edges = torch.stack((nodes, (nodes + 1) % 8))
    generator = torch.Generator().manual_seed(0)
    graph = Graph.from_edges(edges, x=torch.randn(8, 3, generator=generator)).symmetrize()
    task = Task(
        "ring",
        graph,
        nodes % 2,
        Split(nodes[:4], nodes[4:6], nodes[6:]),
        "accuracy",
        2,
        class_names=("even", "odd"),
        node_names=tuple("abcdefgh"),
    )
    run = run_of(task=task)
    named = explained(run, 6).to_dict()
    assert named["node"] == "g"
    assert named["class"] in ("even", "odd")
    assert {one["label"] for one in named["labels"]} <= {"even", "odd"}
    assert {one["node"] for one in named["labels"]} <= set("abcd")
    shown = {one["node"] for one in named["labels"]}
    assert shown <= {end for one in named["links"] for end in (one["source"], one["target"])}


def test_binary_tasks_are_explained_one_at_a_time() -> None:
    recipe = load_recipe("synthetic-proteins", ["task.scale=0.001", "model.width=4"])
    task = task_of(recipe, 0)
    torch.manual_seed(0)
    run = Run(recipe, 0, task, build_model(recipe.model, task.sizes).eval(), {}, "cpu")
    found = explained(run, 2, target=5, exact=2)
    everything = run.probabilities_of(run.logits(run.observed_labels(reveal="train")))[2]
    assert found.probability == pytest.approx(float(everything[5]), abs=1e-5)
    assert found.classes[0][1] == pytest.approx(float(everything.max()), abs=1e-5)
    held = torch.nonzero(task.labels[found.labels[0].node] == 1).squeeze(1).tolist()
    assert found.labels[0].label == held


def test_an_explanation_shows_itself_and_its_tables() -> None:
    run = run_of()
    found = explained(run, 3, exact=4, top=6)
    named = found.to_dict()
    assert found.labels_table.to_pylist() == named["labels"]
    assert found.edges_table.to_pylist() == named["edges"]
    for text in (repr(found), found._repr_html_()):
        assert str(named["class"]) in text
        assert f"{found.probability:.1%}" in text
    assert found._repr_html_().count("<table>") == 2
    alone = explained(run_of("model.inputs=X,A"), 3, exact=2)
    assert len(alone.labels_table) == 0
    assert alone._repr_html_().count("<table>") == 1
