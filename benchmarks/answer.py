"""Time to a good answer: seconds until a model is within half a point of its final score.

    python benchmarks/answer.py                      CPU: debian, computers, arxiv-guesses, physics
    python benchmarks/answer.py --device cuda        GPU, the same tasks
    python benchmarks/answer.py --tasks debian --minutes 2

Three contenders train on the same task and device, one after the other, each in a process of its
own: UniMP with the recipe of the task, and a script that a user of PyG would write with its GCNConv
and with its TransformerConv. These scripts train on the whole graph and score every epoch, as PyG's
examples do. Their settings are constants of this file; nothing is searched for. A task is read
before the clock starts. The clock includes building the model, training and scoring.

A run is long: all epochs of the recipe, or 300 epochs of a script, but at most `--minutes`. Its
final score is the best validation score. A moment is good if the validation score is at most half a
point lower. Each row also has the test score of the model that was best by then. For PyG's
rows, the file also contains when UniMP reached the same validation score, which is the fair
comparison of two models with different final scores. Writes results/answer.json.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from measure import FOLDER, place
from unimp.config.recipe import load_recipe
from unimp.data.files import write_atomically
from unimp.graph.features import SparseFeatures
from unimp.ops.allocator import keep_freed_memory
from unimp.runs import fitting
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
CONTENDERS = ("unimp", *SCRIPTS)
Curve = list[tuple[float, float, float]]
"""Seconds, validation score and test score of every scored epoch."""


def our_curve(recipe_name: str, task: Task, device: str, epochs: int, minutes: float) -> Curve:
    """Train the recipe as `unimp train` does, on a task that is already loaded."""
    settings = {
        name: value
        for name, value in load_recipe(recipe_name).settings().items()
        if name.partition(".")[0] in SECTIONS
    }
    settings |= {"train.device": device, "train.time_limit": 60 * minutes}
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

    fitting.fit = timed_fit  # type: ignore[assignment]
    began = time.perf_counter()
    run(task, settings=settings)
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


def first_at(curve: Curve, least: float) -> tuple[float, float] | None:
    """The time of the first validation score of at least `least`, and the test score then."""
    return next(((seconds, test) for seconds, val, test in curve if val >= least), None)


def summary(curve: Curve) -> dict[str, float]:
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


def compared(curves: dict[str, Curve]) -> dict[str, dict[str, float]]:
    """Summaries of all contenders; for those of PyG, also when UniMP was as good."""
    rows = {name: summary(curve) for name, curve in curves.items()}
    for name, row in rows.items():
        if name != "unimp" and "unimp" in curves:
            ours = first_at(curves["unimp"], row["val"] - NEAR)
            row["unimp_seconds"] = math.nan if ours is None else ours[0]
            row["speedup"] = row["seconds_to_good"] / row["unimp_seconds"]
    return rows


def one(contender: str, task_name: str, device: str, epochs: int, minutes: float) -> Curve:
    """Train one contender in this process."""
    keep_freed_memory()
    recipe = load_recipe(TASKS[task_name])
    task = task_of(recipe, 0)
    if device == "cuda":
        torch.ones(1, device=device).sum().item()  # starting CUDA is not part of training
    if contender == "unimp":
        return our_curve(TASKS[task_name], task, device, epochs, minutes)
    return pyg_curve(contender, task, device, epochs, minutes)


def separately(contender: str, task: str, options: argparse.Namespace) -> Curve:
    """Train one contender in a process of its own; an empty curve if it does not fit."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "curve.json"
        words = [sys.executable, __file__, "--one", contender, task, str(path)]
        words += ["--device", options.device, "--epochs", str(options.epochs)]
        words += ["--minutes", str(options.minutes)]
        environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
        subprocess.run(words, env=environment, check=False)
        if not path.exists():
            return []
        return [tuple(point) for point in json.loads(path.read_text("utf-8"))]  # type: ignore[misc]


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
        curve = one(contender, task, options.device, options.epochs, options.minutes)
        Path(path).write_text(json.dumps(curve), encoding="utf-8")
        return
    path = options.out / "answer.json"
    found = json.loads(path.read_text("utf-8")) if path.exists() else {}
    for task in options.tasks.split(","):
        curves = {
            name: curve
            for name in options.contenders.split(",")
            if (curve := separately(name, task, options))
        }
        rows = compared(curves)
        for name, row in rows.items():
            numbers = {key: float(f"{value:.5g}") for key, value in row.items()}
            print(f"{options.device} {task} {name}: {json.dumps(numbers)}", flush=True)
            points = [[float(f"{value:.5g}") for value in point] for point in curves[name]]
            key = f"{options.device}-{task}-{name}"
            stored = {k: None if math.isnan(v) else v for k, v in numbers.items()}
            found[key] = {
                "task": task,
                "device": options.device,
                "contender": name,
                **stored,
                "curve": points,
            } | place()
        write_atomically(path, (json.dumps(found) + "\n").encode())


if __name__ == "__main__":
    main()
