"""Nodes and classes by the names that their owner gave them: the one lookup of all who ask.

Where nodes (or classes) have names, they go by names alone: a whole number is the name that says
it, as 7 and "7" are one id in tables, and never a place. Where they have none, they go by number.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from unimp.errors import TaskError, nearest_names
from unimp.tasks.task import Task

_MOST_TOLD = 20  # names that a message lists where none is near
_MOST_LETTERS = 200
_SOME = 3

WHOLE = re.compile(r"0|-?[1-9]\d{0,17}")
"""A whole number as exactly one text writes it."""

SEPARATOR = ";"
"""What stands between the names of binary tasks in a cell, where the tables do not say."""


class Names:
    """Names of one kind, each with its number; without names, the numbers up to `count`."""

    def __init__(self, names: Sequence[str] | None, count: int, kind: str) -> None:
        self.kind, self.count = kind, count
        self._numbers = None if names is None else {name: n for n, name in enumerate(names)}

    def __contains__(self, text: str) -> bool:
        return self.get(text) is not None

    def get(self, given: Any) -> int | None:
        """The number of what is given by name, or by number where there are no names."""
        text = self._written(given)
        if self._numbers is not None:
            return self._numbers.get(text, self._numbers.get(text.strip()))
        text = text.strip()
        known = re.fullmatch(r"[0-9]{1,18}", text) and int(text) < self.count
        return int(text) if known else None

    def find(self, given: Any) -> int:
        """The same; what is not there is refused with the nearest names."""
        number = self.get(given)
        if number is None:
            raise TaskError(f"no {self.kind} {given!r}; {self.hint(given)}")
        return number

    def hint(self, given: Any) -> str:
        """What may have been meant; of many names only some are told."""
        if self._numbers is None:
            numbers = f"numbers run from 0 to {self.count - 1}"
            is_number = re.fullmatch(r"\s*-?[0-9]+\s*", self._written(given))
            return numbers if is_number else f"there are no names; {numbers}"
        near = nearest_names(self._written(given), self._numbers)
        many = len(self._numbers) > _MOST_TOLD or len(near) > _MOST_LETTERS
        if many and not near.startswith("did you mean"):
            some = ", ".join(name[:40] for name in list(self._numbers)[:_SOME])
            near = f"none of the {self.count:,} names is near it; they are such as {some}"
        if isinstance(given, str):
            return near
        return f"{near} (a number is one of the names here; a tensor goes by place)"

    def _written(self, given: Any) -> str:
        """What is given as a name would say it."""
        if isinstance(given, str):
            return given
        if isinstance(given, bool | np.bool_):
            truth = str(bool(given)).lower()  # as tables name it
            return truth if self._numbers and truth in self._numbers else str(int(given))
        if isinstance(given, float | np.floating) and float(given).is_integer():
            return str(int(given))  # as ids become on their way through pandas
        try:
            return str(operator.index(given))
        except TypeError:
            raise TaskError(f"{self.kind} {given!r} is neither a name nor a number") from None


def nodes_of(task: Task) -> Names:
    """The nodes of a task, to look one up in."""
    return Names(task.node_names, task.graph.num_nodes, "node")


def classes_of(task: Task) -> Names:
    """The classes or binary tasks of a task, to look one up in."""
    kind = "binary task" if task.is_multilabel else "class"
    return Names(task.class_names, task.num_classes, kind)


def label_separator(task: Task) -> str:
    """What stands between the names of binary tasks in a cell, read and written alike."""
    return (task.tables.label_separator if task.tables else "") or SEPARATOR


def node_ids(task: Task) -> Sequence[str] | Sequence[int]:
    """What the user calls the nodes: their ids, as text or numbers, or their numbers here."""
    if task.node_names is None:
        return range(task.graph.num_nodes)
    whole = task.tables is not None and task.tables.whole_ids
    if whole and all(WHOLE.fullmatch(name) for name in task.node_names):
        return [int(name) for name in task.node_names]
    return task.node_names


def class_names(task: Task) -> tuple[str, ...]:
    """The names of classes or binary tasks; their numbers, where they have none."""
    return task.class_names or tuple(str(c) for c in range(task.num_classes))
