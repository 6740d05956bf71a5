"""Labels, groups and sets out of a table of nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unimp.data.tables.ids import not_whole, positions
from unimp.data.tables.problems import Problems
from unimp.data.tables.table import Table, to_numpy
from unimp.data.tables.transforms import Layout
from unimp.data.tables.values import NO_VALUE, NUMBER, words
from unimp.errors import nearest_names
from unimp.tasks.labels import UNLABELED

UNKNOWN = (*NO_VALUE, "-1", "-1.0")
"""What a label column says where a label is not known."""
_COULD_BE_NAMES = ("NA", "N/A", "None")
_YES, _NO = ("1", "true", "yes", "1.0"), ("0", "false", "no", "0.0")
_MANY = 20  # known labels from which all different ones are no classes

Labels = tuple[NDArray[np.int64] | NDArray[np.int8], tuple[str, ...]]


def read_labels(nodes: Table, layout: Layout, problems: Problems) -> Labels | None:
    """Labels as a task holds them, and names of classes; None, and a note, where there are none."""
    if not all(column in nodes.columns for column in layout.label_columns):
        return None
    if not isinstance(layout.label, str):
        return _binary_columns(nodes, layout.label_columns, problems)
    text = _words_of_labels(nodes, layout.label, problems)
    if text is None:
        return None
    if text.null_count == len(text):
        problems.note(
            nodes.name, "no label is known", "fill in some to learn from", column=layout.label
        )
        return None
    if layout.label_separator:
        return _separated(nodes, layout, text, problems)
    return _classes(nodes, layout.label, text, problems)


def known_words(text: Any) -> Any:
    """Words of labels, null where they say that nothing is known."""
    import pyarrow as pa
    import pyarrow.compute as pc

    unknown = pc.is_in(text, value_set=pa.array(UNKNOWN, text.type))
    return pc.if_else(unknown, pa.scalar(None, text.type), text)


def read_more_labels(
    nodes: Table, layout: Layout, names: tuple[str, ...], problems: Problems
) -> NDArray[np.int64] | NDArray[np.int8] | None:
    """Labels of nodes that came after training, by the classes of training; None: no column."""
    there = [column for column in layout.label_columns if column in nodes.columns]
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
    """The number of each class that is named, −1 where none is; a name of no class is noted."""
    import pyarrow as pa

    number = positions(text, pa.array(names, pa.large_string()))
    wrong = np.flatnonzero((number < 0) & ~to_numpy(text.is_null()))
    if len(wrong):
        given = text[int(wrong[0])].as_py()
        hint = nearest_names(given, names)
        problems.note(
            nodes.name,
            f"{given[:60]!r} is no class of the run",
            f"{hint if len(hint) < 1000 else f'it has {len(names):,} others'}; empty: unknown",
            column=column,
            rows=np.unique(row[wrong]),
        )
    return number


def in_order(names: list[str]) -> list[str]:
    """Class names sorted: as numbers where all are whole numbers, as text otherwise."""
    if all(name.lstrip("-").isdecimal() and name.isascii() for name in names):
        return sorted(names, key=int)
    return sorted(names)


def _words_of_labels(
    nodes: Table, column: str, problems: Problems, names: tuple[str, ...] = ()
) -> Any:
    """A column of labels as words, null where unknown; None, and a note, where it holds amounts.

    Labels are numbers where all of them are, or all `names` of the classes of training.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    text = words(nodes, column, problems)
    if text is None:
        return None
    gone = text.filter(pc.is_in(text, value_set=pa.array(_COULD_BE_NAMES, text.type)))
    if len(gone):
        named = " and ".join(repr(name) for name in sorted(gone.unique().to_pylist()))
        problems.warn(
            nodes.name,
            f"{named} is read as unknown, in {len(gone):,} rows; if it is a class, write it "
            "otherwise",
            column=column,
        )
    text = known_words(text)
    values = nodes.get(column)
    if pa.types.is_floating(values.type):
        broken = not_whole(values)
    elif _are_numbers(pa.array(names, text.type) if names else text):
        # Whole numbers with gaps leave pandas as 1.0: with and without the point they are one.
        text = pc.replace_substring_regex(text, r"^([+-]?\d+)\.0*$", r"\1")
        amount = pc.match_substring_regex(text, r"^[+-]?\d*\.\d+(e[+-]?\d+)?$", ignore_case=True)
        broken = np.flatnonzero(to_numpy(pc.fill_null(amount, False)))
    else:
        return text
    if len(broken):
        problems.note(
            nodes.name,
            f"{str(values[int(broken[0])].as_py())[:60]} is no class",
            "labels are words or whole numbers; divide amounts into classes first",
            column=column,
            rows=broken,
        )
        return None
    return text


