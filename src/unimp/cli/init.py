"""The commands `unimp init` and `unimp check`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from unimp.cli.console import Settings, app, leave_out_pandas, out, print_rows
from unimp.cli.data import task_rows
from unimp.cli.later import Force
from unimp.config.presets import FOR_TABLES, PRESETS
from unimp.errors import TaskError

if TYPE_CHECKING:
    from unimp.config.recipe import Recipe
    from unimp.data.tables.checking import Rows
    from unimp.data.tables.guessing import Guess
    from unimp.data.tables.table import Table
    from unimp.tasks.splitting import Sets

SHOWN_CAUTIONS = 10
"""The number of warnings that `init` prints; the recipe contains all of them."""


Label = Annotated[str, typer.Option(help="Column to predict, if it cannot be guessed.")]
Near = Annotated[
    str,
    typer.Option(
        metavar="COLUMNS",
        help="Without a table of edges: connect each node to its nearest neighbors in these "
        "columns, such as longitude,latitude or embedding.",
    ),
]


@app.command()
def init(
    nodes: Annotated[Path, typer.Argument(help="Table of nodes: CSV, Parquet or Arrow.")],
    edges: Annotated[
        Path | None, typer.Argument(help="Table of edges; leave it out with --near.")
    ] = None,
    path: Annotated[Path, typer.Option("--out", help="Recipe to write.")] = Path("recipe.toml"),
    label: Label = "",
    near: Near = "",
    force: Force = False,
) -> None:
    """Look at your tables and write a commented recipe for them."""
    from unimp.data.files import write_atomically
    from unimp.data.outputs import check_output

    check_output(path, (".toml",), reads=[nodes, edges], force=force)
    guessed = guess_recipe(nodes, edges, label, near)
    write_atomically(path, guessed.text(path.parent).encode())
    out.print(f"recipe: {path}")
    print_guess(guessed.found, nodes, edges)
    others = " or ".join(name for name in PRESETS if name != FOR_TABLES)
    out.print(f"preset: {FOR_TABLES} (for another one: unimp train … --preset {others})")
    if guessed.found.layout.label:
        out.print(f"Read the recipe, then run: unimp check {path}")
    else:
        out.print(
            "The label column could not be guessed. Run: unimp init … --force "
            f"{guessed.found.label_options}; or write its name into the recipe and remove it from "
            "the features there."
        )


class GuessedRecipe(NamedTuple):
    """The guessed meaning of tables, from which a recipe is written."""

    found: Guess
    nodes: Table
    edges: Table | None

    def text(self, folder: Path) -> str:
        """The recipe as a file in `folder`."""
        from unimp.data.tables.initial_recipe import initial_recipe

        return initial_recipe(self.found, self.nodes, self.edges, folder)


def guess_recipe(nodes: Path, edges: Path | None, label: str, near: str) -> GuessedRecipe:
    """Open the tables and guess what their columns mean."""
    from unimp.data.tables.guessing import guess
    from unimp.data.tables.near import refuse_near_and_edges
    from unimp.data.tables.problems import Problems
    from unimp.data.tables.reading import open_table

    leave_out_pandas()
    columns = [column.strip() for column in near.split(",") if column.strip()]
    refuse_near_and_edges(columns, edges)
    problems = Problems()
    node_table = open_table(nodes, "nodes", problems)
    edge_table = None if edges is None else open_table(edges, "edges", problems)
    if node_table is not None:
        given = [*([label] if label else []), *columns]
        if not set(given) <= set(node_table.columns):
            open_table(nodes, "nodes", problems, wanted=given)  # reports the nearest columns
    problems.refuse()
    assert node_table is not None
    for table in (node_table, edge_table):
        if table is not None and len(table.columns) < 2:
            raise TaskError(f"{table.name} has only one column; check that it is the right file")
    options = {"label": label, "near": columns}
    found = guess(node_table, edge_table, {key: given for key, given in options.items() if given})
    if edge_table is not None and not found.joins and guess(edge_table, node_table).joins:
        raise TaskError(
            f"{edges} contains ids that {nodes} refers to, so it seems to be the table of nodes; "
            f"run: unimp init {edges} {nodes}"
        )
    return GuessedRecipe(found, node_table, edge_table)


def print_guess(found: Guess, nodes: Path, edges: Path | None) -> None:
    """Print the label, the columns that are left out, and what the user should check."""
    if found.layout.label:
        out.print(f"label: {', '.join(found.layout.label_columns)} ({found.reasons['label']})")
    for caution in found.cautions[:SHOWN_CAUTIONS]:
        out.print(f"warning: {caution}")
    if len(found.cautions) > SHOWN_CAUTIONS:
        more = len(found.cautions) - SHOWN_CAUTIONS
        out.print(f"warning: {more:,} further columns are left out; the recipe lists them")
    print_left_out(nodes, found.left_out, found.cautions)
    if edges is not None:
        print_left_out(edges, found.edge_left_out, found.cautions)
    if not found.joins:
        out.print(
            "warning: no column of the nodes contains the ids of the edges; check id, source "
            "and target"
        )


def print_left_out(table: Path, columns: Mapping[str, str], cautions: Sequence[str]) -> None:
    """Print the columns that are not features, unless a caution names them."""
    others = {c: why for c, why in columns.items() if not any(c in text for text in cautions)}
    for column, why in list(others.items())[:SHOWN_CAUTIONS]:
        out.print(f"left out: {column} of {table} ({why})")
    if len(others) > SHOWN_CAUTIONS:
        out.print(f"left out: {len(others) - SHOWN_CAUTIONS:,} more columns of {table}")


@app.command()
def check(
    name: Annotated[str, typer.Argument(metavar="RECIPE", help="Name or path of a recipe.")],
    settings: Settings = None,
) -> None:
    """Read everything that a recipe names and report all problems before training."""
    from unimp.data.tables.summary import cautions
    from unimp.runs.recipes import resolve_recipe

    leave_out_pandas()
    recipe = resolve_recipe(name, settings or ())
    if recipe.task.name != "tables":
        check_task(recipe)
        return
    rows, split = checked_tables(recipe, 0)
    warnings = cautions(rows, split)
    for caution in warnings:
        out.print(f"warning: {caution}")
    found = (
        f"No error was found, but {len(warnings)} warnings" if warnings else "No problem was found"
    )
    out.print(f"{found}. Next: unimp train {name}")


def check_task(recipe: Recipe) -> None:
    """Load a task that is not read from tables, build the model, and print the task."""
    from unimp.runs.preparation import device_of, model_of, task_of

    device_of(recipe, None)
    task = task_of(recipe, 0)
    model_of(recipe, task)
    print_rows(task_rows(task).items())


def checked_tables(recipe: Recipe, seed: int) -> tuple[Rows, Sets]:
    """Read the tables of a recipe, refuse what cannot be trained, and print a summary.

    torch is loaded only if the model has to be built to know that it can be.
    """
    from unimp.data.tables.summary import summary
    from unimp.runs.recipes import rows_of, surely_trains

    number = seed if recipe.task.split == "seed" else recipe.task.split
    rows = rows_of(recipe).with_edges(number)
    metric = rows.metric(recipe.task.metric or None)
    sets = rows.split(number)
    if not surely_trains(recipe, rows, sets):
        from unimp.data.catalog import prepare
        from unimp.runs.preparation import device_of, model_of, preparation

        device_of(recipe, None)
        task = rows.task(recipe.name, split=number, metric=metric)
        model_of(recipe, prepare(task, **preparation(recipe)))
    print_rows(summary(rows, sets).items())
    return rows, sets
