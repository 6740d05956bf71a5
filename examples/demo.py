"""Three ways to label Debian's packages: their own features, their neighbors' labels, and both.

Trains an MLP (features alone), label propagation (labels alone) and UniMP (both, and the relations
between packages) on the bundled graph, then reveals the validation labels to UniMP, which uses them
without being trained again.
"""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.table import Table
from unimp.cli.seeds import fresh_folder

from unimp import load_recipe
from unimp.ops.allocator import keep_freed_memory
from unimp.runs import experiment as run
from unimp.runs.reporting import write_report

# The recipe trains for 300 epochs; 120 show what there is to see in two minutes.
SHORTER = ["train.epochs=120", "train.eval_every=10"]
ROWS = {
    "MLP": ("features", ["model.name=mlp", *SHORTER]),
    "label propagation": (
        "relations, known labels",
        ["model.name=label-propagation", "model.normalization=column", "model.restart=0.3"],
    ),
    "UniMP": ("features, relations, known labels", SHORTER),
}


def main(seed: int = 0) -> float:
    """Train and print; returns the seconds it took."""
    started = time.perf_counter()
    console, folder = Console(), fresh_folder(Path("runs"), "demo")
    table = Table(title="The section of Debian packages")
    for column in ("model", "what it sees", "test accuracy"):
        table.add_column(column)
    for name, (sees, settings) in ROWS.items():
        recipe = load_recipe("debian", settings)
        place = folder / name.lower().replace(" ", "-")
        done = run(recipe, seed=seed, out=place, progress=True)
        write_report(place, done)
        scores = done.metrics["scores"]
        table.add_row(name, sees, f"{scores['train']['test']:.2%}")
    split = done.task.split
    gained = scores["train+val"]["test"] - scores["train"]["test"]
    more = f"… and {len(split.val):,} labels more, without retraining"
    table.add_row("UniMP", more, f"{scores['train+val']['test']:.2%} ({100 * gained:+.2f} points)")
    table.caption = f"{len(split.test):,} packages labeled from {len(split.train):,} known labels"
    console.print(table)
    seconds = time.perf_counter() - started
    console.print(f"run folders: {folder}/… (open report.html in each)   {seconds:.0f} s")
    return seconds


if __name__ == "__main__":
    keep_freed_memory()
    main()
