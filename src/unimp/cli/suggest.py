"""suggest."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unimp.cli.console import RunFolder, app, out, print_rows
from unimp.cli.later import (
    LaterEdges,
    LaterLabels,
    LaterNodes,
    UnknownEnds,
    load_with_later,
)
from unimp.errors import RunError

if TYPE_CHECKING:
    from unimp.tasks.task import Task

SHOWN = 10


@app.command()
def suggest(
    folder: RunFolder,
    number: Annotated[int, typer.Option("-n", min=1, help="How many nodes to name.")] = 50,
    labels: LaterLabels = None,
    nodes: LaterNodes = None,
    edges: LaterEdges = None,
    unknown_ids: UnknownEnds = "refuse",
    smooth: Annotated[
        bool | None,
        typer.Option(
            "--smooth/--no-smooth",
            help="Correct & Smooth after the model; the same weights. Default: if that scores "
            "better on validation.",
        ),
    ] = None,
    path: Annotated[
        Path, typer.Option("--out", help="Where to write; .csv gives CSV, else Parquet.")
    ] = Path("suggestions.csv"),
) -> None:
    """Name the unknown nodes whose label would teach most; fill in the column label."""
    from unimp.inference.correct_and_smooth import smoothing_in_words

    loaded, extra = load_with_later(
        folder, labels, nodes, edges, unknown_ids, smooth=smooth, labels_are_inputs=False
    )
    table = loaded.suggest(number, extra)
    if answered := labels_filled_in(path):
        raise RunError(
            f"{path} holds {answered:,} labels that were filled in; give them with --labels "
            f"{shlex.quote(str(path))}, and name another file by --out"
        )
    table.write(path)
    rows = table.head(SHOWN).to_pylist()
    print_rows([(str(row["rank"]), str(row["node"]), row["why"]) for row in rows])
    rest = len(table) - len(rows)
    out.print(f"{f'… and {rest:,} more: ' if rest else ''}{path}")
    if smooth is None:
        found = loaded.metrics["smoothing"]
        smooth = found["smoothed"]
        out.print(smoothing_in_words(found, loaded.task.metric))
    if not loaded.takes_labels:
        out.print(
            "this run's model takes no labels as inputs: fill in the column label and train with "
            "them, or use them as they come by --smooth, here and with unimp predict"
        )
        return
    then: list[str | Path] = ["unimp", "predict", folder]
    for file in dict.fromkeys((*(labels or ()), path)):  # earlier answers are inputs still
        then += ["--labels", file]
    then += ["--smooth"] if smooth else []
    for option, given in (("--nodes", nodes), ("--edges", edges)):
        then += [] if given is None else [option, given]
    then += [] if unknown_ids == "refuse" else ["--unknown-ids", unknown_ids]
    told = shlex.join(str(word) for word in then)
    out.print(f"fill in the column label{how_to_fill_in(loaded.task)}, then: {told}")


def how_to_fill_in(task: Task) -> str:
    """What a label of binary tasks looks like in a cell."""
    from unimp.data.tables.label_file import NONE
    from unimp.tasks.names import class_names, label_separator

    if not task.is_multilabel:
        return ""
    names, between = class_names(task), label_separator(task)
    none = "" if NONE in names else f", or {NONE} where no label holds"
    return f" (all labels that hold, as {between.join(names[:2])}{none})"


def labels_filled_in(path: Path) -> int:
    """How many labels somebody has written into an earlier table of suggestions."""
    from unimp.data.tables.columns import words
    from unimp.data.tables.labels import known_words
    from unimp.data.tables.problems import Problems
    from unimp.data.tables.table_file import open_table

    earlier = open_table(path, "labels", Problems()) if path.is_file() else None
    if earlier is None or "label" not in earlier.columns:
        return 0
    labels = known_words(words(earlier, "label", Problems()))
    return int(len(labels) - labels.null_count)
