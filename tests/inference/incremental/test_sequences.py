"""Answers that follow random changes equal cold predictions: the short form of
proofs/incremental.py, and the parts of the interface that a service uses."""

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unimp.ensemble.model import EnsembleLogits
from unimp.errors import GraphError, UnimpError
from unimp.graph.graph import Graph
from unimp.inference.incremental import projections
from unimp.inference.incremental.changes import Change, Update
from unimp.inference.incremental.logits import IncrementalLogits
from unimp.inference.incremental.recomputation import FullRecomputation
from unimp.inference.logits import predict_logits
from unimp.model.unimp import UniMP
from unimp.tasks.task import Sizes

PROOF = runpy.run_path(str(Path(__file__).parents[3] / "proofs" / "incremental.py"))
World, subject_of = PROOF["World"], PROOF["subject_of"]


@pytest.mark.parametrize("name", PROOF["KINDS"])
@settings(max_examples=4)
@given(seed=st.integers(10_000, 10_000_000))
def test_every_row_equals_a_cold_prediction_at_any_time(name: str, seed: int) -> None:
    outcome = PROOF["followed"](name, seed, steps=12)
    assert outcome.difference <= PROOF["LIMIT"]
    assert outcome.rows


@pytest.mark.parametrize("name", ["unimp, gated", "gcn", "label propagation", "ensemble"])
@settings(max_examples=5)
@given(seed=st.integers(0, 10_000))
def test_joined_changes_have_the_result_of_one_after_the_other(name: str, seed: int) -> None:
    world = World(PROOF["KINDS"][name], seed)
    one, other = (subject_of(World(PROOF["KINDS"][name], seed)).engine for _ in range(2))
    changes = [world.step()[1] for _ in range(6)]
    one.commit(Change.joined(changes))
    for change in changes:
        other.commit(change)
    assert torch.allclose(one.logits, other.logits, atol=1e-5)


@pytest.mark.parametrize("name", ["unimp, gated", "gat", "label propagation", "ensemble"])
def test_a_prepared_update_changes_nothing_until_it_is_applied(name: str) -> None:
    world = World(PROOF["KINDS"][name], 3)
    subject = subject_of(world)
    before = subject.engine.logits
    update = subject.engine.prepare(world.step()[1])
    assert torch.equal(subject.engine.logits, before)
    update.apply()
    expected = subject.cold(world.graph, world.observed)
    assert torch.allclose(subject.engine.logits, expected, atol=1e-5)


def small_engine(**options: Any) -> tuple[UniMP, Graph, torch.Tensor, IncrementalLogits]:
    generator = torch.Generator().manual_seed(0)
    graph = Graph.from_edges(
        torch.randint(40, (2, 120), generator=generator),
        x=torch.randn(40, 5, generator=generator),
        edge_attr=torch.randn(120, 2, generator=generator),
    )
    torch.manual_seed(0)
    model = UniMP(Sizes(5, 2, 3, multilabel=False), width=8, gate="all").eval()
    observed = torch.randint(-1, 3, (40,), generator=generator)
    return model, graph, observed, IncrementalLogits(model, graph, observed, **options)


def test_an_update_names_exactly_the_rows_that_differ_and_by_how_much() -> None:
    _, graph, _, engine = small_engine()
    before = engine.logits
    new = Change.add_nodes(40, torch.ones(1, 5))
    edge = Change.add_edges([(40, 3)], torch.ones(1, 2))
    update = engine.commit(Change.joined([new, edge, Change(torch.tensor([7]), torch.tensor([1]))]))
    after = engine.logits
    moved = torch.ones(41, dtype=torch.bool)
    moved[:40] = (after[:40] != before).any(1)
    assert update.nodes.tolist() == torch.nonzero(moved).squeeze(1).tolist()
    assert torch.equal(update.after, after[update.nodes])
    sizes = update.sizes(lambda logits: logits.softmax(1))
    assert sizes[-1] == torch.inf
    old = update.nodes[:-1]
    chances = (after[old].softmax(1) - before[old].softmax(1)).abs().amax(1)
    assert torch.allclose(sizes[:-1], chances)
    assert len(engine.commit(Change()).nodes) == 0
    assert graph.num_nodes == 40  # the caller's graph is a value


