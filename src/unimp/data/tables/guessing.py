"""Guess the meaning of the columns of two tables, with a reason for each guess.

`unimp init` writes the guesses into a recipe for the user to check. `task_from_tables` uses them
for arguments that are not given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np

from unimp.config.choices import Decimal
from unimp.data.tables.checking import values_of
from unimp.data.tables.headers import (
    END_NAMES,
    GROUP_NAMES,
    ID_NAMES,
    LABEL_NAMES,
    ROW_NAMES,
    is_amount,
    is_end,
)
from unimp.data.tables.ids import positions, read_edges, read_ids
from unimp.data.tables.labels import known_words, read_labels
from unimp.data.tables.leakage import leaking_columns
from unimp.data.tables.number_formats import has_decimal_commas, kind_of_numbers
from unimp.data.tables.problems import Problems
from unimp.data.tables.splits import SETS
from unimp.data.tables.table import Table, is_string, to_numpy
from unimp.data.tables.transforms import Layout
from unimp.data.tables.values import NO_VALUE, words

UNJOINED = "by name or position only: no column of nodes contains the ids in edges; check this"
_BOTH_WAYS = "in both directions suit most tasks"
_LOOKED_AT = 50_000  # the number of rows that are examined
_ENOUGH = 20  # cells that show what a column contains
_MALFORMED = 0.05  # share of cells in a column of numbers that may be malformed
_MOST_CANDIDATES = 10  # other columns that the recipe names as possible labels
_FEW = 100  # the most values of a label or category, unless a twentieth of the rows is more


@dataclass(frozen=True)
class Guess:
    """A layout with reasons: per option, per feature column and per omitted column."""

    layout: Layout
    reasons: Mapping[str, str]
    kinds: Mapping[str, str] = field(default_factory=dict)
    edge_kinds: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    edge_left_out: Mapping[str, str] = field(default_factory=dict)
    label_candidates: Sequence[str] = ()
    cautions: Sequence[str] = ()  # guesses that the user should check

    @property
    def joins(self) -> bool:
        """Whether a column of nodes contains the ids in edges."""
        return self.reasons["id"] != UNJOINED

    @property
    def label_options(self) -> str:
        """The options that name the label, for a message about a label that was not guessed."""
        return ", or ".join(f"--label {c}" for c in self.label_candidates[:5]) or "--label COLUMN"


def guess(nodes: Table, edges: Table | None, given: Mapping[str, Any] | None = None) -> Guess:
    """Return the most likely layout of two tables; `given` options are kept.

    edges: None if `given` names the columns `near`.
    """
    given = dict(given or {})
    reasons = dict.fromkeys(given, "as given")
    layout = Layout(**given)
    cautions: list[str] = []
    if edges is None:
        layout = replace(layout, id=given.get("id", _unique_id(nodes, layout.near)))
        why = "unique in nodes" if layout.id else "no column names the nodes: row numbers, from 1"
        reasons = {"id": why, "directed": f"Messages {_BOTH_WAYS}"} | reasons
        edges = Table("edges", nodes.arrow.select([]))
    else:
        ids, ends, why = _join(nodes, edges, given, cautions)
        layout = replace(layout, id=ids, source=ends[0], target=ends[1])
        reasons = {"id": why, "source": why, "target": why} | reasons
        if "directed" not in given:
            directed, reasons["directed"] = _directed(nodes, edges, layout)
            layout = replace(layout, directed=directed)
    if not any(key in given for key in ("split", "train_ids")):
        column = next((c for c in nodes.columns if _is_split(nodes, c)), "")
        layout = replace(layout, split=column)
        reasons["split"] = (
            "its values are names of sets"
            if column
            else "no column contains train, val and test; each seed draws a split"
        )
    if "group" not in given:
        column = next((c for c in nodes.columns if c.lower() in GROUP_NAMES), "")
        layout = replace(layout, group=column)
        reasons["group"] = "by its name"
    used = {layout.id, layout.split, layout.group} | set(layout.label_columns)
    candidates: list[str] = []
    if "label" not in given:
        label, reasons["label"], candidates = _label(nodes, used | set(layout.near))
        layout = replace(layout, label=label)
        used |= set(layout.label_columns)
    if "label_separator" not in given and isinstance(layout.label, str) and nodes.has(layout.label):
        layout = replace(layout, label_separator=_separator(nodes, layout.label))
    ends_used = {layout.source, layout.target}
    if "decimal" not in given:
        why_comma = _decimal_comma(nodes, used) or _decimal_comma(edges, ends_used)
        layout = replace(layout, decimal="," if why_comma else ".")
        reasons["decimal"] = why_comma
    kinds, why_kinds, left_out = _kinds(nodes, used, layout.decimal, edge=False)
    if "features" not in given:
        leaks = _leaks(nodes, replace(layout, features=kinds))
        cautions += [f"{c} of {nodes.name} is left out: {why}" for c, why in leaks.items()]
        left_out |= leaks
        kinds = {column: kind for column, kind in kinds.items() if column not in leaks}
        layout = replace(layout, features=kinds)
    edge_kinds, why_edges, edge_left_out = _kinds(edges, ends_used, layout.decimal, edge=True)
    if "edge_features" not in given:
        layout = replace(layout, edge_features=edge_kinds)
    return Guess(
        layout, reasons, why_kinds, why_edges, left_out, edge_left_out, candidates, cautions
    )


def _unique_id(nodes: Table, near: Sequence[str]) -> str:
    """Return a column that names the nodes: by its name, or text without repetitions."""
    free = [column for column in sorted(nodes.columns, key=_id_rank) if column not in near]
    for column in free:
        named = column.strip().lower() in (*ID_NAMES, *ROW_NAMES)
        is_name = is_string(nodes.kind(column)) and not _kind_of_text(nodes, column, ".")[0]
        if (named or is_name) and read_ids(nodes, column, Problems(), unique=True) is not None:
            return column
    return ""


def _join(
    nodes: Table, edges: Table, given: Mapping[str, Any], cautions: list[str]
) -> tuple[str, tuple[str, str], str]:
    """Return the id column, and the source and target columns that contain its values.

    Row numbers and amounts can be equal to ids; they are not taken as ends, and if more than two
    columns qualify, a caution names them.
    """
    order = [given["id"]] if "id" in given else sorted(nodes.columns, key=_id_rank)
    lower = {c.lower(): c for c in reversed(edges.columns)}
    named = next((pair for pair in END_NAMES if set(pair) <= set(lower)), None)
    head = Table(edges.name, edges.arrow.slice(0, _LOOKED_AT))
    read = ((c, read_ids(head, c, Problems(), unique=False)) for c in edges.columns)
    possible = {column: values for column, values in read if values is not None and len(values)}
    doubtful = {c for c in possible if is_amount(c) or _counts(possible[c])}
    if len(edges.columns) - len(doubtful) < 2:  # such as a path 0–1–2–…
        doubtful = set()
    best: tuple[float, str, tuple[str, str], list[str]] | None = None
    for column in order:
        values = read_ids(nodes, column, Problems(), unique=True)
        if values is None:
            continue
        shares = {c: float(np.mean(positions(v, values) >= 0)) for c, v in possible.items()}
        fitting = [c for c in possible if shares[c] > 0.5]
        ends = [c for c in fitting if c not in doubtful]
        # Amounts may be equal to ids by chance, but rarely in every row and to so many ids.
        rank = {c: (-round(shares[c], 3), not is_end(c), -len(possible[c].unique())) for c in ends}
        ends = sorted(sorted(ends, key=rank.__getitem__)[:2], key=edges.columns.index)
        if named and all(lower[name] in fitting for name in named):
            ends = fitting = [lower[name] for name in named]
        if len(ends) == 2:
            found = (shares[ends[0]] + shares[ends[1]], column, (ends[0], ends[1]), fitting)
            best = found if best is None or found[0] > best[0] + 1e-9 else best
            if best[0] == 2:  # every end is an id; no other column can fit better
                break
    source, target = given.get("source"), given.get("target")
    if best is not None:
        ends2 = (source or best[2][0], target or best[2][1])
        if len(best[3]) > 2 and not (source and target):
            cautions.append(
                f"{', '.join(best[3][:-1])} and {best[3][-1]} of {edges.name} all contain ids of "
                f"nodes; source is {ends2[0]} and target is {ends2[1]}. Check both options"
            )
        return best[1], ends2, "unique in nodes, and contains the ids in edges"
    both = [c for c in edges.columns if c not in doubtful] + ["source", "target"]
    pair = tuple(lower[name] for name in named) if named else tuple(both[:2])
    chosen = order[0] if order else "id"
    return chosen, (source or pair[0], target or pair[1]), UNJOINED


def _rank(column: str, names: Sequence[str]) -> int:
    lower = column.lower()
    return names.index(lower) if lower in names else len(names)


def _id_rank(column: str) -> int:
    """Return the place of a column among possible ids: usual names first, row numbers last."""
    return _rank(column, ID_NAMES) + (column.strip().lower() in ROW_NAMES)


def _directed(nodes: Table, edges: Table, layout: Layout) -> tuple[bool, str]:
    problems = Problems()
    ids = read_ids(nodes, layout.id, problems, unique=True)
    joined = None
    if ids is not None:
        ends = (layout.source, layout.target)
        joined = read_edges(edges, *ends, ids, problems, unknown_ids="skip")
    share = 0.0 if joined is None else joined.share_reversed(len(ids))
    if share > 0.95:
        return True, f"{share:.0%} of edges are listed in both directions already"
    listed = f"{share:.0%} of edges are listed in both directions"
    return False, f"{listed}; messages {_BOTH_WAYS}"


def _is_split(nodes: Table, column: str) -> bool:
    if not is_string(nodes.kind(column)):
        return False
    found = words(nodes, column, Problems()).drop_null().unique()
    if not 2 <= len(found) <= 6:
        return False
    names = {str(name).lower() for name in found.to_pylist()}
    return names <= set(SETS) and bool(names & {"train", "training"})


def _label(nodes: Table, used: set[str]) -> tuple[str | list[str], str, list[str]]:
    free = [c for c in nodes.columns if c not in used]
    several = [c for c in free if c.startswith("label_")]
    if len(several) > 1:
        return several, "columns whose names begin with label_", []
    named = sorted(
        (c for c in free if c.lower() in LABEL_NAMES), key=lambda c: _rank(c, LABEL_NAMES)
    )
    repeating = (c for c in free if _repeats(nodes, c))
    if named:
        return named[0], "by its name", list(islice(repeating, _MOST_CANDIDATES))
    candidates = list(repeating)
    gaps = [c for c in candidates if _known(nodes, c).null_count]
    if len(gaps) == 1:
        return gaps[0], "few different values, and some are missing", candidates
    shares = sorted((_known(nodes, c).null_count / nodes.num_rows, c) for c in gaps)
    # Most nodes have no label; other columns have few missing values.
    if len(shares) > 1 and shares[-1][0] > 0.5 and shares[-1][0] > 2 * shares[-2][0]:
        missing, column = shares[-1]
        return column, f"few different values, {missing:.0%} missing", candidates
    return "", "no column is clearly the label", candidates


def _known(nodes: Table, column: str) -> Any:
    return known_words(words(nodes, column, Problems()))


def _repeats(nodes: Table, column: str) -> bool:
    """Return whether a column has few enough values to be classes."""
    import pyarrow as pa

    kind = nodes.kind(column)
    if not (is_string(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        return False
    known = _known(nodes, column)
    return 2 <= len(known.drop_null().unique()) <= _few(len(known))


def _few(rows: int) -> int:
    return max(2, min(_FEW, rows // 3), rows // 20)


def _separator(nodes: Table, column: str) -> str:
    """Return the separator of several labels in a cell, if splitting gives fewer labels."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not is_string(nodes.kind(column)):
        return ""
    known = _known(nodes, column).drop_null()
    for mark in (";", "|", ","):
        share = pc.mean(pc.match_substring(known, mark).cast(pa.float64())).as_py() or 0.0
        if share < 0.05:
            continue
        parts = pc.utf8_trim_whitespace(pc.list_flatten(pc.split_pattern(known, mark)))
        if len(parts.unique()) < len(known.unique()):
            return mark
    return ""


