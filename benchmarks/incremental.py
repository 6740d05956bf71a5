"""Time answers that follow changes: pulls of asked-for nodes, and pushes of all rows.

    python benchmarks/incremental.py                       → results/incremental.json
    python benchmarks/incremental.py --tasks debian        one task alone
    python benchmarks/incremental.py --scale 0.01 --repeats 5 --out FOLDER    a short check
    UNIMP_DATA=… python benchmarks/incremental.py --tasks arxiv-labels        the true graph

Tasks are `debian` and a synthetic graph of the size and degree distribution of ogbn-arxiv. Models
have initial weights, because time does not depend on them: those of the recipes `debian` and
`arxiv-labels`, and three layers of two heads of 128 for the others. A pull is the exact logits of 1
or 50 random nodes while 1 to 10 random labels are pending. A push computes all rows after one
label, after an edge or a node is added, and after 1,000 labels. Everything is measured with and
without stored projections; the memory of the engine and of the projections is measured too.
`benchmarks/service.py latency` measures the same through the whole service.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from measure import FOLDER, Figures
from unimp.config.recipe import Recipe, load_recipe
from unimp.data.catalog import load_task
from unimp.data.memory import resident_memory
from unimp.graph.features import SparseFeatures
from unimp.inference.incremental.changes import Change, ChangeableLogits
from unimp.inference.incremental.logits import IncrementalLogits
from unimp.model.registry import build_model
from unimp.ops.allocator import keep_freed_memory
from unimp.runs.preparation import task_of
from unimp.runs.run import Run
from unimp.tasks.task import Task

TASKS = ("debian", "synthetic-arxiv")
PENDING, PAGE, MANY = 10, 50, 1000


def run_of(name: str, scale: float) -> Run:
    """A run with initial weights on a task."""
    if name.startswith("synthetic"):
        recipe, task = Recipe(name=name), load_task(name, scale=scale)
        recipe = recipe.with_settings([f"task.name={name}"])
    else:
        recipe = load_recipe(name)
        task = task_of(recipe, 0)
    torch.manual_seed(0)
    return Run(recipe, 0, task, build_model(recipe.model, task.sizes).eval(), {}, "cpu")


class Events:
    """Random changes of a task, drawn from one seed."""

    def __init__(self, task: Task, seed: int = 0) -> None:
        self.task, self.num_nodes = task, task.graph.num_nodes
        self.generator = torch.Generator().manual_seed(seed)

    def nodes(self, count: int) -> torch.Tensor:
        found = torch.randint(self.num_nodes, (2 * count,), generator=self.generator).unique()
        order = torch.randperm(len(found), generator=self.generator)
        return found[order[:count]]

    def labels(self, count: int) -> Change:
        nodes = self.nodes(count)
        shape = (len(nodes), *self.task.labels.shape[1:])
        classes = 2 if self.task.is_multilabel else self.task.num_classes
        return Change(nodes, torch.randint(classes, shape, generator=self.generator))

    def edge(self) -> Change:
        source, target = self.nodes(2).tolist()
        width = self.task.graph.num_edge_features
        attr = torch.rand(2, width, generator=self.generator) if width else None
        return Change.add_edges([(source, target), (target, source)], attr)

    def node(self) -> Change:
        """A node with an edge to and from another one."""
        x, graph = self.task.graph.x, self.task.graph
        rows: torch.Tensor | SparseFeatures | int = 1 if x is None else x[self.nodes(1)]
        (other,), new = self.nodes(1).tolist(), self.num_nodes
        width = graph.num_edge_features
        attr = torch.rand(2, width, generator=self.generator) if width else None
        added = Change.add_nodes(new, rows)
        joined = Change.add_edges([(new, other), (other, new)], attr)
        self.num_nodes += 1
        return Change.joined([added, joined])


def times(call: Callable[[], object], repeats: int) -> list[float]:
    """The seconds of each call, after one that warms up."""
    found = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return found[1:]


def report(
    figures: Figures, name: str, found: list[float], what: str, aims: tuple[str, str]
) -> None:
    for share, aim in zip((50, 99), aims, strict=True):
        value = float(np.quantile(found, share / 100))
        figures.add(f"{name}-p{share}-s", value, f"s, {what}; {len(found)} times", aim)


def measure(name: str, scale: float, repeats: int, figures: Figures) -> None:
    run = run_of(name, scale)
    graph = run.task.graph
    of = f"{name}, {graph.num_nodes:,} nodes, {graph.num_edges:,} in-edges"
    arxiv = "arxiv" in name
    observed = run.observed_labels(reveal="train")
    for held in (False, True):
        before, began = resident_memory(), time.perf_counter()
        engine: ChangeableLogits = run.live(observed, hold_projections=held)
        kind = f"{name}-{'held' if held else 'computed'}"
        projections = "stored projections" if held else "computed projections"
        figures.add(f"{kind}-start-s", time.perf_counter() - began, f"s to start, {of}")
        if held:
            assert isinstance(engine, IncrementalLogits)
            size = engine.projection_bytes / 2**20
            figures.add(f"{kind}-projections-mib", size, f"MiB of stored projections, {of}")
        else:  # memory that is freed later stays with the process, so only the first one shows it
            grown = (resident_memory() - before) / 2**20
            figures.add(f"{kind}-mib", grown, f"MiB that the engine adds, without them, {of}")
        events = Events(run.task)

        def pull(count: int, engine: ChangeableLogits = engine, events: Events = events) -> None:
            pending = [events.labels(1) for _ in range(1 + int(events.nodes(1)) % PENDING)]
            engine.after([Change.joined(pending)], [events.nodes(count)])

        for count, aims in ((1, ("", "≤ 0.05")), (PAGE, ("", "≤ 0.1"))):
            what = f"pull of {count} nodes with 1 to {PENDING} pending labels, {projections}, {of}"
            found = times(lambda count=count: pull(count), repeats)
            report(figures, f"{kind}-pull-{count}", found, what, aims if arxiv else ("", ""))
        pushes: dict[str, tuple[Callable[[], Change], int]] = {
            "label": (lambda events=events: events.labels(1), repeats),
            "edge": (events.edge, max(1, repeats // 10)),
            "node": (events.node, max(1, repeats // 10)),
            "1000-labels": (lambda events=events: events.labels(MANY), max(1, repeats // 40)),
        }
        for change, (draw, times_measured) in pushes.items():
            aims = ("", "")
            if arxiv and change == "label":
                aims = ("≤ 0.2", "≤ 0.4" if held else "≤ 0.8")
            elif arxiv and change == "1000-labels":
                aims = ("≤ 5", "≤ 5")
            moved: list[int] = []

            def push(
                draw: Callable[[], Change] = draw,
                engine: ChangeableLogits = engine,
                moved: list[int] = moved,
            ) -> None:
                moved.append(int((engine.commit(draw()).sizes(run.probabilities_of) > 1e-3).sum()))

            found = times(push, times_measured)
            what = f"push of all rows after {change}, {projections}, {of}"
            report(figures, f"{kind}-push-{change}", found, what, aims)
            figures.add(
                f"{kind}-push-{change}-moved",
                float(np.median(moved)),
                f"predictions that move by more than 0.001, median, after {change}, {of}",
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    parser.add_argument("--scale", type=float, default=1.0, help="Size of synthetic graphs.")
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(arguments.threads)
    for name in arguments.tasks:
        measure(name, arguments.scale, arguments.repeats, Figures("incremental", arguments.out))


if __name__ == "__main__":
    main()
