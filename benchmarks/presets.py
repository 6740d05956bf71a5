"""Measure the presets on graphs without a tuned recipe.

    python benchmarks/presets.py --jobs 8     → results/presets.json
    python benchmarks/presets.py --table      → the table in docs/training.md

Each graph is trained with the default recipe and a preset, as `unimp train mine.npz --preset good`
does, with train labels as inputs. Runs in the file are not repeated. The small graphs are `.npz`
files in the folder UNIMP_DATA; `debian` is part of the package.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

from results import FOLDER, provenance, put_between, trained
from unimp.config.presets import PRESETS
from unimp.data.files import write_atomically
from unimp.ops.allocator import keep_freed_memory
from unimp.tasks.metrics import mean_text

PAGE = Path(__file__).parent.parent / "docs" / "training.md"
PATH = FOLDER / "presets.json"
TASKS = ("debian", "citeseer", "pubmed", "amazon-computers", "actor")
SEEDS = (0, 1, 2)


def settings_of(task: str, preset: str) -> list[str]:
    """The default recipe with a preset, not the recipe that the package has for this task."""
    options = {"task.name": task, **PRESETS[preset].options}
    return [f"{place}={value}" for place, value in options.items()]


def runs_done() -> list[dict[str, Any]]:
    done: list[dict[str, Any]] = json.loads(PATH.read_text("utf-8")) if PATH.exists() else []
    return done


def fill(jobs: int) -> None:
    done = runs_done()
    places = [
        {"task": task, "preset": preset, "seed": seed, "settings": settings_of(task, preset)}
        for preset in reversed(
            PRESETS
        )  # the longest first, so that no single run is left at the end
        for task in TASKS
        for seed in SEEDS
    ]
    places = [p for p in places if not any(p.items() <= row.items() for row in done)]
    rows = [{"recipe": "synthetic", "settings": place["settings"]} for place in places]
    missing = [(index, place["seed"]) for index, place in enumerate(places)]
    for index, _, metrics in trained(rows, missing, jobs=jobs, deadline=math.inf):
        scores = metrics["scores"]["train"]
        found = {"val": scores["val"], "test": scores["test"], "epochs": metrics["epochs"]}
        print(places[index], found, flush=True)
        done.append({**places[index], **found, **provenance("presets.py")})
        write_atomically(PATH, (json.dumps(done, indent=1) + "\n").encode())


def markdown(done: list[dict[str, Any]]) -> str:
    if not done:
        return "Not run yet."
    lines = [f"| preset | {' | '.join(TASKS)} |", "|---" * (len(TASKS) + 1) + "|"]
    for preset in PRESETS:
        cells = []
        for task in TASKS:
            runs = [row for row in done if (row["task"], row["preset"]) == (task, preset)]
            cells.append(mean_text([row["test"] for row in runs]) if runs else "")
        lines.append(f"| `{preset}` | {' | '.join(cells)} |")
    places = sorted({f"`{row['command']}` on {row['hardware']}" for row in done})
    return "\n".join([*lines, "", "; ".join(places) + "."])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=1, help="Number of runs at a time.")
    parser.add_argument("--table", action="store_true", help="Write the table into its page.")
    arguments = parser.parse_args()
    keep_freed_memory()
    if arguments.table:
        text = put_between(
            PAGE.read_text("utf-8"), "<!-- results: presets -->", markdown(runs_done())
        )
        write_atomically(PAGE, text.encode())
    else:
        fill(arguments.jobs)
    print(markdown(runs_done()))


if __name__ == "__main__":
    main()
