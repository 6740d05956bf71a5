"""Summarize the studies in docs/studies, one row per task.

    python benchmarks/studies.py            → tables of docs/reproducing.md and docs/findings.md
    python benchmarks/studies.py --pages    → also the pages and drawings, from the stored numbers

The studies are written by `unimp reproduce`; each page shows its command. To update a study, run
that command and copy its .md, .json and .svg into docs/studies/<task>.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from results import put_between
from unimp.data.files import write_atomically
from unimp.studies.pages import render
from unimp.studies.reproduce import STUDIES
from unimp.studies.study import gap_from_zero

DOCS = Path(__file__).parent.parent / "docs"
PAGES = (DOCS / "reproducing.md", DOCS / "findings.md")
FOLDER = DOCS / "studies"
TASKS = (
    "arxiv-guesses",
    "debian",
    "debian-tags",
    "cora",
    "citeseer",
    "pubmed",
    "amazon-computers",
    "coauthor-physics",
    "minesweeper",
    "actor",
    "chameleon-filtered",
    "blogcatalog",
)
"""The order of the rows."""

UNIMP = "… + train labels (UniMP)"
OWN_GRAPH = "information"  # generates its own small graph, whatever the task


def kept(task: str) -> list[dict[str, Any]]:
    """The studies of a task, in the order of the paper."""
    pages = (FOLDER / task / f"{name}.json" for name in STUDIES)
    return [json.loads(page.read_text(encoding="utf-8")) for page in pages if page.exists()]


def tasks_table() -> str:
    """The stored studies of each task, with the number of seeds, the hardware and the settings."""
    lines = ["| task | seeds | hardware | settings | studies |", "|---|---|---|---|---|"]
    for task in TASKS:
        studies = [study for study in kept(task) if study["study"] != OWN_GRAPH]
        seeds = _one({len(study["seeds"]) for study in studies})
        trained = [study for study in studies if study["cells"]]
        hardware = _one({_hardware(line) for study in trained for line in study["hardware"]})
        others = any(study["settings"] for study in studies)
        settings = "see the pages" if others else "those of the recipe"
        links = ", ".join(f"[{s['study']}](studies/{task}/{s['study']}.md)" for s in studies)
        lines.append(f"| `{task}` | {seeds} | {hardware} | {settings} | {links} |")
    return "\n".join(lines)


def _hardware(line: str) -> str:
    return "CPU" if line.startswith("cpu") else line.partition(": ")[2].partition(",")[0]


def _one(values: set[Any]) -> str:
    return " and ".join(map(str, sorted(values)))


def differences_table() -> str:
    """The effects that the paper's tables and figures show, as differences in points, by task."""
    columns = {title: {task: find(task) for task in TASKS} for title, find in DIFFERENCES.items()}
    lines = [f"| task | {' | '.join(columns)} |", "|" + "---|" * (len(columns) + 1)]
    for task in TASKS:
        cells = [_text(found[task]) for found in columns.values()]
        lines.append(f"| `{task}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _text(values: Mapping[str, float]) -> str:
    """The mean over seeds, in bold if it is clearly not zero; empty if there is none."""
    found = gap_from_zero({int(seed): value for seed, value in values.items()})
    if found is None:
        return ""
    text = f"{found.mean:+.2f}" if abs(found.mean) >= 0.005 else "0.00"
    return f"**{text}**" if found.sign else text


def scores(task: str, study: str, *words: str, column: str = "test") -> dict[str, float]:
    """The numbers by seed of the row of a study's table that begins with these words, or none."""
    page = FOLDER / task / f"{study}.json"
    tables = json.loads(page.read_text(encoding="utf-8"))["tables"] if page.exists() else []
    for table in tables:
        for row in table["rows"]:
            if tuple(row["words"][: len(words)]) == words:
                return dict(row.get("ours", {}).get(column, {}))
    return {}


def minus(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    """The first minus the second in points, by seed."""
    return {seed: 100 * (first[seed] - second[seed]) for seed in first if seed in second}


def labels_vs_none(model: str) -> Callable[[str], dict[str, float]]:
    return lambda task: minus(
        scores(task, "inputs", "X,A,Y", model), scores(task, "inputs", "X,A", model)
    )


def transformer_vs_gat(task: str) -> dict[str, float]:
    for inputs in ("X,A,Y", "A,Y"):  # without features, only labels
        found = minus(
            scores(task, "inputs", inputs, "Graph Transformer"),
            scores(task, "inputs", inputs, "GAT"),
        )
        if found:
            return found
    return {}


def between_layers(first: str, second: str) -> Callable[[str], dict[str, float]]:
    return lambda task: minus(scores(task, "layer", first), scores(task, "layer", second))


def with_few_labels(task: str) -> dict[str, float]:
    return minus(
        *(scores(task, "figure-b", "0.125", column=f"{w} label input") for w in ("with", "without"))
    )


def all_vs_none(task: str) -> dict[str, float]:
    return minus(scores(task, "figure-c", "1"), scores(task, "figure-c", "0"))


DIFFERENCES: dict[str, Callable[[str], dict[str, float]]] = {
    "label inputs, GCN": labels_vs_none("GCN"),
    "GAT": labels_vs_none("GAT"),
    "transformer": labels_vs_none("Graph Transformer"),
    "the same with ⅛ of the labels": with_few_labels,
    "all train labels vs. none at prediction": all_vs_none,
    "validation labels as well": between_layers("… + validation labels at inference", UNIMP),
    "transformer vs. GAT": transformer_vs_gat,
    "both with a residual": between_layers("Transformer + residual", "GAT + residual"),
    "residual vs. none": between_layers("Transformer + residual", "Transformer (dot-product)"),
    "gated vs. plain": between_layers("Transformer + gated residual", "Transformer + residual"),
}
"""By the title of the column."""


def with_tables(text: str) -> str:
    """The text of a page with the tables of the stored studies."""
    text = put_between(text, "<!-- results: studies -->", tasks_table())
    return put_between(text, "<!-- results: differences -->", differences_table())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pages", action="store_true", help="Also render every page and drawing.")
    if parser.parse_args().pages:
        for path in sorted(FOLDER.glob("*/*.json")):
            render(STUDIES[path.stem], path)
    for page in PAGES:
        write_atomically(page, with_tables(page.read_text(encoding="utf-8")).encode())
    print(differences_table())


if __name__ == "__main__":
    main()
