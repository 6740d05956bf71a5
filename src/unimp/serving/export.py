"""Labels and events as tables: Parquet, CSV or JSON lines.

A file of labels is a label file: `unimp train`, `unimp predict` and the others read it.
"""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from unimp.data.files import write_atomically
from unimp.data.outputs import TABLE, check_output
from unimp.data.tables.writing import write_table
from unimp.serving.events import label_of
from unimp.serving.reader import FIELDS, Reader
from unimp.serving.state import IN_FORCE

if TYPE_CHECKING:
    import pyarrow as pa

LINES = ".jsonl"
NONE = "none"
"""The label of a node of a binary task that has none of the labels, as in label files."""
_FORMULA = r"^'*[=+\-@\t\r]"
_NUMBER = r"^[+-]?[0-9]*\.?[0-9]+([eE][+-]?[0-9]+)?$"


def labels_table(reader: Reader) -> pa.Table:
    """The labels in force: node, label, version, at, actor and source.

    A node of a binary task has one row per name.
    """
    import pyarrow as pa

    query = """
        select now.node, label, now.version, at, now.actor, now.source
        from now join event on event.version = now.version
        where label is not null order by now.node"""
    rows = []
    for node, text, *rest in reader.rows(query):
        label = label_of(text)
        names = (label,) if isinstance(label, str) else label or (NONE,)
        rows += [(node, name, *rest) for name in names]
    names = ("node", "label", "version", "at", "actor", "source")
    types = (pa.string(), pa.string(), pa.int64(), pa.string(), pa.string(), pa.string())
    return _table(rows, dict(zip(names, types, strict=True)))


def log_table(reader: Reader) -> pa.Table:
    """All events in order, and whether each is in force; values are JSON."""
    import pyarrow as pa

    names = [*FIELDS.split(", "), "in_force"]
    whole = {"version": pa.int64(), "undoes": pa.int64(), "in_force": pa.bool_()}
    rows = [
        (*row[:-1], bool(row[-1]))
        for row in reader.rows(f"select {FIELDS}, {IN_FORCE} from event order by version")
    ]
    return _table(rows, {name: whole.get(name, pa.string()) for name in names})


def write_export(path: Path, table: pa.Table, *, force: bool = False) -> None:
    """Write a table: .parquet or .pq, .csv, or .jsonl with one object per line.

    force: replace an existing file.
    """
    check_output(path, (*TABLE, LINES), force=force)
    if path.suffix.lower() == LINES:
        write_atomically(path, json_lines(table))
    else:
        write_table(path, table)


def for_spreadsheets(table: pa.Table) -> pa.Table:
    """Put an apostrophe before texts that a spreadsheet would compute as formulas.

    Numbers stay as they are. `from_spreadsheet` removes the apostrophe again.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    for place, column in enumerate(table.schema):
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            cells = table.column(place)
            formula = pc.and_(
                pc.match_substring_regex(cells, _FORMULA),
                pc.invert(pc.match_substring_regex(cells, _NUMBER)),
            )
            quoted = pc.binary_join_element_wise("'", cells, "")
            table = table.set_column(place, column.name, pc.if_else(formula, quoted, cells))
    return table


def from_spreadsheet(cell: str) -> str:
    """A cell without the apostrophe of `for_spreadsheets`."""
    return cell[1:] if cell.startswith("'") and re.match(_FORMULA, cell) else cell


def json_lines(table: pa.Table) -> bytes:
    """One JSON object per row."""
    text = io.StringIO()
    for row in table.to_pylist():
        text.write(json.dumps(row, ensure_ascii=False) + "\n")
    return text.getvalue().encode()


def _table(rows: list[tuple[object, ...]], types: dict[str, pa.DataType]) -> pa.Table:
    import pyarrow as pa

    columns = list(zip(*rows, strict=True)) or [()] * len(types)
    arrays = [pa.array(c, type=t) for c, t in zip(columns, types.values(), strict=True)]
    return pa.table(arrays, names=list(types))
