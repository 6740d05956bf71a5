"""A run to try the service with: the bundled house prices, and a small model.

No weights are shipped. The model is trained once, in a few seconds, by another process, because
the front does not import torch; it is kept in the user's cache folder.
"""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from unimp import __version__
from unimp.config.run_files import is_finished
from unimp.errors import RunError

NODES, RUN = "houses.csv", "run"
COLUMNS = (
    *("longitude", "latitude", "age", "rooms", "bedrooms"),
    *("people", "households", "income"),
)
SETTINGS = {
    "task.name": "tables",
    "tables.id": "block",
    "tables.label": "price",
    "tables.near": ["longitude", "latitude"],
    "tables.neighbors": 8,
    "tables.features": dict.fromkeys(COLUMNS[2:], "numeric"),
    "model.name": "unimp",
    "model.width": 32,
    "model.heads": 2,
    "model.layers": 2,
    "train.epochs": 30,
    "train.lr": 0.01,
    "ensemble.portfolio": "none",
}


def demo_folder() -> Path:
    """The folder of the demo in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "unimp" / f"demo-{__version__}"


def demo_run(print_line: Callable[[str], None]) -> Path:
    """The run folder of the demo, which is made if it does not exist."""
    folder = demo_folder()
    if is_finished(folder / RUN):
        print_line(f"The demo and your labels are in {folder}; remove it to start again.")
        return folder / RUN
    print_line(f"Training a small model of house prices in {folder}, once (10 to 60 seconds) …")
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "unimp.serving.demo", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode or not is_finished(folder / RUN):
        why = (done.stderr.strip().splitlines() or ["no reason was given"])[-1]
        raise RunError(f"the demo could not be trained: {why}. Remove {folder} and try again.")
    return folder / RUN


def write_houses(path: Path) -> None:
    """Write the table of houses; the price of half of them is unknown."""
    from unimp.data.array_file import ArrayFile
    from unimp.data.california import BUNDLE, load_california

    task = load_california()
    known = task.split.known("train+val")
    label = {int(n): (task.class_names or ())[int(task.labels[n])] for n in known}
    file = ArrayFile(BUNDLE, COLUMNS)
    values = {name: file.integers(name, "[N]") for name in COLUMNS}
    with path.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.writer(opened)
        writer.writerow(["block", *COLUMNS, "price"])
        for n in range(task.graph.num_nodes):
            row = []
            for name in COLUMNS:
                column = values[name]
                assert column is not None
                number = int(column[n])
                degrees = name in ("longitude", "latitude")
                row.append(number / 100 if degrees else "" if number < 0 else number)
            writer.writerow([f"block {n}", *row, label.get(n, "")])


def main(folder: Path) -> None:
    """Write the table and train; a folder that is incomplete is never used."""
    from unimp.config.recipe import Recipe
    from unimp.runs.experiment import run

    write_houses(folder / NODES)
    made = Path(tempfile.mkdtemp(dir=folder))
    settings = {**SETTINGS, "tables.nodes": str(folder / NODES)}
    run(Recipe(name="house prices"), settings=settings, out=made / RUN, progress=False)
    shutil.rmtree(folder / RUN, ignore_errors=True)
    (made / RUN).rename(folder / RUN)
    made.rmdir()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
