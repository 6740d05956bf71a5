"""Labels and groups from a table of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unimp.data.tables.ids import not_whole, positions
from unimp.data.tables.problems import Problems
from unimp.data.tables.table import Table, to_numpy
from unimp.data.tables.transforms import Layout
from unimp.data.tables.values import NO_VALUE, NUMBER, without_point, words
from unimp.errors import nearest_names
from unimp.tasks.known import SEVERAL_CLASSES, UNLABELED, one_class

_MINUS_ONE = ("-1", "-1.0")
UNKNOWN = (*NO_VALUE, *_MINUS_ONE)
"""Cells of a label column that mean an unknown label."""
_COULD_BE_NAMES = ("NA", "N/A", "None")
_YES, _NO = ("1", "true", "yes", "1.0"), ("0", "false", "no", "0.0")
_FILL_IN = "fill in the labels of some nodes"
_MANY = 20  # with more known labels than this, they cannot all be different classes

Labels = tuple[NDArray[np.int64] | NDArray[np.int8], tuple[str, ...]]


def read_labels(nodes: Table, layout: Layout, problems: Problems) -> Labels | None:
    """Return the labels of a task and its class names; None, with a problem, if invalid."""
    if not all(nodes.has(column) for column in layout.label_columns):
        return None
    if not isinstance(layout.label, str):
        return _binary_columns(nodes, layout.label_columns, problems)
    text = _words_of_labels(nodes, layout.label, problems)
    if text is None:
        return None
    if layout.label_separator:
        return _separated(nodes, layout, text, problems)
    return _classes(nodes, layout.label, text, problems)


def known_words(text: Any) -> Any:
    """Replace cells that mean an unknown label by null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    unknown = pc.is_in(text, value_set=pa.array(UNKNOWN, text.type))
    return pc.if_else(unknown, pa.scalar(None, text.type), text)


def names_in(nodes: Table, layout: Layout, problems: Problems) -> Any:
    """Return the distinct names of known labels in a part of the nodes, as Arrow text."""
    text = words(nodes, layout.label_columns[0], problems)
    if text is None:
        return None
    text = known_words(text)
    if layout.label_separator:
        text = _split(text, layout.label_separator)[0]
    return text.drop_null().unique()


def joined_names(found: set[str]) -> tuple[str, ...]:
    """Return the class names of several parts in order; 1.0 and 1 are one class, as in one part."""
    import pyarrow as pa

    text = pa.array(sorted(found), pa.large_string())
    if _are_numbers(text):
        text = without_point(text)
    return tuple(in_order(text.unique().to_pylist()))


def read_more_labels(
    nodes: Table, layout: Layout, names: tuple[str, ...], problems: Problems
) -> NDArray[np.int64] | NDArray[np.int8] | None:
    """Return labels of nodes added after training, in its classes; None if there is no column."""
    there = [column for column in layout.label_columns if nodes.has(column)]
    if not there:
        return None
    if not isinstance(layout.label, str):
        labels = np.full((nodes.num_rows, len(names)), UNLABELED, dtype=np.int8)
        for column in there:
            found = _yes_and_no(nodes, column, problems)
            if found is not None and column in names:
                labels[:, names.index(column)] = found
        return labels
    text = _words_of_labels(nodes, layout.label, problems, names)
    if text is None:
        return None
    if not layout.label_separator:
        return _by_name(nodes, layout.label, text, np.arange(len(text)), names, problems)
    flat, row = _split(text, layout.label_separator)
    number = _by_name(nodes, layout.label, flat, row, names, problems)
    return _several(number, row, len(text), len(names))


def _by_name(
    nodes: Table,
    column: str,
    text: Any,
    row: NDArray[np.int64],
    names: tuple[str, ...],
    problems: Problems,
) -> NDArray[np.int64]:
    """Return class numbers, −1 for null; a name that is not a class is a problem."""
    import pyarrow as pa

    number = positions(text, pa.array(names, pa.large_string()))
    wrong = np.flatnonzero((number < 0) & ~to_numpy(text.is_null()))
    if len(wrong):
        given, rows = text[int(wrong[0])].as_py(), np.unique(row[wrong])
        hint = nearest_names(given, names)
        fix = hint if len(hint) < 1000 else f"use one of its {len(names):,} classes"
        what = f"{given[:60]!r} is not a class of the run"
        problems.note(nodes.name, what, fix, column=column, rows=rows)
    return number


def in_order(names: list[str]) -> list[str]:
    """Sort class names: as numbers if all are integers, otherwise as text."""
    if all(name.lstrip("-").isdecimal() and name.isascii() for name in names):
        return sorted(names, key=int)
    return sorted(names)


def _words_of_labels(
    nodes: Table, column: str, problems: Problems, names: tuple[str, ...] = ()
) -> Any:
    """Return a column of labels as text, null if unknown; None, with a problem, for fractions.

    Labels are numbers if all of them are, or if all `names` of the classes in training are.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    text = words(nodes, column, problems)
    if text is None:
        return None
    given, text = text, known_words(text)
    doubtful = (*_COULD_BE_NAMES, *(_MINUS_ONE if _are_numbers(text) else ()))
    _warn_of_unknown(nodes.name, column, [given], doubtful, problems)
    values = nodes.get(column)
    if pa.types.is_floating(values.type):
        broken = not_whole(values)
    elif _are_numbers(pa.array(names, text.type) if names else text):
        text = without_point(text)
        amount = pc.match_substring_regex(text, r"^[+-]?\d*\.\d+(e[+-]?\d+)?$", ignore_case=True)
        broken = np.flatnonzero(to_numpy(pc.fill_null(amount, False)))
    else:
        return text
    if len(broken):
        what = f"{str(values[int(broken[0])].as_py())[:60]} is not a class"
        fix = "labels must be text or integers; divide quantities into classes first"
        problems.note(nodes.name, what, fix, column=column, rows=broken)
        return None
    return text


def _warn_of_unknown(
    file: str, column: str, given: Sequence[Any], doubtful: Sequence[str], problems: Problems
) -> None:
    """Report cells that were read as unknown labels although they could be a class."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = pa.chunked_array(given)
    gone = rows.filter(pc.is_in(rows, value_set=pa.array(doubtful, rows.type)))
    if len(gone):
        named = " and ".join(repr(name) for name in sorted(gone.unique().to_pylist()))
        cells = "1 cell" if len(gone) == 1 else f"{len(gone):,} cells"
        problems.warn(
            file,
            f"{named} means an unknown label ({cells}). If it is a class, rename it",
            column=column,
        )


