"""The engine's answers are those of a cold prediction, whatever happened before."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_runs import COLORS, table_run

from unimp.analysis.predictions import keep_observed
from unimp.errors import TaskError
from unimp.runs.run import Run
from unimp.serving.engine.applied import Applied
from unimp.serving.events import Label, NewEdge, NewNode, RemovedEdge, Retraction, Undo, Write
from unimp.serving.reader import Reader
from unimp.serving.state import UNDOABLE
from unimp.serving.store import Store


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return table_run(tmp_path_factory.mktemp("tables"))


def cold(run: Run, reader: Reader) -> torch.Tensor:
    """The prediction of a run that is extended and labeled by everything that is in force."""
    changes = reader.changes(0)
    nodes = {"id": [n.node for n in changes.nodes]}
    for column in ("size", "kind"):
        nodes[column] = [n.values[column] for n in changes.nodes]
    last: dict[tuple[str, ...], object] = {}
    for edge in sorted(changes.edges, key=lambda edge: edge.version):
        if edge.version:
            last[tuple(sorted((edge.node, edge.target)))] = edge
    names = list(run.task.node_names or ()) + nodes["id"]
    number = {name: n for n, name in enumerate(names)}
    task = run.task
    decided = [(number[a], number[b]) for a, b in last]
    gone = torch.tensor(decided, dtype=torch.int64).reshape(-1, 2).t()
    both = torch.cat((gone, gone.flip(0)), 1)
    old = both[:, (both < len(task.labels)).all(0)]
    task = task.with_graph(task.graph.without_edges(*old))
    there = [edge for edge in last.values() if edge.present]
    edges = {
        "source": [edge.node for edge in there],
        "target": [edge.target for edge in there],
        "weight": [edge.write.values["weight"] for edge in there],
    }
    larger = replace(run, task=task).extended(
        nodes if nodes["id"] else None, edges if there else None
    )
    observed = larger.observed_labels()
    for current in changes.labels:
        if current.version:
            classes = {name: c for c, name in enumerate(larger.task.class_names or ())}
            observed[number[current.node]] = classes.get(str(current.label), -1)
    return keep_observed(larger.probabilities_of(larger.outputs(observed)), observed)


def some_write(draw: random.Random, reader: Reader, names: list[str]) -> Write:
    kind = draw.choice(
        ["label", "label", "label", "retract", "undo", "node", "edge", "edge-removed"]
    )
    node, target = draw.sample(names, 2)
    if kind == "retract":
        return Retraction(node=node)
    if kind == "undo":
        events = [e for e in reader.events() if e.write.kind in UNDOABLE]
        taken = {e.write.undoes for e in events if isinstance(e.write, Undo)}
        left = [e for e in events if e.version not in taken]
        if left:
            return Undo(undoes=draw.choice(left).version)
    if kind == "node":
        names.append(f"new {len(names)}")
        return NewNode(node=names[-1], values={"size": draw.gauss(0, 1), "kind": draw.choice("ab")})
    if kind == "edge":
        return NewEdge(node=node, target=target, values={"weight": draw.randrange(7)})
    if kind == "edge-removed":
        return RemovedEdge(node=node, target=target)
    return Label(node=node, label=draw.choice(COLORS))


@pytest.mark.parametrize("seed", range(6))
def test_answers_equal_a_cold_prediction_after_any_events(
    seed: int, run: Run, tmp_path: Path
) -> None:
    draw = random.Random(seed)
    names = list(run.task.node_names or ())
    with Store(tmp_path) as store:
        store.people.add("admin", "admin")
        applied = Applied(run, store.reader)
        for step in range(12):
            for _ in range(draw.randrange(1, 5)):
                store.write("admin", some_write(draw, store.reader, names))
            expected = cold(run, store.reader)
            asked = draw.sample(names, 5)
            assert applied.refresh().version == store.reader.head()
            numbers, unknown = applied.numbers_of(asked)
            assert not unknown
            pulled = applied.answer(torch.tensor(numbers)).probabilities
            assert torch.allclose(pulled, expected[numbers], atol=1e-5)
            if step % 3 == 0:
                applied.apply()
                rows = applied.rows(torch.arange(len(names)), applied.live.logits, applied.observed)
                assert torch.allclose(rows.probabilities, expected, atol=1e-5)
        again = Applied(run, store.reader)  # as after a restart
        again.apply()
        applied.apply()
        assert torch.allclose(again.live.logits, applied.live.logits, atol=1e-5)


def test_values_that_the_run_cannot_encode_are_refused(run: Run, tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        additions = Applied(run, store.reader).additions
        assert additions.columns == ["size", "kind"]
        for values in ({"size": 1.0}, {"size": "x", "kind": "a"}, {"size": 1.0, "color": "red"}):
            with pytest.raises(TaskError):
                additions.features(["new"], [values])
