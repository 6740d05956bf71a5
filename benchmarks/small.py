"""Compare UniMP with and without labels as inputs on small graphs, next to published numbers.

    python benchmarks/small.py search --jobs 8     → results/small-search.json
    python benchmarks/small.py run --jobs 8        → results/small.json
    python benchmarks/small.py table               → the table in docs/findings.md

Both models try the same random settings, and each uses those with the best mean validation score.
Test scores are computed once, by `run`, with these settings. Runs in a file are not repeated. The
graphs are `.npz` files in the folder UNIMP_DATA.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from results import FOLDER, provenance, put_between, trained
from unimp.data.files import write_atomically
from unimp.ops.allocator import keep_freed_memory
from unimp.tasks.metrics import mean_text

FINDINGS = Path(__file__).parent.parent / "docs" / "findings.md"
TWINS = {"X,A,Y": ["model.inputs=X,A,Y"], "X,A": ["model.inputs=X,A"]}
LABELS = {"A,Y": ["model.inputs=A,Y"]}
# Compared with a model that has only labels. It has nothing to learn, and no settings to search.
PROPAGATION = {"A,Y, label propagation": ["model.name=label-propagation"]}
CONFIGS = 24
SPACE = {
    "train.lr": ["1e-2", "5e-3", "2e-3"],
    "train.weight_decay": ["0.0", "5e-4"],
    "model.width": ["32", "64", "128"],
    "model.layers": ["2", "3"],
    "model.dropout": ["0.3", "0.5", "0.7"],
    "model.attention_dropout": ["0.0", "0.3"],
    "model.gate": ["last", "all"],
    "mask.label_rate": ["0.3", "0.5", "0.7"],
}


@dataclass(frozen=True)
class Graph:
    """A data set: its best published number, and its seeds or splits."""

    published: str  # the best published number, and its source
    seeds: tuple[int, ...] = tuple(range(10))  # reported: seeds of one split, or splits
    search_seeds: tuple[int, ...] = (100, 101)  # seeds of the same split; never reported
    layers: tuple[str, ...] = ("2", "3")
    inputs: str = "twins"


SETS = {
    "cora": Graph("85.4 (GRAND)"),
    "citeseer": Graph("75.4 (GRAND)"),
    "pubmed": Graph("82.7 (GRAND)"),
    "amazon-computers": Graph("94.09 (tunedGNN)"),
    "coauthor-physics": Graph("97.46 (tunedGNN)"),
    # The search uses the validation sets of the first three of ten splits.
    "minesweeper": Graph(
        "97.86 (tunedGNN, splits 0 to 2)", search_seeds=(0, 1, 2), layers=("4", "6", "8")
    ),
    "actor": Graph("37.99 (OrderedGNN)", search_seeds=(0, 1, 2)),
    "chameleon-filtered": Graph("46.29 (tunedGNN)", search_seeds=(0, 1, 2)),
    "blogcatalog": Graph(
        "none comparable", seeds=(0, 1, 2), search_seeds=(0, 1, 2), inputs="labels"
    ),
}


def settings_of(name: str) -> list[list[str]]:
    """The random settings that both models try."""
    draw = random.Random(name)
    space = SPACE | {"model.layers": list(SETS[name].layers)}
    found = []
    for _ in range(CONFIGS):
        chosen = {key: draw.choice(values) for key, values in space.items()}
        chosen["model.input_dropout"] = chosen["model.dropout"]
        found.append([f"{key}={value}" for key, value in chosen.items()])
    return found


def models_of(name: str) -> dict[str, list[str]]:
    """The models whose settings are searched for."""
    return TWINS if SETS[name].inputs == "twins" else LABELS


def rows_of(name: str) -> dict[str, list[str]]:
    """All models in the table of a data set."""
    return models_of(name) if SETS[name].inputs == "twins" else models_of(name) | PROPAGATION


def runs_in(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text("utf-8")) if path.exists() else []


def fill(
    path: Path, places: list[dict[str, Any]], *, jobs: int, test: bool
) -> list[dict[str, Any]]:
    """Train the runs that are missing in a file; without `test`, store only validation scores."""
    done = runs_in(path)
    places = [p for p in places if not any(p.items() <= row.items() for row in done)]
    rows = [
        {"recipe": p["set"], "settings": [*rows_of(p["set"])[p["inputs"]], *p["settings"]]}
        for p in places
    ]
    missing = [(index, place["seed"]) for index, place in enumerate(places)]
    for index, _, metrics in trained(rows, missing, jobs=jobs, deadline=math.inf):
        scores = metrics["scores"]
        found = {"val": scores["train"]["val"]}
        if test:
            found |= {"test": scores["train"]["test"], "parameters": metrics["parameters"]}
            found["test+val"] = scores.get("train+val", {}).get("test")
        print(places[index], found, flush=True)
        done.append({**places[index], **found, **provenance("small.py")})
        write_atomically(path, (json.dumps(done, indent=1) + "\n").encode())
    return done


def search(names: list[str], jobs: int) -> None:
    places = [
        {"set": name, "inputs": inputs, "settings": settings, "seed": seed}
        for name in names
        for settings in settings_of(name)
        for inputs in models_of(name)
        for seed in SETS[name].search_seeds
    ]
    fill(FOLDER / "small-search.json", places, jobs=jobs, test=False)


def best_settings(name: str, inputs: str) -> list[str]:
    """The settings with the best mean validation score, among those tried on every search seed."""
    if inputs in PROPAGATION:
        return []
    tried = runs_in(FOLDER / "small-search.json")
    scores: dict[tuple[str, ...], list[float]] = {}
    for row in tried:
        if row["set"] == name and row["inputs"] == inputs:
            scores.setdefault(tuple(row["settings"]), []).append(row["val"])
    whole = {s: mean(v) for s, v in scores.items() if len(v) == len(SETS[name].search_seeds)}
    if not whole:
        raise SystemExit(f"{name}, {inputs}: no search results. Run first: small.py search")
    return list(max(whole, key=lambda settings: whole[settings]))


def run(names: list[str], jobs: int) -> None:
    places = [
        {"set": name, "inputs": inputs, "settings": best_settings(name, inputs), "seed": seed}
        for name in names
        for inputs in rows_of(name)
        for seed in SETS[name].seeds
    ]
    fill(FOLDER / "small.json", places, jobs=jobs, test=True)


def gain_text(runs: list[dict[str, Any]], others: list[dict[str, Any]]) -> str:
    """Difference of test scores by seed: mean ± deviation, and how often it is positive."""
    test = {row["seed"]: row["test"] for row in others}
    gains = [row["test"] - test[row["seed"]] for row in runs if row["seed"] in test]
    if len(gains) < 2:
        return ""
    above = sum(gain > 0 for gain in gains)
    return f"{100 * mean(gains):+.2f} ± {100 * stdev(gains):.2f}, {above} of {len(gains)} above"


def markdown(done: list[dict[str, Any]]) -> str:
    """The runs as a table: one row for each model of each data set."""
    lines = [
        "| graph | inputs | runs | val | test | vs. X,A | test, +val labels | best published |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, graph in SETS.items():
        own = [row for row in done if row["set"] == name]
        rows = {inputs: [r for r in own if r["inputs"] == inputs] for inputs in rows_of(name)}
        for inputs, runs in rows.items():
            if not runs:
                continue
            more = [row["test+val"] for row in runs if row["test+val"] is not None]
            cells = [mean_text([row[key] for row in runs]) for key in ("val", "test")]
            cells.append(gain_text(runs, rows["X,A"]) if inputs == "X,A,Y" else "")
            cells.append(mean_text(more) if more else "")
            lines.append(
                f"| {name} | {inputs} | {len(runs)} | {' | '.join(cells)} | {graph.published} |"
            )
    return "\n".join(lines) if len(lines) > 2 else "Not run yet."


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["search", "run", "table"])
    parser.add_argument("--sets", default=",".join(SETS), help="Comma-separated names.")
    parser.add_argument("--jobs", type=int, default=1, help="Number of runs at a time.")
    arguments = parser.parse_args()
    keep_freed_memory()
    names = arguments.sets.split(",")
    if arguments.what == "search":
        search(names, arguments.jobs)
    elif arguments.what == "run":
        run(names, arguments.jobs)
    table = markdown(runs_in(FOLDER / "small.json"))
    if arguments.what == "table":
        text = put_between(FINDINGS.read_text("utf-8"), "<!-- results: small -->", table)
        write_atomically(FINDINGS, text.encode())
    print(table)


if __name__ == "__main__":
    main()
