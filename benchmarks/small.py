"""Compare UniMP with and without labels as inputs on small graphs, next to published numbers.

    python benchmarks/small.py search --jobs 8     → results/small-search.json
    python benchmarks/small.py run --jobs 8        → results/small.json
    python benchmarks/small.py table               → the table in docs/findings.md
    python benchmarks/small.py fit                 → results/small-fit.json: UniMPClassifier().fit

Both models try the same random settings, and each uses those with the best mean validation score.
Test scores are computed once, by `run`, with these settings. Runs in a file are not repeated. The
graphs are `.npz` files in the folder UNIMP_DATA.

`fit` compares the default of the classifier on random graphs of 150 and 1,000 nodes, of which half
are labeled, with a model and a training of the size that recipes have. Seeds take turns.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from results import FOLDER, provenance, put_between, trained
from unimp.data.files import write_atomically
from unimp.ops.allocator import keep_freed_memory
from unimp.tasks.means import mean_text

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


OF_A_RECIPE = {"width": 128, "epochs": 500}
"""The arguments that the classifier's default is compared with."""


def fit(seeds: int) -> None:
    """Time `UniMPClassifier().fit` on small graphs, and scikit-learn's checks of the classifier."""
    from sklearn.utils.estimator_checks import check_estimator

    from measure import Figures
    from unimp.sklearn import UniMPClassifier

    figures = Figures("small-fit", FOLDER)
    kinds = {"default": {}, "recipe": OF_A_RECIPE}
    for nodes, aim in ((150, "≤ 1"), (1000, "≤ 3")):
        taken: dict[str, list[float]] = {kind: [] for kind in kinds}
        scores: dict[str, list[float]] = {kind: [] for kind in kinds}
        for seed in range(seeds):
            task = small_task(nodes, seed)
            known, test = task.split.train.numpy(), task.split.test.numpy()
            views, labels = task.graph.nodes, task.labels.numpy()
            for kind, options in kinds.items():
                began = time.perf_counter()
                classifier = UniMPClassifier(random_state=seed, **options)
                classifier.fit(views[known], labels[known])
                taken[kind].append(time.perf_counter() - began)
                scores[kind].append(classifier.score(views[test], labels[test]))
        median = {kind: statistics.median(times) for kind, times in taken.items()}
        what = f"UniMPClassifier on {nodes:,} nodes"
        figures.add(f"fit_{nodes}", median["default"], f"{what}, fit, seconds", aim)
        figures.add(
            f"fit_{nodes}_speedup",
            median["recipe"] / median["default"],
            f"{what}, fit, speedup over width 128 and 500 epochs",
        )
        for kind, name in (("default", "default"), ("recipe", "width 128 and 500 epochs")):
            figures.add(
                f"fit_{nodes}_{kind}_score",
                100 * mean(scores[kind]),
                f"{what}, {name}, test accuracy in %, mean of {seeds} graphs",
            )
        gains = [a - b for a, b in zip(scores["default"], scores["recipe"], strict=True)]
        figures.add(
            f"fit_{nodes}_gain_error",
            100 * stdev(gains) / seeds**0.5,
            f"{what}, standard error of the difference of these accuracies",
        )
    began = time.perf_counter()
    check_estimator(UniMPClassifier(), on_fail=None)  # two checks do not apply: see the tests
    what = "check_estimator(UniMPClassifier()), seconds"
    figures.add("check_estimator", time.perf_counter() - began, what, "≤ 120")


def small_task(nodes: int, seed: int) -> Any:
    """A random graph with some signal in its features and in its edges."""
    from unimp.data.synthetic import synthetic_task

    return synthetic_task(
        num_nodes=nodes,
        num_edges=4 * nodes,
        num_classes=5,
        num_features=16,
        feature_signal=1.0,
        homophily=0.6,
        split_shares=(0.5, 0.0, 0.5),
        seed=seed,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["search", "run", "table", "fit"])
    parser.add_argument("--sets", default=",".join(SETS), help="Comma-separated names.")
    parser.add_argument("--jobs", type=int, default=1, help="Number of runs at a time.")
    parser.add_argument("--seeds", type=int, default=10, help="fit: number of graphs.")
    arguments = parser.parse_args()
    keep_freed_memory()
    names = arguments.sets.split(",")
    if arguments.what == "fit":
        fit(arguments.seeds)
        return
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
