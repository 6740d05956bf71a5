"""Small runs for the tests of the service."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import unimp
from unimp.analysis.predictions import keep_observed
from unimp.runs.run import Run
from unimp.serving.events import Label, NewEdge, NewNode, RemovedEdge, Retraction, Undo, Write
from unimp.serving.reader import Reader
from unimp.serving.state import UNDOABLE

SETTINGS = {
    "train.epochs": 3,
    "model.width": 8,
    "model.layers": 2,
    "train.device": "cpu",
    "ensemble.portfolio": "none",
}
COLORS = ("red", "green", "blue")


def write_tables(folder: Path, nodes: int = 60, edges: int = 150) -> tuple[Path, Path]:
    """A table of nodes, of which half have a label, and a table of edges."""
    draw = np.random.default_rng(0)
    lines = ["id,size,kind,label"]
    for n in range(nodes):
        label = COLORS[n % 3] if n % 2 else ""
        lines.append(f"n{n},{draw.normal():.3f},{'ab'[n % 2]},{label}")
    (folder / "nodes.csv").write_text("\n".join(lines) + "\n")
    pairs = {tuple(sorted(p)) for p in draw.integers(0, nodes, (edges, 2)).tolist() if p[0] != p[1]}
    lines = ["source,target,weight"] + [f"n{a},n{b},{(a + b) % 7}" for a, b in sorted(pairs)]
    (folder / "edges.csv").write_text("\n".join(lines) + "\n")
    return folder / "nodes.csv", folder / "edges.csv"


def table_run(folder: Path, **settings: object) -> Run:
    """A run on two tables, stored in `folder`/run."""
    nodes, edges = write_tables(folder)
    task = unimp.task_from_tables(
        nodes,
        edges,
        label="label",
        features={"size": "numeric", "kind": "categorical"},
        edge_features={"weight": "numeric"},
    )
    return unimp.run(task, settings={**SETTINGS, **settings}, out=folder / "run", progress=False)


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
