"""init and check: from two tables to a recipe that trains."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tomli_w
import typer

from unimp.cli.console import Settings, app, out, print_rows
from unimp.cli.data import task_rows
from unimp.config.presets import FOR_TABLES, PRESETS
from unimp.data.files import write_atomically
from unimp.errors import RecipeError, TaskError

if TYPE_CHECKING:
    from unimp.data.tables.guessing import Guess
    from unimp.data.tables.table import Table


@app.command()
def init(
    nodes: Annotated[Path, typer.Argument(help="A table of nodes: CSV, Parquet or Arrow.")],
    edges: Annotated[Path, typer.Argument(help="A table of edges.")],
    path: Annotated[Path, typer.Option("--out", help="The recipe to write.")] = Path("recipe.toml"),
    label: Annotated[str, typer.Option(help="The column to predict, if it cannot be told.")] = "",
) -> None:
    """Look at two tables and write a commented recipe for them."""
    from unimp.data.tables.guessing import guess
    from unimp.data.tables.problems import Problems
    from unimp.data.tables.reading import open_table

    if path.exists():
        raise RecipeError(f"{path} is there already; choose another with --out, or remove it")
    if path.suffix != ".toml":
        raise RecipeError(f"--out {path}: recipes are .toml files; write --out {path.stem}.toml")
    problems = Problems()
    opened = [
        open_table(given, what, problems) for given, what in ((nodes, "nodes"), (edges, "edges"))
    ]
    node_table, edge_table = opened
    if node_table is not None and label and label not in node_table.columns:
        open_table(nodes, "nodes", problems, wanted=[label])  # says what is near
    problems.refuse()
    assert node_table is not None
    assert edge_table is not None
    for table in (node_table, edge_table):
        if len(table.columns) < 2:
            raise TaskError(f"{table.name}: one column only; is it the table that was meant?")
    found = guess(node_table, edge_table, {"label": label} if label else None)
    if not found.joins and guess(edge_table, node_table).joins:
        raise TaskError(
            f"{edges} holds ids that {nodes} names: it is the table of nodes, it seems; write: "
            f"unimp init {edges} {nodes}"
        )
    text = recipe_text(found, node_table, edge_table, path.parent)
    write_atomically(path, text.encode())
    out.print(f"recipe: {path}")
    if found.layout.label:
        out.print(f"label: {', '.join(found.layout.label_columns)} ({found.reasons['label']})")
    else:
        named = ", or ".join(f"--label {column}" for column in found.label_candidates[:5])
        out.print(
            "No column could be told to be the label: unimp init … "
            f"{named or '--label COLUMN'}; or write its name into the recipe, and take it out of "
            "the features there."
        )
    if not found.joins:
        out.print("warning: edges name ids that no column of nodes holds; look at id and ends.")
    out.print(f"preset: {FOR_TABLES} ({others_in_words()})")
    out.print(f"Look it over, then: unimp check {path}")


@app.command()
def check(
    name: Annotated[str, typer.Argument(metavar="RECIPE", help="Name or path.")],
    settings: Settings = None,
) -> None:
    """Read all that a recipe names and tell every problem at once, before anything is trained."""
    from unimp.config.recipe import load_recipe
    from unimp.data.tables.summary import cautions, summary
    from unimp.runs.preparation import (
        groups_of,
        refuse_nothing_hidden,
        refuse_smoothing,
        rows_of,
        task_of,
    )

    recipe = load_recipe(name, settings or ()).with_absolute_paths()
    if recipe.task.name != "tables":
        task = task_of(recipe, 0)
        groups_of(recipe, task, recipe.label_rate > 0)
        refuse_smoothing(recipe, task, own_model=False)
        print_rows(task_rows(task).items())
        return
    rows = rows_of(recipe)
    split = rows.split(0)
    rows.metric(recipe.task.metric or None)
    refuse_nothing_hidden(recipe, split.train.numel())
    if recipe.mask.unit == "group" and recipe.label_rate > 0 and rows.groups is None:
        raise RecipeError("mask.unit is 'group', but [tables] names no group; set mask.unit=node")
    if recipe.smooth.form != "none" and rows.labels.ndim == 2:
        raise RecipeError("smooth.form needs one class a node; set smooth.form=none")
    print_rows(summary(rows, split).items())
    for caution in cautions(rows, split):
        out.print(f"warning: {caution}")
    out.print(f"No problem found. Next: unimp train {name}")


def recipe_text(found: Guess, nodes: Table, edges: Table, folder: Path) -> str:
    """The recipe, with a comment on each guess and what else could be chosen."""
    layout, why = found.layout, found.reasons
    place = {t.name: _relative(Path(t.name), folder) for t in (nodes, edges)}
    lines = [
        "# What two tables mean. Each line is a guess with its reason; change what is wrong.",
        "# `unimp check` tells every problem, `unimp train` goes on from there.",
        "",
        "[tables]",
        *_said(f"{nodes.num_rows:,} rows", "nodes", place[nodes.name]),
        *_said(f"{edges.num_rows:,} rows", "edges", place[edges.name]),
        *_said(why["id"], "id", layout.id),
        *_said(
            "the ends of an edge; messages pass from source to target …", "source", layout.source
        ),
        *_said(None, "target", layout.target),
        *_said(f"… and back, unless directed. {why['directed']}", "directed", layout.directed),
        *_said(
            f"what to predict: {why['label']}; unknown where empty, NA, null or -1",
            "label",
            layout.label,
        ),
    ]
    others = [c for c in found.label_candidates if c != layout.label]
    if others:
        lines.append(_comment(f"  it could be: {', '.join(others)}"))
    if layout.label_separator:
        lines += _said(
            "several labels in a cell, and what is between them; empty: one label a cell",
            "label_separator",
            layout.label_separator,
        )
    else:
        lines.append(_comment('several labels in a cell: label_separator = ";"'))
    if layout.split:
        lines += _said(f"sets: {why['split']}", "split", layout.split)
    else:
        lines += _said(f"shares of the known labels: {why['split']}", "train_share", 0.6)
        lines += _said(None, "val_share", 0.2)
        lines.append(_comment('or by files: train_ids = "train.txt", val_ids, test_ids'))
    together = "rows that belong together, kept in one set where one is drawn"
    if layout.group:
        lines += _said(f"{together}: {why['group']}", "group", layout.group)
    else:
        lines.append(_comment(f'{together}: group = "column"'))
    if layout.decimal == ",":
        lines += _said(f"decimal commas: {why['decimal']}", "decimal", layout.decimal)
    lines.append(_comment('edges that name an id which is no node: unknown_ids = "skip"'))
    lines += ["", "# Kinds: numeric, categorical, text (words), vector (numbers made elsewhere)."]
    lines += _columns("tables.features", layout.features, found.kinds, found.left_out)
    lines += ["", "# Features of edges: numeric, categorical or vector."]
    lines += _columns(
        "tables.edge_features", layout.edge_features, found.edge_kinds, found.edge_left_out
    )
    lines += [
        "",
        "# Every other option has a default, which `unimp recipe show` tells with its name.",
        f"# How long to train: as the preset {FOR_TABLES} says, unless another is named:",
        *(f"#   unimp train --preset {name:<7}{one.about}" for name, one in PRESETS.items()),
        "# What is set here stays as it is, whatever the preset:",
        "# [train]",
        "# epochs = 200",
        "# patience = 50  # stop after so many epochs without as good a score on val",
    ]
    return "\n".join(lines) + "\n"


def others_in_words() -> str:
    """Which presets there are beside the one that applies, and how to choose one."""
    others = [name for name in PRESETS if name != FOR_TABLES]
    return f"another by unimp train … --preset {' or '.join(others)}"


def _relative(path: Path, folder: Path) -> str:
    """The path as seen from the recipe's folder."""
    return os.path.relpath(path.resolve(), folder.resolve())


def _said(why: str | None, key: str, value: Any) -> list[str]:
    line = " ".join(tomli_w.dumps({key: value}).split("\n")).rstrip()
    return [line] if why is None else [_comment(why), line]


def _comment(text: str) -> str:
    return "# " + " ".join(text.split()) if not text.startswith(" ") else "#" + text


def _columns(section: str, kinds: Any, reasons: Any, left_out: Any) -> list[str]:
    lines = [f"[{section}]"]
    for column, kind in kinds.items():
        lines.append(f"{_said(None, column, kind)[0]}  {_comment(reasons[column])}")
    for column, why in left_out.items():
        lines.append(_comment(f"left out, {why}: {column}"))
    return lines
