"""Predict house prices in California, with and without the known prices of neighbors.

Trains six models on the bundled task `california` and compares their test accuracy. Then more
labels arrive, and UniMP uses them without being trained again. Takes less than a minute on two
cores. The runs are stored in runs/demo; runs/demo/unimp/report.html shows the map.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sklearn.ensemble import HistGradientBoostingClassifier
from torch import Tensor

import unimp
from unimp.cli.train import new_folder
from unimp.ops.allocator import keep_freed_memory

# Of eighteen forms of label propagation, this one has the best validation score.
PROPAGATION = ["model.name=label-propagation", "model.clamp=labels", "model.restart=0"]
LEAVES = (15, 31)  # per tree; validation chooses one, and the number of trees
MOST_TREES = 200
DEBIAN = (
    "The other bundled graph, debian, is the hard one: only a tenth of its labels are known, and "
    "the packages of one source are known or unknown together, so labels add little there."
)


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    model: str
    sees: str
    accuracy: float
    seconds: float


class Comparison:
    """The accuracy of several models on the same nodes, whose labels none of them ever sees."""

    def __init__(self, task: unimp.Task, folder: Path, console: Console, seed: int) -> None:
        self.task, self.folder, self.console, self.seed = task, folder, console, seed
        self.rows: list[Row] = []
        # Half of the test labels arrive later as inputs; the other half scores every row.
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(task.split.test), generator=generator)
        self.arriving, self.scored = task.split.test[order].chunk(2)

    def add_run(self, model: str, sees: str, name: str, settings: Sequence[str]) -> unimp.Run:
        """Train the recipe `california` with some settings; store it in the folder `name`."""
        started = self._start(model, sees)
        run = unimp.run(
            "california",
            seed=self.seed,
            settings=settings,
            out=self.folder / name,
            report=name == "unimp",
        )
        self._add(model, sees, run.predict(reveal="train").argmax(1), started)
        return run

    def add_trees(self, sees: str, inputs: Tensor, most_trees: int) -> None:
        """Fit gradient-boosted trees; validation chooses their size and number."""
        started = self._start("boosted trees", sees)
        x, labels = inputs.numpy(), self.task.labels.numpy()
        train, val = self.task.split.train.numpy(), self.task.split.val.numpy()
        best, predicted = -1.0, labels.copy()
        asked = np.concatenate((val, self.scored.numpy()))
        for leaves in LEAVES:
            trees = HistGradientBoostingClassifier(
                max_leaf_nodes=leaves, max_iter=most_trees, early_stopping=False, random_state=0
            ).fit(x[train], labels[train])
            for guess in trees.staged_predict(x[asked]):  # after each further tree
                score = (guess == labels[asked])[: len(val)].mean()
                if score > best:
                    best, predicted[asked] = score, guess
        self._add("boosted trees", sees, torch.from_numpy(predicted), started)

    def add_later_labels(self, run: unimp.Run) -> None:
        """Reveal the labels that arrive later to a trained run."""
        sees = f"… and {len(self.arriving):,} later labels"
        started = self._start("UniMP, not retrained", sees)
        later = torch.full_like(self.task.labels, unimp.UNLABELED)
        later[self.arriving] = self.task.labels[self.arriving]
        predicted = run.predict(later, reveal="train").argmax(1)
        self._add("UniMP, not retrained", sees, predicted, started)

    def _start(self, model: str, sees: str) -> float:
        self.console.print(f"{model} ({sees})", style="dim")
        return time.perf_counter()

    def _add(self, model: str, sees: str, predicted: Tensor, started: float) -> None:
        right = (predicted == self.task.labels)[self.scored]
        accuracy = float(right.double().mean())
        self.rows.append(Row(model, sees, accuracy, time.perf_counter() - started))

    def table(self) -> Table:
        """The rows, with a caption that states which labels are inputs and which nodes count."""
        table = Table(title="Which of five price classes do the houses of a block group have?")
        table.add_column("model", no_wrap=True)
        table.add_column("what it sees")
        table.add_column("test accuracy", justify="right", no_wrap=True)
        for row in self.rows:
            table.add_row(row.model, row.sees, percent(row.accuracy))
        split, last = self.task.split, self.rows[-1].accuracy
        error = (last * (1 - last) / len(self.scored)) ** 0.5
        table.caption_justify = "left"
        table.caption = (
            f"Every row is scored on the same {len(self.scored):,} test nodes, whose labels no "
            f"model sees. Known labels: {len(split.train):,} for training, and {len(split.val):,} "
            "for validation, which choose the best epoch and the trees. One seed; the standard "
            f"error of each accuracy is about {100 * error:.1f} points."
        )
        return table

    def sentence(self) -> str:
        """What the table shows."""
        _, _, trees, _, without, known, more = (row.accuracy for row in self.rows)
        gain = 100 * (more - known)
        return (
            f"Known prices of neighbors are worth {100 * (known - without):.1f} points: UniMP "
            f"reaches {percent(known)} with them and {percent(without)} without them; trees with "
            f"coordinates reach {percent(trees)}. Another {len(self.arriving):,} prices "
            f"{'add' if gain >= 0 else 'cost'} {abs(gain):.1f} points without retraining."
        )


def main(settings: Sequence[str] = (), *, seed: int = 0, most_trees: int = MOST_TREES) -> Path:
    """Train, print the table, and return the folder. `settings` change the recipe."""
    started = time.perf_counter()
    console, folder = Console(highlight=False), new_folder(Path("runs"), "demo")
    task = unimp.load_task("california")
    numbers, positions = task.graph.x, task.positions
    one = Comparison(task, folder, console, seed)
    own, near = "census data", "census data, neighbors"
    one.add_run("MLP", own, "mlp", [*settings, "model.name=mlp"])
    one.add_trees(own, numbers, most_trees)
    one.add_trees(f"{own}, coordinates", torch.hstack((numbers, positions)), most_trees)
    one.add_run("label propagation", "neighbors, known labels", "label-propagation", PROPAGATION)
    one.add_run("UniMP", near, "no-labels", [*settings, "model.inputs=X,A"])
    run = one.add_run("UniMP", f"{near}, known labels", "unimp", settings)
    one.add_later_labels(run)
    seconds = time.perf_counter() - started
    result = {"seconds": seconds, "scored": len(one.scored), "rows": [asdict(r) for r in one.rows]}
    (folder / "demo.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    console.print(one.table())
    console.print(f"\n{one.sentence()}\n{DEBIAN}\n")
    scope = f"its scores are of all {len(task.split.test):,} test nodes"
    console.print(f"Report with the map ({scope}): {folder}/unimp/report.html", soft_wrap=True)
    node = node_with_largest_gain(run, one.scored)
    explain = f"{command()} explain {folder}/unimp {node}"
    console.print(f"Next, see which neighbors decide: {explain}", soft_wrap=True)
    console.print(f"This took {seconds:.0f} seconds.", style="dim")
    return folder


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def node_with_largest_gain(run: unimp.Run, nodes: Tensor) -> int:
    """The node whose true class gains most probability from the known labels."""
    labels = run.task.labels[nodes, None]
    no_labels = torch.full_like(run.task.labels, unimp.UNLABELED)
    with_labels = run.predict(reveal="train")[nodes].gather(1, labels)
    without = run.probabilities_of(run.outputs(no_labels))[nodes].gather(1, labels)
    return int(nodes[(with_labels - without).argmax()])


def command() -> str:
    """How to call `unimp` from the current folder."""
    script, here = Path(sys.prefix, "bin", "unimp"), Path.cwd()
    return str(script.relative_to(here)) if script.is_relative_to(here) else "unimp"


if __name__ == "__main__":
    keep_freed_memory()
    main()