def _are_numbers(text: Any) -> bool:
    import pyarrow.compute as pc

    return bool(pc.all(pc.match_substring_regex(text, NUMBER)).as_py())


def _classes(nodes: Table, column: str, text: Any, problems: Problems) -> Labels | None:
    import pyarrow as pa

    names = in_order(text.drop_null().unique().to_pylist())
    known = len(text) - text.null_count
    if len(names) < 2:
        problems.note(
            nodes.name,
            f"every known label is {names[0]!r}",
            "a task needs two classes or more",
            column=column,
        )
        return None
    if len(names) == known and known >= _MANY:
        problems.note(
            nodes.name,
            f"all {known:,} labels differ",
            "classes repeat; choose the column that holds them",
            column=column,
        )
        return None
    return positions(text, pa.array(names, pa.large_string())), tuple(names)


def _separated(nodes: Table, layout: Layout, text: Any, problems: Problems) -> Labels | None:
    """Several labels in a cell: all of a row are known, or none."""
    import pyarrow as pa

    column = layout.label_columns[0]
    flat, row = _split(text, layout.label_separator)
    names = in_order(flat.unique().to_pylist())
    if not names:
        problems.note(nodes.name, "names no label", "fill in some to learn from", column=column)
        return None
    number = positions(flat, pa.array(names, pa.large_string()))
    return _several(number, row, len(text), len(names)), tuple(names)


def _split(text: Any, separator: str) -> tuple[Any, NDArray[np.int64]]:
    """The labels in each cell, and the row of each; parts that name none are left out."""
    import pyarrow.compute as pc

    parts = pc.split_pattern(text, separator)
    flat = known_words(pc.utf8_trim_whitespace(pc.list_flatten(parts)))
    row = np.repeat(np.arange(len(text)), to_numpy(pc.fill_null(pc.list_value_length(parts), 0)))
    return flat.drop_null(), row[~to_numpy(flat.is_null())]


def _several(
    number: NDArray[np.int64], row: NDArray[np.int64], num_rows: int, num_labels: int
) -> NDArray[np.int8]:
    """Rows of 0 and 1 from the labels that rows name; a row that names none is unknown."""
    labels = np.full((num_rows, num_labels), UNLABELED, dtype=np.int8)
    labels[row] = 0
    labels[row[number >= 0], number[number >= 0]] = 1
    return labels


def _binary_columns(nodes: Table, columns: list[str], problems: Problems) -> Labels | None:
    """A column of yes and no for each binary task."""
    found = [_yes_and_no(nodes, column, problems) for column in columns]
    read = [values for values in found if values is not None]
    if len(read) < len(found):
        return None
    labels = np.stack(read, axis=1)
    if not (labels != UNLABELED).any():
        problems.note(
            nodes.name,
            "no label is known",
            "fill in some to learn from",
            column=", ".join(columns),
        )
        return None
    return labels, tuple(columns)


def _yes_and_no(nodes: Table, column: str, problems: Problems) -> NDArray[np.int8] | None:
    """1, 0, and −1 where nothing is said."""
    import pyarrow as pa
    import pyarrow.compute as pc

    text = words(nodes, column, problems)
    if text is None:
        return None
    text = pc.utf8_lower(known_words(text))
    values = np.full(len(text), UNLABELED, dtype=np.int8)
    for value, said in ((1, _YES), (0, _NO)):
        values[to_numpy(pc.is_in(text, pa.array(said, text.type)))] = value
    wrong = np.flatnonzero((values == UNLABELED) & ~to_numpy(text.is_null()))
    if len(wrong):
        problems.note(
            nodes.name,
            f"{text[int(wrong[0])].as_py()[:60]!r} is neither 0 nor 1",
            "a column of binary labels holds 0, 1, or nothing where unknown",
            column=column,
            rows=wrong,
        )
    return values


def read_groups(nodes: Table, layout: Layout, problems: Problems) -> NDArray[np.int64] | None:
    """A number for the group of each node; a node without one is a group by itself."""
    if not layout.group or layout.group not in nodes.columns:
        return None
    text = words(nodes, layout.group, problems)
    if text is None:
        return None
    names = text.drop_null().unique()
    group = positions(text, names)
    alone = np.flatnonzero(group < 0)
    group[alone] = len(names) + np.arange(len(alone))
    return group
