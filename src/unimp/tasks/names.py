"""Nodes and classes by the names that their owner gave them."""

from __future__ import annotations

from collections.abc import Sequence

from unimp.errors import TaskError, nearest_names
from unimp.tasks.task import Task


def find_node(task: Task, text: str) -> int:
    """The number of a node, given its name, or its number where no node has that name."""
    return _find(text, task.node_names, task.graph.num_nodes, "node")


def find_class(task: Task, text: str) -> int:
    """The number of a class or binary task, given its name or number."""
    kind = "binary task" if task.is_multilabel else "class"
    return _find(text, task.class_names, task.num_classes, kind)


def _find(text: str, names: Sequence[str] | None, count: int, kind: str) -> int:
    if names is not None and text in names:
        return names.index(text)
    if text.isascii() and text.isdigit() and int(text) < count:
        return int(text)
    numbers = f"numbers run from 0 to {count - 1}"
    if names is None:
        raise TaskError(f"no {kind} {text!r}; {numbers}")
    hint = nearest_names(text, names)
    # Where nothing is near, all names are told; of a large graph that is no answer.
    hint = hint if len(hint) < 1000 else f"none of the {count:,} names is near it"
    raise TaskError(f"no {kind} {text!r}; {hint} ({numbers})")
