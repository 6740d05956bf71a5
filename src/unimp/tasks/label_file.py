"""Labels that arrived after training, from a CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from unimp.errors import TaskError, nearest_names
from unimp.tasks.labels import UNLABELED
from unimp.tasks.task import Task

SHOWN_PROBLEMS = 10


def read_labels(path: Path, task: Task) -> Tensor:
    """Labels like the task's own, UNLABELED where the file says nothing.

    The columns are node and label, by the task's names, or by numbers where it has none. Of a task
    with binary labels each line sets one entry of a node: label names it, and a column value says
    0 or 1 (without that column: 1). Every problem of a file is told at once.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"cannot read {path}: {error}") from error
    reader = csv.DictReader(io.StringIO(text, newline=""), skipinitialspace=True)
    if not {"node", "label"} <= set(reader.fieldnames or ()):
        raise TaskError(f"{path}: the first line must name the columns node and label")
    columns = {
        "node": (_numbers(task.node_names), task.graph.num_nodes),
        "label": (_numbers(task.class_names), task.num_classes),
    }
    if task.is_multilabel and "value" in (reader.fieldnames or ()):
        columns["value"] = ({}, 2)
    labels = torch.full_like(task.labels, UNLABELED)
    problems: list[str] = []
    for row in reader:
        found: list[int] = []
        for column, (names, count) in columns.items():
            given = (row[column] or "").strip()
            number = _number(given, names, count)
            if number is not None:
                found.append(number)
                continue
            # A search among all names takes a while, so only what is shown gets its hint.
            hint = _hint(given, names, count) if len(problems) < SHOWN_PROBLEMS else ""
            problems.append(f"line {reader.line_num}, {column} {given!r} is unknown; {hint}")
        if len(found) < len(columns):
            continue
        if task.is_multilabel:
            place, label = tuple(found[:2]), found[2] if len(found) > 2 else 1
        else:
            place, label = (found[0],), found[1]
        if int(labels[place]) not in (UNLABELED, label):
            problems.append(
                f"line {reader.line_num}, node {row['node']!r} has another label on a line above; "
                "keep one of them"
            )
        labels[place] = label
    if problems:
        shown = "\n".join(problems[:SHOWN_PROBLEMS])
        left = len(problems) - SHOWN_PROBLEMS
        more = f"\n… and {left} more" if left > 0 else ""
        raise TaskError(f"{path}:\n{shown}{more}")
    return labels


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
