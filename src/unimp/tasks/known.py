"""Which labels are known, and what known labels have to satisfy, for tensors and arrays alike.

This module does not import torch, so that tables can be read and checked without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

Labels = TypeVar("Labels", "Tensor", "NDArray[Any]")

UNLABELED = -1
"""An unknown label: a class, or one entry of a multi-label row."""

SETS = ("train", "val", "test", "")
"""The names of the sets of a split, and of a node in none of them."""

SEVERAL_CLASSES = (
    "Give known labels of at least two classes. A label of -1 means unknown; if -1 is one of your "
    "classes, give it another number or a name, and mark unknown labels with NaN, None or an empty "
    "cell"
)
"""How to correct labels of one class."""


def is_known(labels: Labels) -> Labels:
    """Return the nodes with at least one known label entry: [N] bool."""
    known: Any = labels != UNLABELED
    found: Labels = known if labels.ndim == 1 else known.any(1)
    return found


def one_class(labels: Labels, num_classes: int, names: Sequence[object] | None = None) -> str:
    """Return what is wrong if all known labels are equal, so that nothing can be learned.

    Tables, `.npz` files, `Task` and the classifier use this one rule. labels: [N] classes, or
    [N, T] of 0 and 1. One known label alone passes if the task has more classes.
    """
    known = labels[labels != UNLABELED]
    single = int(is_known(labels).sum()) < 2 and (labels.ndim == 2 or num_classes > 1)
    if single or not len(known) or int(known.min()) != int(known.max()):
        return ""
    only = int(known[0])
    name = only if names is None or labels.ndim == 2 else names[only]
    return f"there is only one class: every known label is {name!r}"
