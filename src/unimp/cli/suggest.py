"""The command `unimp suggest`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unimp.cli import later
from unimp.cli.console import RunFolder, app, out, print_rows
from unimp.data.outputs import TABLE
from unimp.errors import RunError

if TYPE_CHECKING:
    from unimp.tasks.task import Task

SHOWN = 10
"""Rows that are printed."""


@app.command()
def suggest(
    folder: RunFolder,
    number: Annotated[int, typer.Option("-n", min=1, help="Number of nodes to suggest.")] = 50,
    labels: later.Labels = None,
    nodes: later.Nodes = None,
    edges: later.Edges = None,
    unknown_ids: later.UnknownEnds = "refuse",
    reveal: later.RevealOption = None,
    smooth: Annotated[
        bool | None,
        typer.Option(
            "--smooth/--no-smooth",
            help="Apply Correct & Smooth after the model. Default: if it scores better on "
            "validation.",
        ),
    ] = None,
    path: later.TableFile = Path("suggestions.csv"),
    force: later.Force = False,
) -> None:
    """Write a table of unknown nodes whose labels would help most, to be filled in."""
    from unimp.inference.correct_and_smooth import smoothing_in_words

    if answered := labels_filled_in(path):
        raise RunError(
            f"{path} contains {answered:,} labels that were filled in; pass them with --labels "
            f"{shlex.quote(str(path))}, and name another file with --out"
        )
    later.check_outputs([(path, TABLE)], folder, nodes, edges, *(labels or ()), force=force)
    loaded, extra = later.load_extended(
        folder, labels, nodes, edges, unknown_ids, smooth=bool(smooth), labels_are_inputs=False
    )
    if smooth is None:  # as `Run.suggest` does
        loaded = loaded.smoothed_if_better()
    table = loaded.suggest(number, extra, reveal=later.reveal_of(reveal, loaded), smooth=False)
    if not len(table):
        out.print(
            "Every node has a known label, so no node can be suggested. With --reveal train, "
            "nodes of the test set are suggested."
        )
        return
    table.write(path, force=force)
    rows = table.head(SHOWN).to_pylist()
    print_rows([(str(row["rank"]), str(row["node"]), row["why"]) for row in rows])
    rest = len(table) - len(rows)
    out.print(f"{f'… and {rest:,} more: ' if rest else ''}{path}")
    if smooth is None:
        found = loaded.metrics["smoothing"]
        smooth = found["smoothed"]
        if smooth:
            out.print(smoothing_in_words(found, loaded.task.metric))
    if not loaded.takes_labels:
        out.print(
            "The model of this run takes no labels as inputs: fill in the column label and train "
            "again, or use the labels at once with --smooth, here and with unimp predict."
        )
        return
    then: list[str | Path] = ["unimp", "predict", folder]
    for file in dict.fromkeys((*(labels or ()), path)):  # earlier answers stay inputs
        then += ["--labels", file]
    then += ["--smooth"] if smooth else []
    for option, given in (("--nodes", nodes), ("--edges", edges), ("--reveal", reveal)):
        then += [] if given is None else [option, given]
    then += [] if unknown_ids == "refuse" else ["--unknown-ids", unknown_ids]
    then += ["--out", path.with_name(f"{path.stem}-predictions{path.suffix}")]
    command = shlex.join(str(word) for word in then)
    out.print(f"Fill in the column label{how_to_fill_in(loaded.task)}, then run: {command}")


def how_to_fill_in(task: Task) -> str:
    """The format of a label of binary tasks in a cell."""
    from unimp.data.tables.label_files import NONE
    from unimp.tasks.names import class_names, label_separator

    if not task.is_multilabel:
        return ""
    names, separator = class_names(task), label_separator(task)
    none = "" if NONE in names else f", or {NONE} if no label applies"
    return f" (all labels that apply, such as {separator.join(names[:2])}{none})"


def labels_filled_in(path: Path) -> int:
    """The number of labels that were written into an earlier table of suggestions."""
    from unimp.data.tables.labels import known_words
    from unimp.data.tables.problems import Problems
    from unimp.data.tables.reading import open_table
    from unimp.data.tables.values import words

    earlier = open_table(path, "labels", Problems()) if path.is_file() else None
    if earlier is None or "label" not in earlier.columns:
        return 0
    labels = known_words(words(earlier, "label", Problems()))
    return int(len(labels) - labels.null_count)
