"""Small runs for the tests of the service."""

from pathlib import Path

import numpy as np

import unimp
from unimp.runs.run import Run

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
