"""Time to a good answer: seconds until a model is within half a point of its final score.

    python benchmarks/answer.py                      CPU: debian, computers, arxiv-guesses, physics
    python benchmarks/answer.py --device cuda        GPU, the same tasks
    python benchmarks/answer.py --tasks debian --minutes 2

Four contenders train on the same task and device, one after the other, each in a separate process:
UniMP with the recipe of the task; the preset `good`, which is an ensemble; and two scripts that a
user of PyG would write, one with GCNConv and one with TransformerConv. The scripts train on the
whole graph and score every epoch, as PyG's examples do. UniMP also scores every epoch. The settings
of the scripts are constants in this file and were not tuned.

Before the clock starts, a process reads the task and trains for two epochs, which load libraries
and compile kernels. The preset uses the recipe of the task for these epochs. Their time is stored
as `seconds_of_first_epochs`. The clock includes building the model, training and scoring.

A run is long: all epochs of the recipe, or 300 epochs of a script, but at most `--minutes`. Its
final score is the best validation score. A moment is good if the validation score is at most half a
point lower. Each row also has the test score of the model that was best by then. For PyG's
rows, the file also contains when UniMP and the preset reached the same validation score, which is
the fair comparison of models with different final scores. Writes results/answer.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from measure import FOLDER, place
from unimp.config.recipe import load_recipe
from unimp.data.files import write_atomically
from unimp.ensemble.selection import mixed
from unimp.graph.features import SparseFeatures
from unimp.ops.allocator import keep_freed_memory
from unimp.runs import fitting, members
from unimp.runs.experiment import run
from unimp.runs.preparation import task_of
from unimp.tasks.metrics import score
from unimp.tasks.task import Task
from unimp.training.loop import Epoch

TASKS = {
    "debian": "debian",
    "computers": "amazon-computers",
    "arxiv-guesses": "arxiv-guesses",
    "physics": "coauthor-physics",
}
"""The recipe of each task."""
SECTIONS = ("model", "mask", "train", "batch", "inference")
NEAR = 0.005
"""A good answer is at most half a point below the final one."""


class Script(NamedTuple):
    """The settings of a script that a user of PyG would write."""

    layers: int
    width: int
    heads: int
    lr: float
    weight_decay: float = 5e-4
    dropout: float = 0.5
    epochs: int = 300


SCRIPTS = {
    "pyg-gcn": Script(layers=3, width=256, heads=1, lr=1e-2),
    "pyg-transformer": Script(layers=2, width=64, heads=2, lr=3e-3),
}
OURS = ("unimp", "good")
CONTENDERS = (*OURS, *SCRIPTS)
Curve = list[tuple[float, float, float | None]]
"""Seconds, validation score and, if it is known, test score of every moment that was scored."""


def our_curve(recipe_name: str, task: Task, device: str, epochs: int, minutes: float) -> Curve:
    """Train the recipe as `unimp train` does, on a task that is already loaded."""
    settings = {
        name: value
        for name, value in load_recipe(recipe_name).settings().items()
        if name.partition(".")[0] in SECTIONS
    }
    settings |= {"train.device": device, "train.time_limit": 60 * minutes}
    settings |= {"train.eval_from": 1, "train.eval_every": 1}
    if epochs:
        settings["train.epochs"] = epochs
    curve: Curve = []
    train = fitting.fit

    def timed_fit(*words: Any, on_epoch: Callable[[Epoch], None], **options: Any) -> Any:
        def timed(epoch: Epoch) -> None:
            if epoch.scores is not None:
                scores = epoch.scores
                curve.append((time.perf_counter() - began, scores["val"], scores["test"]))
            on_epoch(epoch)

        return train(*words, on_epoch=timed, **options)

    began = time.perf_counter()
    with patch.object(fitting, "fit", timed_fit):
        run(task, settings=settings)
    return curve


def preset_curve(task: Task, device: str, minutes: float) -> Curve:
    """Train the preset `good` as `unimp train` does; score the ensemble after each member."""
    curve: Curve = []
    describe = members.progress_line

    def timed(newest: Any, trained: Any, labels: Tensor, metric: Any) -> str:
        weights = members.weights_of(trained, labels)
        val = score(metric, mixed([one.chances for one in trained], weights), labels)
        curve.append((time.perf_counter() - began, val, None))
        return describe(newest, trained, labels, metric)

    settings = {
        "train.device": device,
        "train.time_limit": 60 * minutes,
        "ensemble.refit": "never",
    }
    began = time.perf_counter()
    with patch.object(members, "progress_line", timed):
        scores = run(task, preset="good", settings=settings).metrics["scores"]["train"]
    curve.append((time.perf_counter() - began, scores["val"], scores["test"]))
    return curve


class PyGModel(nn.Module):
    """Layers of PyG with ReLU and dropout between them."""

    def __init__(self, name: str, script: Script, features: int, classes: int) -> None:
        from torch_geometric.nn import GCNConv, TransformerConv

        super().__init__()
        self.dropout, self.layers = script.dropout, nn.ModuleList()
        width = features
        for index in range(script.layers):
            last = index == script.layers - 1
            out = classes if last else script.width
            if name == "pyg-gcn":
                # The normalized edge weights are computed once, as its documentation recommends.
                self.layers.append(GCNConv(width, out, cached=True))
                width = out
            else:
                heads = 1 if last else script.heads
                self.layers.append(TransformerConv(width, out, heads=heads))
                width = heads * out

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        for index, layer in enumerate(self.layers):
            if index:
                x = F.dropout(x.relu(), self.dropout, self.training)
            x = layer(x, edges)
        return x


def pyg_curve(name: str, task: Task, device: str, epochs: int, minutes: float) -> Curve:
    """Train as the examples of PyG do: the whole graph in every step, scored in every epoch."""
    script, graph = SCRIPTS[name], task.graph
    x = graph.x.to_dense() if isinstance(graph.x, SparseFeatures) else graph.x
    assert x is not None
    edges = graph.edge_index.long()
    torch.manual_seed(0)
    began = time.perf_counter()
    x, edges, labels = x.to(device), edges.to(device), task.labels.to(device)
    train, val, test = (
        nodes.to(device) for nodes in (task.split.train, task.split.val, task.split.test)
    )
    model = PyGModel(name, script, x.shape[1], task.num_classes).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=script.lr, weight_decay=script.weight_decay)
    curve: Curve = []
    for _ in range(epochs or script.epochs):
        model.train()
        optimizer.zero_grad()
        F.cross_entropy(model(x, edges)[train], labels[train]).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            logits = model(x, edges).cpu()
        found = (score(task.metric, logits[n.cpu()], task.labels[n.cpu()]) for n in (val, test))
        curve.append((time.perf_counter() - began, *found))
        if curve[-1][0] > 60 * minutes:
            break
    return curve


def first_at(curve: Curve, least: float) -> tuple[float, float | None] | None:
    """The time of the first validation score of at least `least`, and the test score then."""
    return next(((seconds, test) for seconds, val, test in curve if val >= least), None)


def summary(curve: Curve) -> dict[str, float | None]:
    """The final scores of a long run, and when it was first nearly as good."""
    final = max(val for _, val, _ in curve)
    good = first_at(curve, final - NEAR)
    assert good is not None
    return {
        "val": final,
        "test": next(test for _, val, test in curve if val == final),
        "seconds_to_good": good[0],
        "test_at_good": good[1],
        "seconds": curve[-1][0],
        "scored_epochs": len(curve),
    }


def compared(curves: dict[str, Curve]) -> dict[str, dict[str, float | None]]:
    """Summarize all contenders; for PyG's, also when UniMP and the preset were as good."""
    rows = {name: summary(curve) for name, curve in curves.items()}
    for name, row in rows.items():
        for own in OURS if name in SCRIPTS else ():
            found = first_at(curves[own], row["val"] - NEAR) if own in curves else None
            row[f"{own}_seconds"] = found and found[0]
            row[f"{own}_speedup"] = found and row["seconds_to_good"] / found[0]
    return rows


