"""Train the rows of a results table over several seeds and store their scores.

    python benchmarks/results.py debian --seeds 0-9      → benchmarks/results/debian.json
    python benchmarks/results.py --readme                → the tables in README and docs

A row is a recipe with settings. Each run is added to the file when it ends, with its hardware,
command and code. Runs in the file are not repeated, so that a table can be filled in steps.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import re
import shlex
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from statistics import median
from typing import Any

import torch

from figures import (
    SHOWN,
    answer_markdown,
    columns_line,
    demo_line,
    figures_markdown,
    promise_markdown,
    questions_markdown,
    scale_markdown,
    speed_markdown,
    tables_line,
)
from unimp import __version__
from unimp.config.recipe import load_recipe
from unimp.config.seeds import parse_seeds
from unimp.data.files import write_atomically
from unimp.ops.allocator import keep_freed_memory
from unimp.runs.experiment import run
from unimp.studies.cells import recipe_hash
from unimp.studies.paper import with_inputs
from unimp.tasks.means import mean_text
from unimp.tracking.origin import code_origin

FOLDER = Path(__file__).parent / "results"
README = Path(__file__).parent.parent / "README.md"
PAGES = [
    README,
    *(
        README.parent / "docs" / f"{page}.md"
        for page in (
            "concepts",
            "own-data",
            "processes",
            "reproducing",
            "results",
            "scale",
            "speed",
        )
    ),
]
# Each row of the README's table, and the rows of the other tables that it shows.
SHORT = {
    "features": (("X", "MLP"),),
    "edges, known labels (label propagation)": (("A,Y", "label propagation"),),
    "edges, known labels": (("A,Y", "UniMP"), ("A,Y + edge features", "UniMP")),
    "features, edges": (("X,A", "UniMP"), ("X,A + edge features", "UniMP")),
    "features, edges, known labels": (("X,A,Y", "UniMP"), ("X,A,Y + edge features", "UniMP")),
}
SHORT_TABLES = {
    "debian": "`debian`",
    "debian-tags": "`debian-tags`, ROC-AUC",
    "arxiv-labels": "ogbn-arxiv without features (paper)",
    "arxiv-guesses": "ogbn-arxiv, a language model's guesses as features",
}
PROTOCOL = (
    "test score at the best validation epoch; train labels are inputs when scoring; +val: "
    "validation labels are inputs too, without retraining"
)
NO_EDGE_FEATURES = "model.edge_features=false"

LPA = "model.name=label-propagation"
# Chosen by validation on splits 10 to 12.
LPA_DEBIAN = [LPA, "model.normalization=column", "model.restart=0.3"]

# table → rows of (inputs, model, recipe, settings)
TABLES: dict[str, list[tuple[str, str, str, list[str]]]] = {
    "debian": [
        ("X", "MLP", "debian", ["model.name=mlp"]),
        ("A,Y", "label propagation", "debian", LPA_DEBIAN),
        ("A,Y", "UniMP", "debian", ["model.inputs=A,Y", NO_EDGE_FEATURES]),
        ("X,A", "UniMP", "debian", ["model.inputs=X,A", NO_EDGE_FEATURES]),
        # Decision 8: the result of a search for X,A as long as that of the full model.
        (
            "X,A, its own settings",
            "UniMP",
            "debian",
            [
                "model.inputs=X,A",
                NO_EDGE_FEATURES,
                "model.width=128",
                "model.attention_dropout=0.3",
                "train.weight_decay=5e-4",
            ],
        ),
        ("X,A,Y + edge features", "UniMP", "debian", []),
    ],
    "debian-tags": [
        ("X", "MLP", "debian-tags", ["model.name=mlp"]),
        ("A,Y", "label propagation", "debian-tags", ["model.name=label-propagation"]),
        ("A,Y + edge features", "UniMP", "debian-tags", ["model.inputs=A,Y"]),
        ("X,A + edge features", "UniMP", "debian-tags", ["model.inputs=X,A"]),
        ("X,A,Y + edge features", "UniMP", "debian-tags", []),
    ],
    "arxiv-propagation": [
        (", ".join(settings) or "none", "label propagation", "arxiv-labels", [LPA, *settings])
        for settings in (
            [],
            ["model.normalization=sym", "model.restart=0.5"],
            ["model.normalization=sym", "model.restart=0.0", "model.clamp=labels"],
            ["model.normalization=column"],
            ["model.normalization=column", "model.clamp=unit", "task.self_loops=false"],
            ["model.normalization=column", "model.clamp=unit", "model.steps=10"],
        )
    ],
    "arxiv-labels": [
        ("A,Y", "label propagation", "arxiv-label-propagation", []),
        ("A,Y", "GCN", "arxiv-labels", ["model.name=gcn"]),
        ("A,Y", "GAT", "arxiv-labels", ["model.name=gat"]),
        ("A,Y", "UniMP", "arxiv-labels", []),
    ],
    "arxiv-guesses": [
        (inputs, title, "arxiv-guesses", [*model, f"model.inputs={inputs}"])
        for inputs in ("X,A", "X,A,Y")
        for title, model in (
            ("GCN", ["model.name=gcn"]),
            ("GAT", ["model.name=gat"]),
            ("UniMP", []),
        )
    ],
}


def fill_table(
    name: str,
    seeds: list[int],
    *,
    only: str,
    folder: Path,
    deadline: float,
    threads: int,
    jobs: int = 1,
) -> dict[str, Any]:
    """Train the missing runs of a table and return the table."""
    if threads:
        torch.set_num_threads(threads)
    path = folder / f"{name}.json"
    table = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    earlier = {(row["inputs"], row["model"]): row["runs"] for row in table.get("rows", [])}
    rows, superseded = [], table.get("superseded", [])
    for inputs, model, recipe, settings in TABLES[name]:
        made_with = recipe_hash(load_recipe(recipe, settings))
        found = earlier.get((inputs, model), [])
        # A run of an earlier version of the recipe is not a result of the current one.
        superseded += [
            {"inputs": inputs, "model": model, **r} for r in found if r["recipe_hash"] != made_with
        ]
        kept = [r for r in found if r["recipe_hash"] == made_with]
        rows.append(
            {"inputs": inputs, "model": model, "recipe": recipe, "settings": settings, "runs": kept}
        )
    fresh = {"table": name, "protocol": PROTOCOL, "rows": rows, "superseded": superseded}
    table |= fresh  # keeps other keys of the file
    missing = [
        (number, seed)
        for seed in seeds
        for number, row in enumerate(rows)
        if re.search(only, f"{row['model']}: {row['inputs']}")
        and not any(r["seed"] == seed for r in row["runs"])
    ]
    for number, seed, metrics in trained(rows, missing, jobs=jobs, deadline=deadline):
        row = rows[number]
        print(
            f"{name}, {row['model']}, {row['inputs']}, seed {seed}: {json.dumps(metrics)}",
            flush=True,
        )
        made_with = recipe_hash(load_recipe(row["recipe"], row["settings"]))
        row["runs"].append({"seed": seed, "recipe_hash": made_with, **provenance(), **metrics})
        row["runs"].sort(key=lambda r: int(r["seed"]))
        write_atomically(path, (json.dumps(table, indent=1) + "\n").encode())
    return table


def trained(
    rows: list[dict[str, Any]], missing: list[tuple[int, int]], *, jobs: int, deadline: float
) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Yield row number, seed and metrics of each run as it ends; `jobs` processes at a time."""
    if jobs == 1:
        for number, seed in missing:
            if time.time() < deadline:
                yield number, seed, train(rows[number], seed, deadline)[2]
        return
    context = multiprocessing.get_context("spawn")  # a GPU does not survive a fork
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        waiting = [
            pool.submit(train, rows[number], seed, deadline, jobs) for number, seed in missing
        ]
        place = dict(zip(waiting, missing, strict=True))
        for done in as_completed(waiting):
            began, _, metrics = done.result()
            if began:
                number, seed = place[done]
                # Parallel runs slow each other down, so that the time of an epoch means nothing.
                metrics.pop("seconds_per_epoch", None)
                yield number, seed, metrics