def _are_numbers(text: Any) -> bool:
    import pyarrow.compute as pc

    return bool(pc.all(pc.match_substring_regex(text, NUMBER)).as_py())


def _classes(nodes: Table, column: str, text: Any, problems: Problems) -> Labels | None:
    import pyarrow as pa

    note = partial(problems.note, nodes.name, column=column)
    names = in_order(text.drop_null().unique().to_pylist())
    known = len(text) - text.null_count
    number = positions(text, pa.array(names, pa.large_string()))
    if not known:
        note("no label is known", _FILL_IN)
    elif what_is_wrong := one_class(number, len(names), names):
        note(what_is_wrong, SEVERAL_CLASSES)
    elif len(names) == known and known >= _MANY:
        fix = "name a column with classes, which occur several times"
        note(f"all {known:,} labels are different", fix)
    else:
        return number, tuple(names)
    return None


def _separated(nodes: Table, layout: Layout, text: Any, problems: Problems) -> Labels | None:
    """Return binary labels from cells with several labels; a row is known completely or not."""
    import pyarrow as pa

    column = layout.label_columns[0]
    flat, row = _split(text, layout.label_separator)
    names = in_order(flat.unique().to_pylist())
    if not names:
        problems.note(nodes.name, "no label is known", _FILL_IN, column=column)
        return None
    number = positions(flat, pa.array(names, pa.large_string()))
    labels = _several(number, row, len(text), len(names))
    if what_is_wrong := one_class(labels, len(names)):
        problems.note(nodes.name, what_is_wrong, SEVERAL_CLASSES, column=column)
        return None
    return labels, tuple(names)


def _split(text: Any, separator: str) -> tuple[Any, NDArray[np.int64]]:
    """Return all labels in all cells, and the row of each; empty parts are omitted."""
    import pyarrow.compute as pc

    parts = pc.split_pattern(text, separator)
    flat = known_words(pc.utf8_trim_whitespace(pc.list_flatten(parts)))
    row = np.repeat(np.arange(len(text)), to_numpy(pc.fill_null(pc.list_value_length(parts), 0)))
    return flat.drop_null(), row[~to_numpy(flat.is_null())]


def _several(
    number: NDArray[np.int64], row: NDArray[np.int64], num_rows: int, num_labels: int
) -> NDArray[np.int8]:
    """Return rows of 0 and 1 from pairs of row and label; a row without labels is unknown."""
    labels = np.full((num_rows, num_labels), UNLABELED, dtype=np.int8)
    labels[row] = 0
    labels[row[number >= 0], number[number >= 0]] = 1
    return labels


def _binary_columns(nodes: Table, columns: list[str], problems: Problems) -> Labels | None:
    """Return the labels of binary tasks, one column for each."""
    found = [_yes_and_no(nodes, column, problems) for column in columns]
    read = [values for values in found if values is not None]
    if len(read) < len(found):
        return None
    labels = np.stack(read, axis=1)
    what_is_wrong = one_class(labels, len(columns))
    if not (labels != UNLABELED).any():
        what_is_wrong = "no label is known"
    if what_is_wrong:
        problems.note(nodes.name, what_is_wrong, SEVERAL_CLASSES, column=", ".join(columns))
        return None
    given = [words(nodes, column, problems) for column in columns]
    _warn_of_unknown(nodes.name, ", ".join(columns), given, _MINUS_ONE, problems)
    return labels, tuple(columns)


def _yes_and_no(nodes: Table, column: str, problems: Problems) -> NDArray[np.int8] | None:
    """Return 1, 0, or −1 for an empty cell."""
    import pyarrow as pa
    import pyarrow.compute as pc

    text = words(nodes, column, problems)
    if text is None:
        return None
    text = pc.utf8_lower(known_words(text))
    values = np.full(len(text), UNLABELED, dtype=np.int8)
    for value, words_for in ((1, _YES), (0, _NO)):
        values[to_numpy(pc.is_in(text, pa.array(words_for, text.type)))] = value
    wrong = np.flatnonzero((values == UNLABELED) & ~to_numpy(text.is_null()))
    if len(wrong):
        what = f"{text[int(wrong[0])].as_py()[:60]!r} is neither 0 nor 1"
        fix = "write 0 or 1, or clear the cell if the label is unknown"
        problems.note(nodes.name, what, fix, column=column, rows=wrong)
    return values


def read_groups(nodes: Table, layout: Layout, problems: Problems) -> NDArray[np.int64] | None:
    """Return the group number of each node; a node without a group is its own group."""
    if not layout.group or not nodes.has(layout.group):
        return None
    text = words(nodes, layout.group, problems)
    if text is None:
        return None
    text = without_point(text)
    names = text.drop_null().unique()
    group = positions(text, names)
    alone = np.flatnonzero(group < 0)
    group[alone] = len(names) + np.arange(len(alone))
    return group
