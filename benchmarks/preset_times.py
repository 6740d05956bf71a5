"""Measure how long the presets take, until the first answer and in total, and what they score.

    python benchmarks/preset_times.py    → results/preset-times.json and a table in docs/strength.md

Each row is one `unimp train TASK --preset PRESET` in a separate process, with the time to import.
The table compares each preset with the best simple baseline of the task: the one with the highest
test score among the simple members of all presets. The graphs other than bundled ones are `.npz`
files in the folder UNIMP_DATA.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

from results import FOLDER, provenance, put_between
from unimp.config.presets import PRESETS
from unimp.data.files import write_atomically

RESULTS = FOLDER / "preset-times.json"
PAGE = Path(__file__).parent.parent / "docs" / "strength.md"
TASKS = (
    "cora",
    "citeseer",
    "pubmed",
    "amazon-computers",
    "minesweeper",
    "actor",
    "chameleon-filtered",
    "dblp",
    "lastfm-asia",
    "eukloc",
    "california",
    "debian",
)
SIMPLE = ("label-propagation", "mlp", "ridge", "ridge-hops", "gcn", "gat", "appnp")
"""Members that count as simple baselines. The GCN has labels as inputs."""


def measure(task: str, preset: str) -> dict[str, Any]:
    """Train once, and note the time of the first line about a member."""
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "run"
        command = [sys.executable, "-m", "unimp", "train", task, "--preset", preset]
        started = time.perf_counter()
        process = subprocess.Popen(
            [*command, "--out", str(out)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        first, line = None, ""
        assert process.stderr is not None
        for line in process.stderr:
            if first is None and "ensemble of 1" in line:
                first = time.perf_counter() - started
        if process.wait() != 0:
            raise SystemExit(f"unimp train {task} --preset {preset} failed: {line.strip()}")
        metrics = json.loads((out / "metrics.json").read_text("utf-8"))
    return {
        "task": task,
        "preset": preset,
        "first": first,
        "seconds": time.perf_counter() - started,
        "limit": PRESETS[preset].seconds,  # type: ignore[index]
        "members": len(metrics["ensemble"]["members"]),
        "simple": {
            row["name"]: row["test"]
            for row in metrics["ensemble"]["members"]
            if row["name"] in SIMPLE
        },
        "val": metrics["scores"]["train"]["val"],
        "test": metrics["scores"]["train"]["test"],
        **provenance("preset_times.py"),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """One row per task and hardware, with the presets side by side, and a summary."""
    by_place: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for row in rows:
        by_place.setdefault((row["hardware"], row["task"]), {})[row["preset"]] = row
    titles = [f"`{preset}`: first answer, total, test in %" for preset in PRESETS]
    lines = [
        "| hardware | task | best simple baseline by test score, test in % | "
        f"{' | '.join(titles)} |",
        "|" + "---|" * (3 + len(titles)),
    ]
    for (hardware, task), of_task in sorted(
        by_place.items(), key=lambda item: ("CPU" not in item[0][0], TASKS.index(item[0][1]))
    ):
        simple = best_simple(of_task)
        cells = [hardware, task, "–" if simple is None else f"{simple[0]} {100 * simple[1]:.2f}"]
        for preset in PRESETS:
            row = of_task.get(preset)
            cells.append(
                "–"
                if row is None
                else f"{row['first']:.1f} s, {row['seconds']:.0f} s, {100 * row['test']:.2f}"
            )
        lines.append(f"| {' | '.join(cells)} |")
    on_cpu = [of_task for (hardware, _), of_task in by_place.items() if "CPU" in hardware]
    lines += ["", *summary(on_cpu)]
    command = "Command: `python benchmarks/preset_times.py`, on the GPU with `--presets best`."
    return "\n".join([*lines, "", command])


def best_simple(of_task: dict[str, dict[str, Any]]) -> tuple[str, float] | None:
    """The simple baseline with the best test score among the members of all presets of a task."""
    found = [item for row in of_task.values() for item in row.get("simple", {}).items()]
    return max(found, key=lambda item: item[1], default=None)


def summary(places: list[dict[str, dict[str, Any]]]) -> list[str]:
    """How each preset compares with the one before, and with the best simple baseline."""
    found = {
        f"`{better}` is higher than the score of `{worse}`": [
            (p[better]["test"], p[worse]["test"]) for p in places if {better, worse} <= p.keys()
        ]
        for worse, better in pairwise(PRESETS)
    }
    for preset in PRESETS:
        found[f"`{preset}` is higher than that of the best simple baseline"] = [
            (p[preset]["test"], simple[1])
            for p in places
            if preset in p and (simple := best_simple(p)) is not None
        ]
    lines = []
    for words, pairs in found.items():
        if gains := [100 * (one - other) for one, other in pairs]:
            lines.append(
                f"- On CPU, the test score of {words} on {sum(gain > 0 for gain in gains)} of "
                f"{len(gains)} tasks. Over all {len(gains)} tasks, the mean difference is "
                f"{mean(gains):+.2f} points, and the smallest is {min(gains):+.2f}."
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--presets", nargs="+", default=list(PRESETS), choices=list(PRESETS))
    options = parser.parse_args()
    rows = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else []
    for preset in options.presets:
        for task in options.tasks:
            found = measure(task, preset)
            same = ("task", "preset", "hardware")
            rows = [row for row in rows if any(row[key] != found[key] for key in same)] + [found]
            print({key: rows[-1][key] for key in ("task", "preset", "first", "seconds", "test")})
            write_atomically(RESULTS, (json.dumps(rows, indent=1) + "\n").encode())
    text = PAGE.read_text("utf-8")
    write_atomically(PAGE, put_between(text, "<!-- preset times -->", table(rows)).encode())


if __name__ == "__main__":
    main()
