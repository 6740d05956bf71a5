"""Measure how long the presets take: until the first answer, and in total.

    python benchmarks/preset_times.py    → results/preset-times.json and a table in docs/strength.md

Each row is one `unimp train TASK --preset PRESET` in a process of its own, with the time to import.
The graphs other than bundled ones are `.npz` files in the folder UNIMP_DATA.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from results import FOLDER, provenance, put_between
from unimp.config.presets import PRESETS
from unimp.data.files import write_atomically

RESULTS = FOLDER / "preset-times.json"
PAGE = Path(__file__).parent.parent / "docs" / "strength.md"
TASKS = ("cora", "california", "debian")


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
        "val": metrics["scores"]["train"]["val"],
        "test": metrics["scores"]["train"]["test"],
        **provenance("preset_times.py"),
    }


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| hardware | task | preset | members trained | first answer, s | total, s | limit, s | "
        "test, % |",
        "|" + "---|" * 8,
    ]

    def place(row: dict[str, Any]) -> tuple[bool, int, float]:
        return "CPU" not in row["hardware"], TASKS.index(row["task"]), row["limit"]

    lines += [
        f"| {row['hardware']} | {row['task']} | `{row['preset']}` | {row['members']} | "
        f"{row['first']:.1f} | {row['seconds']:.0f} | {row['limit']:g} | {100 * row['test']:.2f} |"
        for row in sorted(rows, key=place)
    ]
    command = "Command: `python benchmarks/preset_times.py`, on the GPU with `--presets best`."
    return "\n".join([*lines, "", command])


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
