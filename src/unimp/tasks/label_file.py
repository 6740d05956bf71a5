"""Labels that arrived after training: from a file, by name, or as a tensor."""

from __future__ import annotations

import csv
import io
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unimp.errors import RunError, TaskError, nearest_names
from unimp.tasks.labels import UNLABELED
from unimp.tasks.task import Task

SHOWN_PROBLEMS = 10
Row = dict[str, str | None]  # a cell that a line lacks is None


Given = Mapping[int, Any] | Mapping[str, Any] | Tensor | str | Path
"""Labels as they may be given: {node: class} by numbers or names, a tensor, or a file's path."""


def later_labels(given: Given, task: Task) -> Tensor:
    """Labels like the task's own, UNLABELED where nothing is given.

    A mapping names nodes and classes by their names, as strings, or by their numbers; of binary
    tasks it is {node: {task: 0 or 1}}. A tensor is like the task's labels. A path is a label file.
    """
    if isinstance(given, str | Path):
        return read_labels(Path(given), task)
    top = 1 if task.is_multilabel else task.num_classes - 1
    if isinstance(given, Tensor):
        if given.shape != task.labels.shape or given.dtype.is_floating_point:
            raise RunError(
                f"labels are {given.dtype} of shape {tuple(given.shape)}; the task's are whole "
                f"numbers of shape {tuple(task.labels.shape)}, -1 where nothing is known"
            )
        if bool((given > top).any()):
            at = torch.nonzero(given > top)[0].tolist()
            raise RunError(
                f"the label of node {at[0]} is {int(given[tuple(at)])}; the largest is {top}"
            )
        return torch.where(given >= 0, given, UNLABELED).to(task.labels.dtype)
    labels = torch.full_like(task.labels, UNLABELED)
    by_name = any(isinstance(node, str) for node in given)
    nodes = _numbers(task.node_names) if by_name else {}
    classes = _numbers(task.class_names)
    for node, label in given.items():
        place = _place(node, nodes, len(labels), "node", task)
        if not task.is_multilabel:
            labels[place] = _place(label, classes, task.num_classes, "class", task)
            continue
        if not isinstance(label, Mapping):
            raise RunError(
                f"node {node!r}: this task has several labels a node; give {{node: {{task: 0 or "
                "1}}, or a tensor of rows"
            )
        for name, value in label.items():
            column = _place(name, classes, task.num_classes, "task", task)
            if value not in (0, 1):
                raise RunError(f"node {node!r}, task {name!r} is {value!r}; it is 0 or 1")
            labels[place, column] = int(value)
    return labels


def _place(given: Any, names: Mapping[str, int], count: int, what: str, task: Task) -> int:
    """The number of a node or class that is given by name or number."""
    if isinstance(given, str):
        if given in names:
            return names[given]
        hint = _hint(given, names, count) if names else f"{task.name} has no {what} names"
        raise RunError(f"no {what} {given!r}; {hint}")
    try:
        number = operator.index(given)
    except TypeError:
        raise RunError(f"{what} {given!r} is neither a name nor a number") from None
    if not 0 <= number < count:
        limit = task.graph.num_nodes - 1
        raise RunError(
            f"{what} {number} is not there: nodes run from 0 to {limit}, classes from 0 to "
            f"{task.num_classes - 1}"
        )
    return number


def read_labels(path: Path, task: Task) -> Tensor:
    """Labels like the task's own, UNLABELED where the file says nothing.

    A file is CSV, or Parquet if its name ends in .parquet. The columns are node and label, by the
    task's names, or by numbers where it has none; a row whose label is empty says nothing. Of a
    task with binary labels each row sets one entry of a node: label names it, and a column value
    says 0 or 1 (without that column: 1). Every problem of a file is told at once.
    """
    fields, rows = _rows(path)
    if not {"node", "label"} <= set(fields):
        raise TaskError(f"{path}: the first line must name the columns node and label")
    columns = {
        "node": (_numbers(task.node_names), task.graph.num_nodes),
        "label": (_numbers(task.class_names), task.num_classes),
    }
    if task.is_multilabel and "value" in fields:
        columns["value"] = ({}, 2)
    labels = torch.full_like(task.labels, UNLABELED)
    problems: list[str] = []
    for where, row in rows:
        if row["label"] is not None and not row["label"].strip():
            continue
        found: list[int] = []
        for column, (names, count) in columns.items():
            given = (row[column] or "").strip()
            number = _number(given, names, count)
            if number is not None:
                found.append(number)
                continue
            # A search among all names takes a while, so only what is shown gets its hint.
            hint = _hint(given, names, count) if len(problems) < SHOWN_PROBLEMS else ""
            problems.append(f"{where}, {column} {given!r} is unknown; {hint}")
        if len(found) < len(columns):
            continue
        if task.is_multilabel:
            place, label = tuple(found[:2]), found[2] if len(found) > 2 else 1
        else:
            place, label = (found[0],), found[1]
        if int(labels[place]) not in (UNLABELED, label):
            problems.append(
                f"{where}, node {row['node']!r} has another label on a line above; keep one of them"
            )
        labels[place] = label
    if problems:
        shown = "\n".join(problems[:SHOWN_PROBLEMS])
        left = len(problems) - SHOWN_PROBLEMS
        more = f"\n… and {left} more" if left > 0 else ""
        raise TaskError(f"{path}:\n{shown}{more}")
    return labels


def _rows(path: Path) -> tuple[list[str], Iterator[tuple[str, Row]]]:
    """The columns of a label file, and its rows as text, each with where it stands."""
    if path.suffix == ".parquet":
        return _parquet_rows(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"cannot read {path}: {error}") from error
    reader = csv.DictReader(io.StringIO(text, newline=""), skipinitialspace=True)
    return list(reader.fieldnames or ()), ((f"line {reader.line_num}", row) for row in reader)


def _parquet_rows(path: Path) -> tuple[list[str], Iterator[tuple[str, Row]]]:
    import pyarrow as pa
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
        fields = file.schema_arrow.names
        table = file.read([name for name in ("node", "label", "value") if name in fields])
    except (OSError, pa.ArrowException) as error:
        raise TaskError(f"cannot read {path}: {error}") from error

    def told() -> Iterator[tuple[str, Row]]:
        for number, row in enumerate(table.to_pylist(), 1):
            yield f"row {number}", {name: "" if v is None else str(v) for name, v in row.items()}

    return list(fields), told()


def _numbers(names: Sequence[str] | None) -> dict[str, int]:
    return {name: number for number, name in enumerate(names or ())}


def _number(text: str, names: Mapping[str, int], count: int) -> int | None:
    """A name's number; where there are no names, the number itself."""
    if names:
        return names.get(text)
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) and int(text) < count else None


def _hint(text: str, names: Mapping[str, int], count: int) -> str:
    if not names:
        return f"numbers run from 0 to {count - 1}"
    hint = nearest_names(text, names)
    # Where nothing is near, all names are told; of a large graph that is no answer.
    return hint if len(hint) < 1000 else f"none of the {count:,} names is near it"
