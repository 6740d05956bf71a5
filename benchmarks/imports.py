"""Time `import unimp` and commands without training relative to `import torch`.

    python benchmarks/imports.py

Every case starts a fresh interpreter. Takes turns and measures CPU time, which other programs on
the machine hardly change. `import unimp` itself loads little, so that every public name except the
classifier is compared with torch. Prints a line `figure NAME VALUE` for each time, and writes them
with hardware and command to results/imports.json.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import FOLDER, Figures, seconds

CASES = {
    "torch": ["-c", "import torch"],
    "package": ["-c", "import unimp"],
    "unimp": [
        "-c",
        "import unimp\nfor name in set(unimp.__all__) - {'UniMPClassifier'}: getattr(unimp, name)",
    ],
    "classifier": ["-c", "from unimp import UniMPClassifier"],
    "help": ["-m", "unimp", "--help"],
    "recipe_list": ["-m", "unimp", "recipe", "list"],
    "data_list": ["-m", "unimp", "data", "list"],
    "init": ["-m", "unimp", "init", "nodes.csv", "edges.csv", "--force"],
    "check": ["-m", "unimp", "check", "recipe.toml"],
    "report": ["-m", "unimp", "report", "run"],
}
SMALL = ["task.scale=0.02", "train.epochs=2", "model.width=8", "train.device=cpu"]


def start(words: list[str], place: str) -> None:
    """Run a new interpreter in a folder; modules are compiled once, as after an installation."""
    compiled = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": f"{place}/compiled"}
    subprocess.run(
        [sys.executable, *words],
        check=True,
        stdout=subprocess.DEVNULL,
        cwd=place,
        env=os.environ | compiled,
    )


def write_tables(place: Path) -> None:
    """Write small tables for `init` and `check`."""
    draw = random.Random(0)
    nodes = [f"n{i},{draw.random():.3f},{draw.choice('abc')}" for i in range(200)]
    edges = [f"n{draw.randrange(200)},n{draw.randrange(200)}" for _ in range(600)]
    for name, lines in {
        "nodes": ["id,size,label", *nodes],
        "edges": ["source,target", *edges],
    }.items():
        (place / f"{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_run(place: str) -> None:
    """Train a small run for `report`."""
    settings = [word for setting in SMALL for word in ("--set", setting)]
    start(["-m", "unimp", "train", "synthetic", *settings, "--out", "run"], place)


def processor() -> float:
    """CPU seconds of all finished child processes."""
    taken = os.times()
    return taken.children_user + taken.children_system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, default=FOLDER)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        write_tables(Path(place))
        write_run(place)
        calls = {name: (lambda words=words: start(words, place)) for name, words in CASES.items()}
        taken = seconds(calls, repeats=options.repeats, device="cpu", clock=processor)
    figures = Figures("imports", options.out)
    figures.add(
        "import_torch", taken["torch"], "import torch in a fresh interpreter, processor seconds"
    )
    figures.add("import_package", taken["package"], "import unimp, no name used, processor seconds")
    figures.add(
        "import_unimp",
        taken["unimp"],
        "import unimp and every public name except the classifier, processor seconds",
    )
    figures.add(
        "import_ratio",
        taken["unimp"] / taken["torch"],
        "import unimp and every public name except the classifier, relative to import torch",
        "≤ 1.3",
    )
    figures.add(
        "import_classifier_ratio",
        taken["classifier"] / taken["torch"],
        "importing UniMPClassifier and with it scikit-learn, relative to import torch",
    )
    figures.add("help", taken["help"], "unimp --help, processor seconds", "≤ 0.5")
    for name in ("recipe_list", "data_list", "init", "check", "report"):
        words = "unimp " + " ".join(CASES[name][2:])
        figures.add(name, taken[name], f"{words}, processor seconds", "≤ 0.5")
    figures.add(
        "help_ratio", taken["help"] / taken["torch"], "unimp --help, relative to import torch"
    )


if __name__ == "__main__":
    main()
