"""The commented recipe that `unimp init` writes for tables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from unimp.config.presets import FOR_TABLES, PRESETS
from unimp.data.tables.guessing import Guess
from unimp.data.tables.table import Table

_MOST_LISTED = 10  # columns in one line


def initial_recipe(found: Guess, nodes: Table, edges: Table | None, folder: Path) -> str:
    """A recipe for a file in `folder`, with the reason of each guess and what else is possible.

    edges: None if edges come from nearest neighbors.
    """
    layout, why = found.layout, found.reasons
    lines = [
        "# The meaning of your tables. Each line is a guess with its reason; correct wrong ones.",
        "# `unimp check` reports every problem, and `unimp train` trains a model.",
        "",
        "[tables]",
        *_table("nodes", nodes, folder),
        *([] if edges is None else _table("edges", edges, folder)),
        *_option(why["id"], "id", layout.id),
    ]
    if edges is None:
        lines += _option(
            "messages pass to a node from its nearest neighbors …", "near", layout.near
        )
        lines += _option(
            'their number; "auto": 4, 8, 16 or 32, chosen by validation',
            "neighbors",
            layout.neighbors,
        )
    else:
        lines += _option("messages pass from source to target …", "source", layout.source)
        lines += _option(None, "target", layout.target)
    lines += [
        *_option(f"… and back, unless directed. {why['directed']}", "directed", layout.directed),
        *_option(
            f"the column to predict: {why['label']}; unknown where empty, NA, null or -1",
            "label",
            layout.label,
        ),
    ]
    others = [c for c in found.label_candidates if c != layout.label]
    if others:
        more = " …" if len(others) > _MOST_LISTED else ""
        lines.append(_comment(f"  other candidates: {', '.join(others[:_MOST_LISTED])}{more}"))
    if layout.label_separator:
        lines += _option(
            "text between several labels in one cell; empty: one label per cell",
            "label_separator",
            layout.label_separator,
        )
    else:
        lines.append(_comment('for several labels in one cell: label_separator = ";"'))
    if layout.split:
        lines += _option(f"the sets: {why['split']}", "split", layout.split)
    else:
        lines += _option(f"shares of the known labels: {why['split']}", "train_share", 0.6)
        lines += _option(None, "val_share", 0.2)
        lines.append(_comment('or files with ids: train_ids = "train.txt", val_ids, test_ids'))
    together = "rows that belong together stay in one set if a split is drawn"
    if layout.group:
        lines += _option(f"{together}: {why['group']}", "group", layout.group)
    else:
        lines.append(_comment(f'{together}: group = "column"'))
    if layout.decimal == ",":
        lines += _option(f"decimal commas: {why['decimal']}", "decimal", layout.decimal)
    if edges is not None:
        skip = 'to leave out edges with an id that no node has: unknown_ids = "skip"'
        lines.append(_comment(skip))
    lines += ["", "# Kinds: numeric, categorical, text (words), vector (a list of numbers)."]
    lines += _columns("tables.features", layout.features, found.kinds, found.left_out)
    if edges is not None:
        lines += ["", "# Features of edges: numeric, categorical or vector."]
        lines += _columns(
            "tables.edge_features", layout.edge_features, found.edge_kinds, found.edge_left_out
        )
    lines += [
        "",
        "# Every other option has a default. List them: unimp recipe show PATH_OF_THIS_FILE",
        f"# The preset {FOR_TABLES} decides how long to train, unless you name another one:",
        *(f"#   unimp train --preset {name:<7}{preset.about}" for name, preset in PRESETS.items()),
        "# If you set options of one model, it is trained alone instead of an ensemble:",
        "# [train]",
        "# epochs = 200",
        "# patience = 50  # stop after this many epochs without an equal or better score",
    ]
    return "\n".join(lines) + "\n"


def _table(key: str, table: Table, folder: Path) -> list[str]:
    path = os.path.relpath(Path(table.name).resolve(), folder.resolve())
    return _option(f"{table.num_rows:,} rows", key, path)


def _option(why: str | None, key: str, value: Any) -> list[str]:
    line = tomli_w.dumps({key: value}).rstrip()
    for before, after in (("[\n    ", "["), (",\n    ", ", "), (",\n]", "]")):  # a list in one line
        line = line.replace(before, after)
    return [line] if why is None else [_comment(why), line]


def _comment(text: str) -> str:
    return "# " + " ".join(text.split()) if not text.startswith(" ") else "#" + text


def _columns(
    section: str, kinds: Mapping[str, str], reasons: Mapping[str, str], left_out: Mapping[str, str]
) -> list[str]:
    lines = [f"[{section}]"]
    for column, kind in kinds.items():
        lines.append(f"{_option(None, column, kind)[0]}  {_comment(reasons[column])}")
    for column, why in left_out.items():
        lines.append(_comment(f"left out, {why}: {column}"))
    return lines