def _leaks(nodes: Table, layout: Layout) -> dict[str, str]:
    """Return the feature columns that determine the label, and how."""
    step = -(-nodes.num_rows // _LOOKED_AT)
    if step > 1:
        nodes = Table(
            nodes.name, nodes.arrow.take(np.arange(0, nodes.num_rows, step)), nodes.delimiter
        )
    labels = read_labels(nodes, layout, Problems()) if layout.label else None
    if labels is None:
        return {}
    return leaking_columns(values_of(nodes, layout, layout.features, Problems()), *labels)


def _decimal_comma(table: Table, used: set[str]) -> str:
    """Return why numbers of a table have decimal commas; empty if they do not."""
    if table.delimiter != ";":  # with other delimiters, 1,5 may be two numbers
        return ""
    for column in table.columns:
        if column in used or not is_string(table.kind(column)):
            continue
        cells = _cells(table, column)
        if len(cells) and has_decimal_commas(cells):
            return f"{column} of {table.name} contains numbers such as {_example(cells)}"
    return ""


def _example(cells: Any) -> str:
    import pyarrow.compute as pc

    return str(cells.filter(pc.match_substring(cells, ","))[0].as_py())


def _cells(table: Table, column: str) -> Any:
    """Return the text of the examined cells without missing ones."""
    import pyarrow as pa
    import pyarrow.compute as pc

    text = words(table, column, Problems()).drop_null()
    gaps = pc.is_in(text, value_set=pa.array(NO_VALUE, text.type))
    return text.filter(pc.invert(gaps)).slice(0, _LOOKED_AT)


def _kinds(
    table: Table, used: set[str], decimal: Decimal, *, edge: bool
) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Return the kinds of columns, their reasons, and the omitted columns with reasons."""
    kinds: dict[str, str] = {}
    reasons: dict[str, str] = {}
    left_out: dict[str, str] = {}
    for column in table.columns:
        if column in used:
            continue
        kind, why = _kind(table, column, decimal)
        if kind == "text" and edge:
            kind, why = "", "text; features of edges are numeric, categorical or vector"
        if kind:
            kinds[column], reasons[column] = kind, why
        else:
            left_out[column] = why
    return kinds, reasons, left_out


def _kind(table: Table, column: str, decimal: Decimal) -> tuple[str, str]:
    import pyarrow as pa

    values = table.get(column)
    kind = values.type
    if values.null_count == len(values):
        return "", "empty"
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if any(check(kind) for check in lists):
        inner = kind.value_type
        if pa.types.is_integer(inner) or pa.types.is_floating(inner):
            return "vector", "lists of numbers"
        return "", f"lists of {inner}"
    if is_string(kind):
        return _kind_of_text(table, column, decimal)
    numeric = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean)
    if not any(check(kind) for check in numeric):
        return "", f"type {kind}; convert it to a number, such as days since a date"
    if pa.types.is_floating(kind) and decimal == "," and table.delimiter not in ("", ","):
        return "", "numbers with points, but others have decimal commas; use one format"
    distinct = len(values.unique())
    missing = values.null_count / len(values)
    gaps = f", {missing:.0%} missing" if missing else ""
    if distinct == 1 and not missing:
        return "", "the same in every row"
    if pa.types.is_integer(kind) and distinct == len(values):
        if column.lower() in (*ROW_NAMES, *ID_NAMES) or _counts(values):
            return "", "all different, like row numbers"
    elif pa.types.is_integer(kind) and 2 < distinct <= 20:
        return "numeric", f"numbers, {distinct} different{gaps}; categorical if they are codes"
    return "numeric", f"numbers{gaps}"


def _counts(values: Any) -> bool:
    """Return whether the values are numbers that count the rows."""
    import pyarrow as pa

    numbers = to_numpy(values) if pa.types.is_integer(values.type) else np.zeros(2)
    return bool((np.diff(numbers) == 1).all())


def _kind_of_text(table: Table, column: str, decimal: Decimal) -> tuple[str, str]:
    import pyarrow.compute as pc

    everything = words(table, column, Problems()).drop_null()
    if not len(everything):
        return "", "empty"
    looked_at = everything.slice(0, _LOOKED_AT)
    cells = _cells(table, column)
    numbers = kind_of_numbers(cells, decimal, table.delimiter) if len(cells) else None
    if numbers is not None:
        return numbers
    distinct, rows = len(everything.unique()), len(everything)
    if distinct == 1 and rows == table.num_rows:
        return "", "the same in every row"
    tokens = pc.list_flatten(pc.utf8_split_whitespace(looked_at))
    long = len(tokens) / len(looked_at)
    if pc.all(pc.match_substring_regex(looked_at, r"^\d{4}-\d\d-\d\d")).as_py():
        return "", "dates; convert them to numbers, such as days since a date"
    if distinct <= _few(rows):
        return "categorical", f"{distinct} different values"
    mark = "," if decimal == "," else r"\."
    number = rf"^[+-]?(\d+({mark}\d*)?|{mark}\d+)([eE][+-]?\d+)?$"
    wrong = looked_at.filter(pc.invert(pc.match_substring_regex(looked_at, number)))
    if len(looked_at) >= _ENOUGH and 0 < len(wrong) <= _MALFORMED * len(looked_at):
        return "numeric", f"numbers, except {wrong[0].as_py()!r}; `unimp check` names such cells"
    if long >= 2.5 or (long > 1.2 and len(tokens.unique()) < 0.6 * len(tokens)):
        return "text", f"{long:.1f} words per cell"
    if distinct > rows / 2:
        return "", "nearly all different, like names; declare it as text if the words matter"
    return "categorical", f"{distinct} different values; the 1,000 most frequent get a column"
