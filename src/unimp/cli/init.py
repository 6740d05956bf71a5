"""The commands `unimp init` and `unimp check`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unimp.cli.console import Settings, app, out, print_rows
from unimp.cli.data import task_rows
from unimp.cli.later import Force
from unimp.config.presets import FOR_TABLES, PRESETS
from unimp.errors import TaskError

if TYPE_CHECKING:
    from unimp.data.tables.guessing import Guess

SHOWN_CAUTIONS = 10
"""The number of warnings that `init` prints; the recipe contains all of them."""


@app.command()
def init(
    nodes: Annotated[Path, typer.Argument(help="Table of nodes: CSV, Parquet or Arrow.")],
    edges: Annotated[Path, typer.Argument(help="Table of edges.")],
    path: Annotated[Path, typer.Option("--out", help="Recipe to write.")] = Path("recipe.toml"),
    label: Annotated[str, typer.Option(help="Column to predict, if it cannot be guessed.")] = "",
    force: Force = False,
) -> None:
    """Look at two tables and write a commented recipe for them."""
    from unimp.data.files import write_atomically
    from unimp.data.outputs import check_output
    from unimp.data.tables.guessing import guess
    from unimp.data.tables.initial_recipe import initial_recipe
    from unimp.data.tables.problems import Problems
    from unimp.data.tables.reading import open_table

    check_output(path, (".toml",), reads=[nodes, edges], force=force)
    problems = Problems()
    node_table = open_table(nodes, "nodes", problems)
    edge_table = open_table(edges, "edges", problems)
    if node_table is not None and label and label not in node_table.columns:
        open_table(nodes, "nodes", problems, wanted=[label])  # reports the nearest columns
    problems.refuse()
    assert node_table is not None
    assert edge_table is not None
    for table in (node_table, edge_table):
        if len(table.columns) < 2:
            raise TaskError(f"{table.name} has only one column; check that it is the right file")
    found = guess(node_table, edge_table, {"label": label} if label else None)
    if not found.joins and guess(edge_table, node_table).joins:
        raise TaskError(
            f"{edges} contains ids that {nodes} refers to, so it seems to be the table of nodes; "
            f"run: unimp init {edges} {nodes}"
        )
    text = initial_recipe(found, node_table, edge_table, path.parent)
    write_atomically(path, text.encode())
    out.print(f"recipe: {path}")
    print_label(found)
    for caution in found.cautions[:SHOWN_CAUTIONS]:
        out.print(f"warning: {caution}")
    if len(found.cautions) > SHOWN_CAUTIONS:
        more = len(found.cautions) - SHOWN_CAUTIONS
        out.print(f"warning: {more:,} further columns are left out; the recipe lists them")
    print_left_out(nodes, found.left_out, found.cautions)
    print_left_out(edges, found.edge_left_out, found.cautions)
    if not found.joins:
        out.print(
            "warning: no column of the nodes contains the ids of the edges; check id, source "
            "and target"
        )
    others = " or ".join(name for name in PRESETS if name != FOR_TABLES)
    out.print(f"preset: {FOR_TABLES} (for another one: unimp train … --preset {others})")
    if found.layout.label:
        out.print(f"Read the recipe, then run: unimp check {path}")


def print_left_out(table: Path, columns: Mapping[str, str], cautions: Sequence[str]) -> None:
    """Print the columns that are not features, unless a caution names them."""
    others = {c: why for c, why in columns.items() if not any(c in text for text in cautions)}
    for column, why in list(others.items())[:SHOWN_CAUTIONS]:
        out.print(f"left out: {column} of {table} ({why})")
    if len(others) > SHOWN_CAUTIONS:
        out.print(f"left out: {len(others) - SHOWN_CAUTIONS:,} more columns of {table}")


def print_label(found: Guess) -> None:
    """Print the label column, or how to name it."""
    if found.layout.label:
        out.print(f"label: {', '.join(found.layout.label_columns)} ({found.reasons['label']})")
        return
    named = ", or ".join(f"--label {column}" for column in found.label_candidates[:5])
    out.print(
        f"The label column could not be guessed. Run: unimp init … --force "
        f"{named or '--label COLUMN'}; or write its name into the recipe and remove it from the "
        "features there."
    )


@app.command()
def check(
    name: Annotated[str, typer.Argument(metavar="RECIPE", help="Name or path of a recipe.")],
    settings: Settings = None,
) -> None:
    """Read everything that a recipe names and report all problems before training."""
    from unimp.data.catalog import prepare
    from unimp.data.tables.summary import cautions, summary
    from unimp.runs.preparation import (
        device_of,
        model_of,
        preparation,
        resolve_recipe,
        rows_of,
        task_of,
    )

    recipe = resolve_recipe(name, settings or ())
    device_of(recipe, None)
    if recipe.task.name != "tables":
        task = task_of(recipe, 0)
        model_of(recipe, task)
        print_rows(task_rows(task).items())
        return
    rows = rows_of(recipe)
    task = rows.task(recipe.name, split=0, metric=recipe.task.metric or None)
    model_of(recipe, prepare(task, **preparation(recipe)))
    print_rows(summary(rows, task.split).items())
    warnings = cautions(rows, task.split)
    for caution in warnings:
        out.print(f"warning: {caution}")
    found = (
        f"No error was found, but {len(warnings)} warnings" if warnings else "No problem was found"
    )
    out.print(f"{found}. Next: unimp train {name}")