def test_stored_projections_give_the_same_answers_and_are_restored_after_a_pull() -> None:
    model, graph, observed, computed = small_engine()
    held = IncrementalLogits(model, graph, observed, hold_projections=True)
    assert held.holds_projections
    assert not computed.holds_projections
    change, everyone = Change(torch.tensor([1, 2]), torch.tensor([0, 2])), torch.arange(40)
    for _ in range(2):
        (one,), (other,) = (e.after([change], [everyone]) for e in (held, computed))
        assert torch.allclose(one, other, atol=1e-6)
        assert not torch.allclose(one, held.logits, atol=1e-3)
    two = [Change(), Change.hide([0])]
    for one, other in zip(*(e.after(two, [everyone] * 2) for e in (held, computed)), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_projections_are_stored_automatically_only_if_memory_allows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, graph, observed, _ = small_engine()
    for free, expected in ((10**9, True), (10**3, False)):
        monkeypatch.setattr(projections, "available_memory", lambda device, free=free: free)
        engine = IncrementalLogits(model, graph, observed, hold_projections=None)
        assert engine.holds_projections is expected


def test_a_failed_change_leaves_every_member_of_an_ensemble_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(PROOF["KINDS"]["ensemble"], 5)
    engine = subject_of(world).engine
    assert isinstance(engine, EnsembleLogits)
    before = engine.logits

    def fail(change: Change, between: object = None) -> Update:
        raise MemoryError

    last = engine._members[-1]
    with monkeypatch.context() as patch:
        patch.setattr(last, "prepare", fail)
        with pytest.raises(MemoryError):
            engine.commit(Change.hide(torch.arange(world.num_nodes)))
    assert torch.equal(engine.logits, before)


def test_adding_an_edge_that_exists_computes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, graph, observed, _ = small_engine()
    graph = graph.deduplicate()
    engine = IncrementalLogits(model, graph, observed)
    pair, attr = graph.edge_index[:, :1].long(), graph.edge_attr_of(torch.tensor([0]))
    monkeypatch.setattr(model, "propagate", None)
    assert len(engine.commit(Change(edges=pair, edge_attr=attr)).nodes) == 0


X = torch.zeros(1, 5)


@pytest.mark.parametrize(
    "change",
    [
        Change(new_nodes=-1),
        Change(new_nodes=1),  # without features
        Change(new_nodes=2, featured=torch.tensor([40]), x=X),
        Change(featured=torch.tensor([40]), x=X),
        Change(featured=torch.tensor([1, 1]), x=X.repeat(2, 1)),
        Change(featured=torch.tensor([1]), x=torch.zeros(1, 4)),
        Change(featured=torch.tensor([1]), x=torch.full((1, 5), torch.nan)),
        Change(x=X),
        Change.add_edges([(0, 40)], torch.zeros(1, 2)),
        Change.add_edges([(0, 1), (0, 1)], torch.zeros(2, 2)),
        Change.add_edges([(0, 1)]),
        Change.add_edges([(0, 1)], torch.zeros(1, 3)),
        Change.add_edges([(0, 1)], torch.full((1, 2), torch.inf)),
        Change(nodes=torch.tensor([40]), labels=torch.tensor([0])),
        Change.remove_edges([(0, 0)]),
    ],
)
def test_an_invalid_change_is_refused_and_changes_nothing(change: Change) -> None:
    model, graph, observed, engine = small_engine(hold_projections=True)
    whole = FullRecomputation(
        lambda g, o: predict_logits(model, model.prepare(g), o), graph, observed, 3
    )
    for one in (engine, whole):
        before = one.logits
        for call in (one.commit, one.prepare):
            with pytest.raises(UnimpError):
                call(change)
        with pytest.raises(UnimpError):
            one.after([change], [torch.tensor([0])])
        assert torch.equal(one.logits, before)
        assert one.graph.num_nodes == 40


def test_an_edge_and_its_reverse_are_added_and_removed_together() -> None:
    model, graph, observed, engine = small_engine()
    symmetric = graph.symmetrize()
    engine = IncrementalLogits(model, symmetric, observed)
    before, edges = engine.logits, {tuple(p) for p in symmetric.edge_index.t().tolist()}
    pair = next((a, b) for a in range(40) for b in range(a) if (a, b) not in edges)
    engine.commit(Change.add_edges([pair, (0, 0)], torch.ones(2, 2), both=True))
    larger = engine.graph
    assert {pair, pair[::-1]} <= {tuple(p) for p in larger.edge_index.t().tolist()}
    assert larger.num_edges - symmetric.num_edges in (2, 3)
    assert torch.allclose(engine.logits, predict_logits(model, larger, observed), atol=1e-5)
    engine = IncrementalLogits(model, symmetric, observed)
    engine.commit(Change.add_edges([pair], torch.ones(1, 2), both=True))
    engine.commit(Change.remove_edges([pair], both=True))
    assert torch.allclose(engine.logits, before, atol=1e-6)


def test_a_part_of_a_graph_does_not_grow() -> None:
    target = torch.tensor([3])
    _, _, _, engine = small_engine(around=target)
    for change in (
        Change.add_nodes(40, X),
        Change.add_edges([(0, 1)], torch.zeros(1, 2)),
        Change(featured=torch.tensor([3]), x=X),
    ):
        with pytest.raises(GraphError, match="around"):
            engine.after([change], [target])


def test_hidden_labels_cannot_reach_the_answers_of_an_engine() -> None:
    """Labels reach the engine only as observed ones or by a change."""
    model, graph, observed, engine = small_engine(hold_projections=True)
    engine.commit(Change(torch.tensor([5]), torch.tensor([2])))
    engine.commit(Change.hide([5]))
    hidden = observed.clone()
    hidden[5] = -1
    again = IncrementalLogits(model, graph, hidden, hold_projections=True)
    assert torch.allclose(engine.logits, again.logits, atol=1e-6)
