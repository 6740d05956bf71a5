"""Usual names of columns, and whether the first line of a CSV file contains names at all."""

from __future__ import annotations

import re
from collections.abc import Sequence

from unimp.data.tables.values import NO_VALUE

ID_NAMES = ("id", "node", "node_id", "nodeid", "name", "key", "uid", "uuid")
END_NAMES = (
    *(("source", "target"), ("src", "dst"), ("from", "to"), ("source_id", "target_id")),
    *(("u", "v"), ("head", "tail"), ("start", "end"), ("citing", "cited"), ("a", "b")),
)
LABEL_NAMES = ("label", "labels", "class", "classes", "y", "target", "category", "tag", "tags")
GROUP_NAMES = ("group", "groups", "group_id")
ROW_NAMES = ("", "index", "idx", "row", "rows", "line", "unnamed: 0", "nr", "no")
_AMOUNT = re.compile(
    r"\b(amount|weight|value|count|number|num|price|cost|total|sum|quantity|qty|score|rank|rating|"
    r"size|length|distance|duration|time|timestamp|date|year|month|day|hour|age|frequency|freq|"
    r"probability|share|rate|level)s?\b"
)
_END = re.compile(
    r"\b(id|ids|node|user|customer|account|person|author|paper|sender|receiver|buyer|seller|payer|"
    rf"payee|parent|child|{'|'.join(name for pair in END_NAMES for name in pair)})\b"
)
_NUMBER = re.compile(r"[+-]?(\d+[.,]?\d*|[.,]\d+)(e[+-]?\d+)?", re.IGNORECASE)
_USUAL = {name for names in (ID_NAMES, *END_NAMES, LABEL_NAMES, GROUP_NAMES) for name in names}


def is_amount(column: str) -> bool:
    """Return whether a name means row numbers or amounts: `row`, `weight`, `totalAmount`."""
    return column.strip().lower() in ROW_NAMES or bool(_AMOUNT.search(_words(column)))


def is_end(column: str) -> bool:
    """Return whether a name may mean one end of edges: `from_node`, `senderId`."""
    return bool(_END.search(_words(column)))


def _words(column: str) -> str:
    """Return the words of a name: `senderId` and `sender_id` are both `sender id`."""
    return re.sub(r"[\W\d_]+", " ", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", column)).lower()


def is_data(first: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Return whether the first line of a file is a row of data and the file has no header.

    Every cell of such a row resembles its column: it is a number above numbers, or its letters and
    digits alternate as in most cells below. In addition, one cell must be evidence against a name:
    a number above numbers, or a value that occurs again. A usual name such as `id` that does
    not occur again is evidence for a header. (Numbers as the names of all columns are also refused:
    pandas writes 0, 1, … if columns have no names.)
    """
    below = {cell.strip() for row in rows for cell in row}
    evidence = len(set(first)) < len(first)
    for column, name in enumerate(first):
        name = name.strip()
        cells = [row[column].strip() for row in rows if len(row) == len(first)]
        filled = [cell for cell in cells if cell not in NO_VALUE]
        if not filled or (name in NO_VALUE and len(filled) < len(cells)):  # a gap like others
            continue
        numbers = all(map(_NUMBER.fullmatch, filled))
        if bool(_NUMBER.fullmatch(name)) != numbers:
            return False
        usual = name.lower() in _USUAL or is_amount(name)
        if usual and name not in below:
            return False
        if not numbers and 2 * [_form(cell) for cell in filled].count(_form(name)) < len(filled):
            return False
        evidence = evidence or numbers or name in below
    return evidence


def _form(text: str) -> str:
    """Return the form of a text: `node-17` and `edge-3` are both `a-9`."""
    return re.sub(r"[^\W\d_]+", "a", re.sub(r"\d+", "9", text))
