"""Look up nodes and classes by the names that the user gave them.

If nodes (or classes) have names, only names are accepted: the integer 7 means the name "7", as in
tables, and never a position. If they have no names, they are referred to by number.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from unimp.errors import TaskError, nearest_names
from unimp.tasks.task import Task

_MOST_LISTED = 20  # the most names in a message if none is similar
_MOST_LETTERS = 200
_SOME = 3

WHOLE = re.compile(r"0|-?[1-9]\d{0,17}")
"""An integer in canonical form."""

SEPARATOR = ";"
"""The default separator of the names of binary tasks in a cell."""


class Names:
    """Names and their numbers; without names, the numbers below `count`."""

    def __init__(self, names: Sequence[str] | None, count: int, kind: str) -> None:
        self.kind, self.count = kind, count
        # The names of a store are searched in its file: a dictionary of them would fill the memory.
        self._search = getattr(names, "number_of", None)
        self._some: Sequence[str] = [] if names is None else names[:_SOME]
        self._numbers = None
        if names is not None:
            self._numbers = {} if self._search else {name: n for n, name in enumerate(names)}

    def __contains__(self, text: str) -> bool:
        return self.get(text) is not None

    def get(self, given: Any) -> int | None:
        """Return the number of a name, or of a number if there are no names; None if unknown."""
        text = self._as_text(given)
        if self._search is not None:
            found: int | None = self._search(text.strip())
            return found
        if self._numbers is not None:
            return self._numbers.get(text, self._numbers.get(text.strip()))
        text = text.strip()
        known = re.fullmatch(r"[0-9]{1,18}", text) and int(text) < self.count
        return int(text) if known else None

    def find(self, given: Any) -> int:
        """Like `get`, but refuse an unknown name and list the most similar ones."""
        number = self.get(given)
        if number is None:
            raise TaskError(f"no {self.kind} {given!r}; {self.hint(given)}")
        return number

    def hint(self, given: Any) -> str:
        """Return a hint with similar names, or with some of the names."""
        if self._numbers is None:
            numbers = f"numbers are 0..{self.count - 1}"
            is_number = re.fullmatch(r"\s*-?[0-9]+\s*", self._as_text(given))
            return numbers if is_number else f"there are no names; {numbers}"
        if self._search is not None:
            return f"examples are {', '.join(self._some)}"
        near = nearest_names(self._as_text(given), self._numbers)
        many = len(self._numbers) > _MOST_LISTED or len(near) > _MOST_LETTERS
        if many and not near.startswith("did you mean"):
            some = ", ".join(name[:40] for name in list(self._numbers)[:_SOME])
            near = f"none of the {self.count:,} names is similar; examples are {some}"
        if isinstance(given, str):
            return near
        return f"{near} (numbers are names here; use a tensor to refer to positions)"

    def _as_text(self, given: Any) -> str:
        """Return the given value as text."""
        if isinstance(given, str):
            return given
        if isinstance(given, bool | np.bool_):
            truth = str(bool(given)).lower()  # as in tables
            if self._numbers and truth in self._numbers:
                return truth
            if self.kind == "node":
                raise TaskError(f"node {given!r} is neither a name nor a number.")
            return str(int(given))
        if isinstance(given, float | np.floating) and float(given).is_integer():
            return str(int(given))  # pandas turns integers into floats
        try:
            return str(operator.index(given))
        except TypeError:
            raise TaskError(f"{self.kind} {given!r} is neither a name nor a number.") from None


def nodes_of(task: Task) -> Names:
    """Return a lookup of the nodes of a task."""
    return Names(task.node_names, task.graph.num_nodes, "node")


def classes_of(task: Task) -> Names:
    """Return a lookup of the classes or binary tasks of a task."""
    kind = "binary task" if task.is_multilabel else "class"
    return Names(task.class_names, task.num_classes, kind)


def label_separator(task: Task) -> str:
    """Return the separator of the names of binary tasks in a cell."""
    return (task.tables.label_separator if task.tables else "") or SEPARATOR


def node_ids(task: Task) -> Sequence[str] | Sequence[int]:
    """Return the user's ids of nodes, as text or integers; without ids, node numbers."""
    if task.node_names is None:
        return range(task.graph.num_nodes)
    whole = task.tables is not None and task.tables.whole_ids
    if whole and all(WHOLE.fullmatch(name) for name in task.node_names):
        return [int(name) for name in task.node_names]
    return task.node_names


def class_names(task: Task) -> tuple[str, ...]:
    """Return the names of classes or binary tasks; without names, their numbers."""
    return task.class_names or tuple(str(c) for c in range(task.num_classes))
