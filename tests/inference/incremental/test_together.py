"""Labels that are hidden in many ways at once: each answer is that of hiding them alone."""

import pytest
import torch
from test_logits import CLASSES, graph_of, model_of
from torch import Tensor

from unimp.errors import UnimpError
from unimp.inference.incremental import together
from unimp.inference.incremental.changes import Change
from unimp.inference.incremental.logits import IncrementalLogits
from unimp.ops import native

pytestmark = pytest.mark.skipif(not native.available(), reason="needs the native core")

WITH_PROJECTIONS = ["unimp", "without edge features", "linear head", "labels alone", "one layer"]


def engine_of(name: str, seed: int, *, multilabel: bool = False) -> IncrementalLogits:
    model, graph = model_of(name, multilabel=multilabel), graph_of(seed)
    generator = torch.Generator().manual_seed(seed)
    shape = (graph.num_nodes, CLASSES) if multilabel else (graph.num_nodes,)
    observed = torch.randint(-1, 2 if multilabel else CLASSES, shape, generator=generator)
    engine = IncrementalLogits(model, model.prepare(graph), observed, hold_projections=True)
    assert engine.holds_projections
    return engine


def one_by_one(engine: IncrementalLogits, units: list[Tensor]) -> Tensor:
    return torch.cat([engine.after([Change.hide(unit)], [unit])[0] for unit in units])


@pytest.mark.parametrize("multilabel", [False, True])
@pytest.mark.parametrize("name", [*WITH_PROJECTIONS, "features alone"])
def test_each_answer_is_that_of_hiding_the_labels_alone(name: str, multilabel: bool) -> None:
    for seed in range(3):
        engine = engine_of(name, seed, multilabel=multilabel)
        before = engine.logits
        units = [*torch.split(torch.arange(25), 1), *torch.split(torch.randperm(25), [4, 6, 15])]
        changes = [Change.hide(unit) for unit in units]
        found = together.hidden_together(engine._stored, changes, units)
        assert found is not None
        assert torch.allclose(torch.cat(found), one_by_one(engine, units), rtol=0, atol=1e-12)
        assert torch.equal(engine.logits, before)
        if name != "features alone":
            assert not torch.allclose(torch.cat(found[:25]), before)


def test_a_group_that_is_too_large_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, units = engine_of("unimp", 1), list(torch.split(torch.arange(25), 1))
    expected, changes = one_by_one(engine, units), [Change.hide(unit) for unit in units]
    monkeypatch.setattr(together, "PLACES", 25 * 7)
    monkeypatch.setattr(together, "EDGES_PER_PASS", 80)
    assert torch.allclose(torch.cat(engine.after(changes, units)), expected, rtol=0, atol=1e-12)
    monkeypatch.setattr(together, "EDGES_PER_PASS", 3)  # some labels do not fit even alone
    assert together.hidden_together(engine._stored, changes, units) is None
    assert torch.allclose(torch.cat(engine.after(changes, units)), expected, rtol=0, atol=1e-12)


def test_the_hidden_label_does_not_matter() -> None:
    engine, unit = engine_of("unimp", 2), torch.tensor([3])
    others = [torch.tensor([4]), torch.tensor([5])]
    answers = []
    for label in range(CLASSES):
        engine.commit(Change(nodes=unit, labels=torch.tensor([label])))
        changes = [Change.hide(nodes) for nodes in (unit, *others)]
        answers.append(engine.after(changes, [unit, *others])[0])
    assert torch.equal(answers[0], answers[1])
    assert torch.equal(answers[0], answers[2])


def test_nodes_that_do_not_exist_are_refused() -> None:
    engine, nodes = engine_of("unimp", 0), [torch.tensor([1]), torch.tensor([25])]
    with pytest.raises(UnimpError, match="25"):
        engine.after([Change.hide(node) for node in nodes], nodes)


def test_a_node_that_occurs_twice_in_a_change_is_refused_as_in_a_single_change() -> None:
    engine, other = engine_of("unimp", 0), torch.tensor([3])
    twice = Change.hide(torch.tensor([7, 7]))
    for changes in ([twice], [Change.hide(other), twice]):
        with pytest.raises(UnimpError, match="7"):
            engine.after(changes, [other] * len(changes))
    both = [Change.hide(other), Change.hide(other)]  # the same node in two changes is valid
    assert len(engine.after(both, [other, other])) == 2
