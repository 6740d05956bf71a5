"""Follow the path of a new user: two CSV files with string ids, then one command after another.

    python proofs/new_user.py        → proofs/results/new_user.json

The bundled Debian graph is written as two tables, as a user might have them. From there on only the
command line is used. Each command must succeed, print no traceback, and write the file that it
names, with the ids of the tables.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unimp.data.files import write_atomically
from unimp.tracking.origin import code_origin

RESULTS = Path(__file__).parent / "results"


def write_tables(folder: Path, packages: int | None) -> dict[str, str]:
    """Write nodes.csv and edges.csv of the first packages (None: all); return their sections.

    The file contains the sections of train and validation packages only; the rest is predicted.
    """
    import unimp

    task = unimp.load_task("debian")
    names, classes = task.node_names, task.class_names
    assert names is not None
    assert classes is not None
    count = packages or len(names)
    x = task.graph.x[torch_range(count)]
    known = set(task.split.train.tolist()) | set(task.split.val.tolist())
    with (folder / "nodes.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["package", "section", "embedding"])
        for node in range(count):
            section = classes[int(task.labels[node])] if node in known else ""
            vector = " ".join(f"{value:g}" for value in x[node].tolist())
            rows.writerow([names[node], section, vector])
    graph = task.graph
    ends = zip(graph.source.tolist(), graph.target.tolist(), strict=True)
    with (folder / "edges.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["from", "to"])
        rows.writerows([names[s], names[t]] for s, t in ends if s < count and t < count)
    return {names[node]: classes[int(task.labels[node])] for node in range(count)}


def torch_range(count: int) -> Any:
    import torch

    return torch.arange(count)


def command(folder: Path, *words: str) -> dict[str, Any]:
    """Run `unimp` with these arguments in the folder; return its last line and its time."""
    started = time.perf_counter()
    program = "from unimp.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))},
    )
    line = "unimp " + " ".join(words)
    if done.returncode != 0 or "Traceback" in done.stderr:
        raise AssertionError(f"{line} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return {
        "command": line,
        "seconds": round(time.perf_counter() - started, 1),
        "last_line": done.stdout.strip().splitlines()[-1] if done.stdout.strip() else "",
    }


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def walk(
    folder: Path, *, packages: int | None = None, settings: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Run all commands and check the files that they write."""
    truth = write_tables(folder, packages)
    steps = [command(folder, "init", "nodes.csv", "edges.csv")]
    steps.append(command(folder, "check", "recipe.toml"))
    changed = [word for setting in settings for word in ("--set", setting)]
    steps.append(command(folder, "train", "recipe.toml", *changed, "--out", "run"))

    steps.append(command(folder, "predict", "run", "--out", "predictions.csv"))
    predicted = rows_of(folder / "predictions.csv")
    assert [row["node"] for row in predicted] == list(truth)
    unknown = [row for row in predicted if row["label"] == ""]
    assert unknown
    assert all(row["prediction"] in truth.values() for row in unknown)

    asked = unknown[0]["node"]
    steps.append(command(folder, "explain", "run", asked, "--json", "--out", "why.json"))
    assert asked in (folder / "why.json").read_text(encoding="utf-8")
    assert f"<b>{asked}: " in (folder / "run" / "report.html").read_text(encoding="utf-8")

    steps.append(command(folder, "audit", "run", "--out", "doubtful.csv"))
    assert {row["node"] for row in rows_of(folder / "doubtful.csv")} <= set(truth)

    steps.append(command(folder, "suggest", "run", "-n", "20", "--out", "ask.csv"))
    suggested = [row["node"] for row in rows_of(folder / "ask.csv")]
    assert len(set(suggested)) == 20
    assert set(suggested) <= {row["node"] for row in unknown}

    # Label the suggested nodes and use the labels without retraining, with the printed command but
    # another file. Labels of a new class are left out: they would need training.
    classes = {row["section"] for row in rows_of(folder / "nodes.csv")}
    suggested = [node for node in suggested if truth[node] in classes]
    with (folder / "answers.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["node", "label"], *([n, truth[n]] for n in suggested)])
    then = steps[-1]["last_line"].partition("--labels ask.csv")[2].split()
    steps.append(
        command(folder, "predict", "run", "--labels", "answers.csv", *then, "--out", "again.csv")
    )
    again = {row["node"]: row for row in rows_of(folder / "again.csv")}
    assert all(again[node]["prediction"] == truth[node] for node in suggested)
    return steps


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        steps = walk(Path(folder))
    found = {"command": "python proofs/new_user.py", "code": code_origin(), "steps": steps}
    text = json.dumps(found, indent=1)
    write_atomically(RESULTS / "new_user.json", (text + "\n").encode())
    print(text)


if __name__ == "__main__":
    main()
