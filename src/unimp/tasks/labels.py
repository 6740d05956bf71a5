"""Labels, splits, and the masks of masked label prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unimp.errors import TaskError
from unimp.graph.features import as_tensor

UNLABELED = -1
"""An unknown label: a class, or one entry of a multi-label row."""


SEVERAL_CLASSES = (
    "Give known labels of at least two classes. A label of -1 means unknown; if -1 is one of your "
    "classes, give it another number or a name, and mark unknown labels with NaN, None or an empty "
    "cell"
)
"""How to correct labels of one class."""


def one_class(labels: Tensor, num_classes: int, names: Sequence[object] | None = None) -> str:
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


@dataclass(frozen=True, eq=False)
class Split:
    """The node sets of a task: int64 node numbers, disjoint."""

    train: Tensor
    val: Tensor
    test: Tensor

    def __post_init__(self) -> None:
        for name in ("train", "val", "test"):
            given = getattr(self, name)
            nodes = given if isinstance(given, Tensor) else as_tensor(given, f"the {name} set")
            if nodes.numel() and (nodes.dtype.is_floating_point or nodes.dtype == torch.bool):
                raise TaskError(
                    f"the {name} set has dtype {nodes.dtype}; it must contain node numbers. For a "
                    "mask, use mask.nonzero().squeeze(1)."
                )
            object.__setattr__(self, name, nodes.long().reshape(-1))
        both = torch.cat((self.train, self.val, self.test))
        unique, counts = torch.unique(both, return_counts=True)
        if bool((counts > 1).any()):
            node = int(unique[counts > 1][0])
            raise TaskError(
                f"node {node} is in the split twice ({int((counts > 1).sum())} such nodes). "
                "Keep each node in one of train, val and test."
            )

    def known(self, reveal: str) -> Tensor:
        """Return the nodes whose labels a protocol reveals: `train`, or `train+val`."""
        if reveal not in PROTOCOLS:
            raise TaskError(f"no protocol {reveal!r}; use {' or '.join(PROTOCOLS)}.")
        return self.train if reveal == "train" else torch.cat((self.train, self.val))


PROTOCOLS = ("train", "train+val")


@dataclass(frozen=True, slots=True)
class LabelMask:
    """The known nodes, divided into observed inputs and hidden targets; they never overlap."""

    observed: Tensor  # [N] bool: the label is an input of the model
    hidden: Tensor  # [N] bool: the label is withheld and has to be predicted

    def __post_init__(self) -> None:
        if bool((self.observed & self.hidden).any()):
            raise TaskError("a label is both observed and hidden; it must be only one of them.")

    def reveal(self, labels: Tensor) -> Tensor:
        """Return the labels that the model may see: UNLABELED except where `observed`."""
        observed = self.observed if labels.ndim == 1 else self.observed[:, None]
        return torch.where(observed, labels, torch.full_like(labels, UNLABELED))


def mask_labels(
    known: Tensor,
    label_rate: float,
    *,
    generator: torch.Generator,
    groups: Tensor | None = None,
) -> LabelMask:
    """Draw which known labels are observed and which are hidden.

    UniMP is trained to predict the hidden part of the known labels from the observed part:

        max  Σ_{i ∈ hidden} log p(y_i | X, A, Y_observed)

    known: [N] bool. Exactly round(label_rate · |known|) labels are observed, the rest hidden.
    groups: [N], the group number of each node. Each group is then observed or hidden as a whole,
    except the one that the exact count divides. If a split keeps groups together, no label in a
    test node's own group is known, and training should have the same condition.
    """
    if not 0.0 <= label_rate <= 1.0:
        raise TaskError(f"label_rate is {label_rate}; it is a share of the known labels, 0 to 1.")
    if groups is not None and groups.shape != known.shape:
        raise TaskError(
            f"groups have shape {tuple(groups.shape)}; give one number for each of the "
            f"{known.numel()} nodes."
        )
    nodes = torch.nonzero(known).squeeze(1)
    shuffled = nodes[torch.randperm(nodes.numel(), generator=generator)]
    if groups is not None:
        names, group = torch.unique(groups[shuffled], return_inverse=True)
        place = torch.randperm(names.numel(), generator=generator)
        shuffled = shuffled[torch.argsort(place[group], stable=True)]
    observed = torch.zeros_like(known)
    observed[shuffled[: round(label_rate * nodes.numel())]] = True
    return LabelMask(observed=observed, hidden=known & ~observed)


def mask_of(nodes: Tensor, num_nodes: int) -> Tensor:
    """Return a mask [num_nodes] bool that is true at `nodes`."""
    mask = torch.zeros(num_nodes, dtype=torch.bool)
    mask[nodes] = True
    return mask


def reveal_only(nodes: Tensor, labels: Tensor) -> Tensor:
    """Return the labels that the model may see if exactly `nodes` are observed."""
    observed = mask_of(nodes, len(labels))
    return LabelMask(observed, torch.zeros_like(observed)).reveal(labels)


def is_known(labels: Tensor) -> Tensor:
    """Return the nodes with at least one known label entry: [N] bool."""
    return labels != UNLABELED if labels.ndim == 1 else (labels != UNLABELED).any(1)
