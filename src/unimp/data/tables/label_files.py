"""Labels that arrive after training: from a file, by name, or as a tensor."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from unimp.config.arguments import FilePath
from unimp.data.tables.ids import read_ids
from unimp.data.tables.labels import UNKNOWN
from unimp.data.tables.problems import Problems
from unimp.data.tables.reading import open_table
from unimp.data.tables.table import Table
from unimp.data.tables.transforms import Transforms
from unimp.data.tables.values import NO_VALUE, without_point, words
from unimp.errors import TaskError
from unimp.tasks.labels import UNLABELED, checked_labels
from unimp.tasks.names import Names, classes_of, label_separator, nodes_of
from unimp.tasks.task import Task

SHOWN_PROBLEMS = 10
NONE = "none"
"""The cell that means that a node of binary tasks has none of the labels."""
_FRACTION = re.compile(r"[+-]?\d*\.\d*[1-9]\d*")
_TRUTHS = {"true": "1", "yes": "1", "1.0": "1", "false": "0", "no": "0", "0.0": "0"}


@runtime_checkable
class ArrayLike(Protocol):
    """A value that numpy can convert to an array, such as a tensor or a Series of pandas."""

    def __array__(self) -> np.ndarray[Any, Any]:
        """Return the values as an array."""


Given = Mapping[Any, Any] | Sequence[Any] | ArrayLike | FilePath
"""Accepted forms of labels: {node: class} by names (by numbers if nodes have no names), an array,
or the path of a file."""


def later_labels(given: Given, task: Task) -> Tensor:
    """Return labels in the form of the task's labels, UNLABELED if nothing is given.

    A mapping refers to nodes and classes by name (the integer 7 means the name "7"), or by number
    if they have no names. For binary tasks it is {node: {task: 0 or 1}}. An array or list has the
    shape of the task's labels. A path is a label file.
    """
    if isinstance(given, str | os.PathLike):
        return read_labels(Path(given), task)
    if isinstance(given, Mapping):
        return _from_mapping(given, task)
    if isinstance(given, list | tuple | ArrayLike):
        labels = checked_labels(given, task.graph.num_nodes, task.num_classes)
        if labels.ndim == task.labels.ndim:
            return labels
    raise TaskError(
        f"labels are a {type(given).__name__}; give {{node: class}}, an array of whole numbers of "
        f"shape {tuple(task.labels.shape)} with -1 where nothing is new, or the path of a file."
    )


def _from_mapping(given: Mapping[Any, Any], task: Task) -> Tensor:
    labels = torch.full_like(task.labels, UNLABELED)
    nodes, classes = nodes_of(task), classes_of(task)
    for node, label in given.items():
        place = nodes.find(node)
        if not task.is_multilabel:
            labels[place] = classes.find(label)
            continue
        if not isinstance(label, Mapping):
            raise TaskError(
                f"the label of node {node!r} is {label!r}, but this task has several labels per "
                "node. Give {node: {task: 0 or 1}}, or a tensor."
            )
        for name, value in label.items():
            column = classes.find(name)
            if value not in (0, 1):
                raise TaskError(f"node {node!r}, task {name!r}: {value!r} is not 0 or 1.")
            labels[place, column] = int(value)
    return labels


def read_labels(path: Path, task: Task) -> Tensor:
    """Read a label file into the form of the task's labels, UNLABELED for nodes without a row.

    The file is CSV, Parquet or Arrow with the columns node and label, or with the names of these
    columns in the tables of training. They contain names of the task, or numbers if it has no
    names. A row whose label is empty, -1 or NA is ignored. For binary tasks, a cell may contain
    several names, separated by the label_separator of the tables or by a semicolon. Together, the
    rows of a node list all labels that are 1; the others are 0. `none` means that all are 0.
    With a column value (or Value), each row sets the named entries to 0 or 1 and leaves the others
    unknown. In a task with one class per node, a value of 0 is refused: it names a class that a
    node does not have. Only a column with fractions is taken for amounts and ignored. All problems
    are reported at once.
    """
    problems = Problems()
    own = _own_columns(task)
    texts = ["node", "label", "value", *own.values()]
    table = open_table(path, "labels", problems, as_text=texts)
    problems.refuse()
    assert table is not None
    at, label = (_present(table, name, own[name], problems) for name in ("node", "label"))
    problems.refuse()
    ids = read_ids(table, at, problems, unique=False)
    values = _value_column(table, {at, label})
    cells = {c: words(table, c, problems) for c in (label, values) if c}
    problems.refuse()

    classes = classes_of(task)
    truth = Names(("0", "1"), 2, "value")
    written_truths = cells[values].to_pylist() if values else ()
    truths = [_known(text and _TRUTHS.get(text.lower(), text), truth) for text in written_truths]
    are_amounts = any(_FRACTION.fullmatch(text or "") for text in truths)
    whole_sets = task.is_multilabel and not truths
    between = label_separator(task) if task.is_multilabel else ""
    pairs = zip(cells[label].to_pylist(), without_point(cells[label]).to_pylist(), strict=True)
    written = [plain if text is not None and text not in classes else text for text, plain in pairs]
    named = [_names_in(text, classes, between, none=whole_sets) for text in written]
    value = [1] * table.num_rows
    if task.is_multilabel and truths:
        named = [names if v is not None else None for names, v in zip(named, truths, strict=True)]
        value = _places(table, values, truths, truth, problems)
    elif "0" in truths and not are_amounts:
        problems.note(
            table.name,
            "the value is 0, so the row names a class that the node does not have",
            "remove the row, since each node of this task has one class; if the column means "
            "something else, rename it",
            column=values,
            rows=[row for row, one in enumerate(truths) if one == "0"],
        )
    given = [
        str(one) if names is not None else None
        for one, names in zip(ids.to_pylist(), named, strict=True)
    ]
    node = _places(table, at, given, nodes_of(task), problems)
    row = [number for number, names in enumerate(named) for _ in names or ()]
    entry = _places(
        table, label, [one for names in named for one in names or ()], classes, problems, rows=row
    )
    labels = torch.full_like(task.labels, UNLABELED)
    twice: list[int] = []
    if whole_sets:
        labels[torch.tensor([n for n in node if n >= 0], dtype=torch.int64)] = 0
        twice = _none_and_some(node, named)
    for number, column in zip(row, entry, strict=True):
        if node[number] < 0 or column < 0:
            continue
        place = (node[number], column) if task.is_multilabel else (node[number],)
        one = value[number] if task.is_multilabel else column
        if not whole_sets and int(labels[place]) not in (UNLABELED, one):
            twice.append(number)
        labels[place] = one
    if twice:
        what = f"node {given[twice[0]]!r} has another label in an earlier row"
        problems.note(table.name, what, "keep one of them", column=at, rows=twice)
    problems.refuse()
    return labels


def _own_columns(task: Task) -> dict[str, str]:
    """Return the names that the tables of training have for the columns node and label."""
    if not isinstance(task.tables, Transforms):
        return {"node": "node", "label": "label"}
    layout = task.tables.layout
    return {
        "node": layout.id or "node",
        "label": layout.label if isinstance(layout.label, str) else "label",
    }


def _value_column(table: Table, others: Set[str]) -> str:
    """Return the name of the column value, in small or capital letters; empty without one."""
    found = [c for c in table.columns if c.lower() == "value" and c not in others]
    return "value" if "value" in found else next(iter(found), "")


def _present(table: Table, name: str, own: str, problems: Problems) -> str:
    """Return which of two names the table has; note a problem if it has neither."""
    if not table.has(name) and not table.has(own):
        accepted = repr(name) if name == own else f"{name!r} or {own!r}"
        there = ", ".join(table.columns[:SHOWN_PROBLEMS])
        fix = f"name a column {accepted}; the columns are {there}"
        problems.note(table.name, "the column does not exist", fix, column=name)
    return name if table.has(name) else own


def read_label_files(paths: Sequence[Path], task: Task) -> Tensor | None:
    """Read several label files; later files override earlier ones. None without files."""
    labels = None
    for path in paths:
        later = read_labels(path, task)
        labels = later if labels is None else torch.where(later >= 0, later, labels)
    return labels


def _names_in(text: str | None, names: Names, between: str, *, none: bool) -> list[str] | None:
    """Return the names in a cell; None if the label is unknown.

    between: the separator of several names; empty if a cell is one name. none: whether NONE means
    that the node has no label.
    """
    text = _known(text, names)
    if text is None:
        return None
    if not between or text in names:
        return [text]
    if none and text == NONE:
        return []
    parts = (_known(part.strip(), names) for part in text.split(between))
    return [part for part in parts if part is not None] or None


def _none_and_some(node: Sequence[int], named: Sequence[list[str] | None]) -> list[int]:
    """Return rows that contradict an earlier row on whether the node has any label."""
    first: dict[int, bool] = {}
    rows = enumerate(zip(node, named, strict=True))
    return [
        row
        for row, (at, names) in rows
        if at >= 0 and names is not None and first.setdefault(at, bool(names)) != bool(names)
    ]


def _known(text: str | None, names: Names) -> str | None:
    """Return a cell, or None if it means an unknown label."""
    nothing = text is None or (text in (*UNKNOWN, *NO_VALUE) and text not in names)
    return None if nothing else text


def _places(
    table: Table,
    column: str,
    cells: Sequence[str | None],
    names: Names,
    problems: Problems,
    *,
    rows: Sequence[int] | None = None,
) -> list[int]:
    """Return the number of each cell's name; −1 if it is None or unknown, which is a problem.

    rows: the row of each cell; None if there is one cell per row.
    """
    found = {text: names.get(text) for text in dict.fromkeys(cells) if text is not None}
    lost: dict[str, list[int]] = {text: [] for text, number in found.items() if number is None}
    for row, text in zip(range(len(cells)) if rows is None else rows, cells, strict=True):
        if text in lost:
            lost[text].append(row)
    # Searching similar names is slow, so only the problems shown get a hint.
    for text in list(lost)[:SHOWN_PROBLEMS]:
        what, fix = f"no {names.kind} {text!r}", names.hint(text)
        problems.note(table.name, what, fix, column=column, rows=lost[text])
    if len(lost) > SHOWN_PROBLEMS:
        more = f"{len(lost) - SHOWN_PROBLEMS:,} further unknown names"
        problems.note(table.name, more, "correct them too", column=column)
    numbers = {text: -1 if number is None else number for text, number in found.items()}
    return [-1 if text is None else numbers[text] for text in cells]