def train(
    row: dict[str, Any], seed: int, deadline: float, jobs: int = 1
) -> tuple[bool, int, dict[str, Any]]:
    """Whether there was time to begin, the seed, and the metrics."""
    if time.time() > deadline:
        return False, seed, {}
    if jobs > 1:  # if every process used all cores, they would slow each other down
        share = max(1, (os.cpu_count() or 1) // jobs)
        torch.set_num_threads(min(share, torch.get_num_threads()))
    return True, seed, dict(run(load_recipe(row["recipe"], row["settings"]), seed=seed).metrics)


def provenance(script: str = "results.py") -> dict[str, Any]:
    """The command, hardware and code of a run."""
    arguments = re.sub(
        r"(--out|--minutes|--threads|--jobs|--keep) \S+ ?", "", shlex.join(sys.argv[1:])
    )
    cores = f"{os.cpu_count()} CPU cores ({platform.machine()})"
    return {
        "command": f"python benchmarks/{script} {arguments}".strip(),
        "hardware": torch.cuda.get_device_name() if torch.cuda.is_available() else cores,
        "torch": torch.__version__,
        "unimp": __version__,
        "code": code_origin(),
    }


def markdown(table: dict[str, Any]) -> str:
    """The table in Markdown."""
    rows = [row for row in table["rows"] if row["runs"]]
    if not rows:
        return "No runs yet."
    papers = [paper_text(table["table"], row) for row in rows]
    metric = {"accuracy": "accuracy", "rocauc": "ROC-AUC"}[rows[0]["runs"][0]["metric"]]
    lines = [
        f"| inputs | model | parameters | seeds | val {metric} | test {metric} "
        f"| test, +val labels | {'paper | ' if any(papers) else ''}ms per epoch | hardware |",
        "|---|---|---|---|---|---|---|---|---|" + ("---|" if any(papers) else ""),
    ]
    for row, paper in zip(rows, papers, strict=True):
        runs = row["runs"]
        scores = [r["scores"] for r in runs]
        cells = [
            mean_text([s[protocol][part] for s in scores]) if protocol in scores[0] else ""
            for protocol, part in (("train", "val"), ("train", "test"), ("train+val", "test"))
        ]
        hardware = ", ".join(sorted({r["hardware"] for r in runs}))
        epochs = [r["seconds_per_epoch"] for r in runs if r.get("seconds_per_epoch")]
        took = f"{1e3 * median(epochs):.3g}" if epochs else ""
        lines.append(
            f"| {row['inputs']} | {row['model']} | {runs[0]['parameters']:,} | {len(runs)} "
            f"| {' | '.join(cells)} | {f'{paper} | ' if any(papers) else ''}{took} | {hardware} |"
        )
    return "\n".join([*lines, "", f"`python benchmarks/results.py {table['table']}`"])


def paper_text(table: str, row: dict[str, Any]) -> str:
    """The paper's test score of a row with the same data; empty if there is none."""
    if table != "arxiv-labels":
        return ""
    if row["model"] == "label propagation":
        return "68.32 (quoted for OGB)"
    title = "Graph Transformer" if row["model"] == "UniMP" else row["model"]
    number = with_inputs("ogbn-arxiv", row["inputs"], title)
    if number is None:
        return ""
    return f"{100 * number.value:.2f}" + (f" ± {100 * number.std:.2f}" if number.std else "")


def short_markdown(folder: Path) -> str:
    """Scores of models with more and more inputs, one column per task."""
    rows = {}
    for name in SHORT_TABLES:
        path = folder / f"{name}.json"
        found = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
        rows |= {(name, row["inputs"], row["model"]): row for row in found if row["runs"]}
    lines = [f"| inputs of the model | {' | '.join(SHORT_TABLES.values())} |", "|---" * 5 + "|"]
    for line, names in SHORT.items():
        cells = []
        for table in SHORT_TABLES:
            row = next((rows[table, *name] for name in names if (table, *name) in rows), None)
            text = ""
            if row is not None:
                text = mean_text([r["scores"]["train"]["test"] for r in row["runs"]])
                paper = paper_text(table, row)
                text += f" ({paper.partition(' (')[0]})" if paper else ""
            cells.append(text)
        lines.append(f"| {line} | {' | '.join(cells)} |")
    return "\n".join(lines)


def with_results(text: str, folder: Path) -> str:
    """The text of a page, with the results between their markers."""
    text = put_between(text, "<!-- results: short -->", short_markdown(folder))
    text = put_between(text, "<!-- results: speed -->", speed_markdown(folder))
    for name in TABLES:
        path = folder / f"{name}.json"
        if path.exists():
            table = json.loads(path.read_text(encoding="utf-8"))
            text = put_between(text, f"<!-- results: {name} -->", markdown(table))
    for marker, (file, names) in SHOWN.items():
        path = folder / f"{file}.json"
        if path.exists():
            figures = json.loads(path.read_text(encoding="utf-8"))
            body = figures_markdown(figures, names)
            text = put_between(text, f"<!-- results: {marker} -->", body)
    questions = folder / "questions.json"
    if questions.exists():
        body = questions_markdown(json.loads(questions.read_text(encoding="utf-8")))
        text = put_between(text, "<!-- results: questions -->", body)
    answer = folder / "answer.json"
    if answer.exists():
        body = answer_markdown(json.loads(answer.read_text(encoding="utf-8")))
        text = put_between(text, "<!-- results: answer -->", body)
    scale = folder / "scale.json"
    if scale.exists():
        measured = json.loads(scale.read_text(encoding="utf-8"))
        text = put_between(text, "<!-- results: scale -->", scale_markdown(measured))
    demo = folder / "demo.json"
    if demo.exists():
        took = json.loads(demo.read_text(encoding="utf-8"))
        text = put_between(text, "<!-- results: demo -->", demo_line(took))
        epoch = json.loads((folder / "epoch.json").read_text(encoding="utf-8"))
        text = put_between(text, "<!-- results: promise -->", promise_markdown(took, epoch))
    tables, columns = folder / "tables.json", folder / "columns.json"
    if tables.exists() and columns.exists():
        lines = f"{tables_line(tables)}\n\n{columns_line(columns)}"
        text = put_between(text, "<!-- results: tables -->", lines)
    look = folder / "reproduce.json"
    if look.exists():
        took = json.loads(look.read_text(encoding="utf-8"))
        line = f"`{took['command']}`: {took['seconds'] / 60:.0f} minutes on {took['hardware']}."
        text = put_between(text, "<!-- results: reproduce -->", line)
    return text


def put_between(text: str, marker: str, body: str) -> str:
    """`text` with `body` between the marker and the next end marker."""
    before, found, rest = text.partition(marker)
    if not found:
        return text
    _, end, after = rest.partition("<!-- end -->")
    return f"{before}{marker}\n{body}\n{end}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=", ".join(TABLES))
    parser.add_argument("--seeds", default="0-9")
    parser.add_argument(
        "--only", default="", help="Train only rows whose 'model: inputs' matches this pattern."
    )
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--minutes", type=float, default=1e9, help="Start no run after this time.")
    parser.add_argument(
        "--threads", type=int, default=0, help="CPU threads; 0 uses the default of torch."
    )
    parser.add_argument("--jobs", type=int, default=1, help="Number of runs at a time.")
    parser.add_argument("--readme", action="store_true", help="Write the tables into the pages.")
    arguments = parser.parse_args()
    keep_freed_memory()
    deadline = time.time() + 60 * arguments.minutes
    for name in arguments.tables:
        table = fill_table(
            name,
            parse_seeds(arguments.seeds),
            only=arguments.only,
            folder=arguments.out,
            deadline=deadline,
            threads=arguments.threads,
            jobs=arguments.jobs,
        )
        print(markdown(table))
    if arguments.readme:
        for page in PAGES:
            text = with_results(page.read_text(encoding="utf-8"), arguments.out)
            write_atomically(page, text.encode())


if __name__ == "__main__":
    main()