def one(
    contender: str, task_name: str, device: str, epochs: int, minutes: float
) -> tuple[float, Curve]:
    """Train one contender; return the seconds of its first two epochs, and its curve."""
    keep_freed_memory()
    recipe_name = TASKS[task_name]
    task = task_of(load_recipe(recipe_name), 0)
    if device == "cuda":
        torch.ones(1, device=device).sum().item()  # starting CUDA is not part of training
    began = time.perf_counter()
    if contender in SCRIPTS:
        pyg_curve(contender, task, device, 2, minutes)
    else:
        our_curve(recipe_name, task, device, 2, minutes)
    first = time.perf_counter() - began
    if contender == "unimp":
        return first, our_curve(recipe_name, task, device, epochs, minutes)
    if contender == "good":
        return first, preset_curve(task, device, minutes)
    return first, pyg_curve(contender, task, device, epochs, minutes)


def separately(
    contender: str, task: str, options: argparse.Namespace
) -> tuple[float, Curve] | None:
    """Train one contender in a process of its own; None if it does not fit into memory."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "curve.json"
        words = [sys.executable, __file__, "--one", contender, task, str(path)]
        words += ["--device", options.device, "--epochs", str(options.epochs)]
        words += ["--minutes", str(options.minutes)]
        environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
        subprocess.run(words, env=environment, check=False)
        if not path.exists():
            return None
        first, points = json.loads(path.read_text("utf-8"))
        return first, [tuple(point) for point in points]


def rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--tasks", default=",".join(TASKS), help="Comma-separated names.")
    parser.add_argument("--contenders", default=",".join(CONTENDERS))
    parser.add_argument("--minutes", type=float, default=10, help="Longest time of one run.")
    parser.add_argument("--epochs", type=int, default=0, help="For a test: number of epochs.")
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        contender, task, path = options.one
        found = one(contender, task, options.device, options.epochs, options.minutes)
        Path(path).write_text(json.dumps(found), encoding="utf-8")
        return
    path = options.out / "answer.json"
    found = json.loads(path.read_text("utf-8")) if path.exists() else {}
    for task in options.tasks.split(","):
        runs = {name: separately(name, task, options) for name in options.contenders.split(",")}
        curves = {name: done[1] for name, done in runs.items() if done}
        for name, row in compared(curves).items():
            row["seconds_of_first_epochs"] = runs[name][0]
            numbers = {key: rounded(value) for key, value in row.items()}
            print(f"{options.device} {task} {name}: {json.dumps(numbers)}", flush=True)
            found[f"{options.device}-{task}-{name}"] = {
                "task": task,
                "device": options.device,
                "contender": name,
                **numbers,
                "curve": [[rounded(value) for value in point] for point in curves[name]],
            } | place()
        write_atomically(path, (json.dumps(found) + "\n").encode())


if __name__ == "__main__":
    main()
