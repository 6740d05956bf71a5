"""What studies of the paper found, task by task, from the pages in docs/studies.

    python benchmarks/studies.py        → tables of docs/reproducing.md and docs/findings.md

The pages are written by `unimp reproduce`; each names its command. To bring a study up to date, run
that command and copy its .md, .json and .svg into docs/studies/<task>.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from results import put_between
from unimp.data.files import write_atomically
from unimp.studies.reproduce import STUDIES
from unimp.studies.study import from_zero

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
"""In the order of the tables."""

UNIMP = "… + train labels (UniMP)"
OF_EVERY_TASK = "information"  # has a small graph of its own, whatever the task


def kept(task: str) -> list[dict[str, Any]]:
    """The studies of a task, in the order of the paper."""
    pages = (FOLDER / task / f"{name}.json" for name in STUDIES)
    return [json.loads(page.read_text(encoding="utf-8")) for page in pages if page.exists()]


def tasks_table() -> str:
    """Which studies of which tasks lie in docs/studies, with how many seeds, and on what."""
    lines = ["| task | seeds | on | settings | studies |", "|---|---|---|---|---|"]
    for task in TASKS:
        studies = [study for study in kept(task) if study["study"] != OF_EVERY_TASK]
        seeds = _one({len(study["seeds"]) for study in studies})
        trained = [study for study in studies if study["cells"]]
        hardware = _one({_hardware(line) for study in trained for line in study["hardware"]})
        others = any(study["settings"] for study in studies)
        settings = "on its pages" if others else "of its recipe"
        links = ", ".join(f"[{s['study']}](studies/{task}/{s['study']}.md)" for s in studies)
        lines.append(f"| `{task}` | {seeds} | {hardware} | {settings} | {links} |")
    return "\n".join(lines)


def _hardware(line: str) -> str:
    return "CPU" if line.startswith("cpu") else line.partition(": ")[2].partition(",")[0]


def _one(values: set[Any]) -> str:
    return " and ".join(map(str, sorted(values)))


def differences_table() -> str:
    """What the paper's tables and figures are about, as differences in points, task by task."""
    columns = {title: {task: find(task) for task in TASKS} for title, find in DIFFERENCES.items()}
    lines = [f"| task | {' | '.join(columns)} |", "|" + "---|" * (len(columns) + 1)]
    for task in TASKS:
        cells = [_text(found[task]) for found in columns.values()]
        lines.append(f"| `{task}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _text(values: Mapping[str, float]) -> str:
    """The mean over seeds, in bold where it is clearly not zero; nothing of nothing."""
    found = from_zero({int(seed): value for seed, value in values.items()})
    if found is None:
        return ""
    text = f"{found.mean:+.2f}" if abs(found.mean) >= 0.005 else "0.00"
    return f"**{text}**" if found.sign else text


def scores(task: str, study: str, *words: str, column: str = "test") -> dict[str, float]:
    """What a line of a study's table has by seed; nothing where there is no such line."""
    page = FOLDER / task / f"{study}.json"
    tables = json.loads(page.read_text(encoding="utf-8"))["tables"] if page.exists() else []
    for table in tables:
        for row in table["rows"]:
            if tuple(row["words"][: len(words)]) == words:
                return dict(row["ours"].get(column, {}).get("by_seed", {}))
    return {}


def over(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    """The first less the second in points, seed by seed."""
    return {seed: 100 * (first[seed] - second[seed]) for seed in first if seed in second}


def labels_over_none(model: str) -> Callable[[str], dict[str, float]]:
    return lambda task: over(
        scores(task, "inputs", "X,A,Y", model), scores(task, "inputs", "X,A", model)
    )


def over_gat(task: str) -> dict[str, float]:
    for inputs in ("X,A,Y", "A,Y"):  # without features, labels alone
        found = over(
            scores(task, "inputs", inputs, "Graph Transformer"),
            scores(task, "inputs", inputs, "GAT"),
        )
        if found:
            return found
    return {}


def of_layers(first: str, second: str) -> Callable[[str], dict[str, float]]:
    return lambda task: over(scores(task, "layer", first), scores(task, "layer", second))


def with_few_labels(task: str) -> dict[str, float]:
    return over(
        *(scores(task, "figure-b", "0.125", column=f"{w} label input") for w in ("with", "without"))
    )


def all_over_none(task: str) -> dict[str, float]:
    return over(scores(task, "figure-c", "1"), scores(task, "figure-c", "0"))


DIFFERENCES: dict[str, Callable[[str], dict[str, float]]] = {
    "label inputs, GCN": labels_over_none("GCN"),
    "GAT": labels_over_none("GAT"),
    "transformer": labels_over_none("Graph Transformer"),
    "the same with ⅛ of the labels": with_few_labels,
    "all train labels over none at prediction": all_over_none,
    "validation labels too": of_layers("… + validation labels at inference", UNIMP),
    "transformer over GAT": over_gat,
    "both with a residual": of_layers("Transformer + residual", "GAT + residual"),
    "residual over none": of_layers("Transformer + residual", "Transformer (dot-product)"),
    "gated over plain": of_layers("Transformer + gated residual", "Transformer + residual"),
}
"""By the title of the column."""


def written(text: str) -> str:
    """The page with its tables as the studies have them."""
    text = put_between(text, "<!-- results: studies -->", tasks_table())
    return put_between(text, "<!-- results: differences -->", differences_table())


def main() -> None:
    for page in PAGES:
        write_atomically(page, written(page.read_text(encoding="utf-8")).encode())
    print(differences_table())


if __name__ == "__main__":
    main()
