"""Labels, splits, and the masks of masked label prediction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unimp.config.arguments import check_argument, check_fields, checked
from unimp.errors import GraphError, TaskError
from unimp.graph.features import as_tensor
from unimp.tasks.known import SETS as SETS
from unimp.tasks.known import UNLABELED as UNLABELED
from unimp.tasks.known import is_known as is_known
from unimp.tasks.splitting import Sets

IS_MASK = (
    "is a mask of True and False; it must be whole numbers. The nodes of a mask are "
    "mask.nonzero().squeeze(1) in torch and np.flatnonzero(mask) in numpy."
)
"""What is wrong with a mask, and how to correct it."""


def whole_numbers(values: Any, what: str) -> Tensor:
    """Return a copy of an array of whole numbers as a tensor; refuse any other array."""
    try:
        numbers = as_tensor(values, what)
    except GraphError as error:
        raise TaskError(str(error)) from None
    if not numbers.numel():
        return numbers.long()
    if numbers.dtype == torch.bool:
        raise TaskError(f"{what} {IS_MASK}")
    if numbers.is_floating_point() or numbers.is_complex():
        raise TaskError(f"{what} has dtype {numbers.dtype}; it must be whole numbers.")
    return numbers


def checked_labels(
    values: Any, num_nodes: int, num_classes: int, nodes: Tensor | None = None
) -> Tensor:
    """Return a copy of labels, [N] int64 classes or [N, T] int8 entries; refuse invalid ones.

    nodes: the numbers of the nodes in an error, if they are not 0 to N − 1.
    """
    labels = whole_numbers(values, "labels")
    if labels.shape not in ((num_nodes,), (num_nodes, num_classes)):
        raise TaskError(
            f"labels have shape {tuple(labels.shape)}. For {num_nodes} nodes and {num_classes} "
            f"classes, they must have shape ({num_nodes},), one class per node, or ({num_nodes}, "
            f"{num_classes}), one row of 0 and 1 per node; {UNLABELED} where a label is unknown."
        )
    top = 1 if labels.ndim == 2 else num_classes - 1
    outside = (labels < UNLABELED) | (labels > top)  # before a cast could change them
    if bool(outside.any()):
        place = torch.nonzero(outside)[0].tolist()
        node = place[0] if nodes is None else int(nodes[place[0]])
        raise TaskError(
            f"the label of node {node} is {int(labels[tuple(place)])}; it must be in 0..{top}, "
            f"or {UNLABELED} if it is unknown."
        )
    return labels.to(torch.int64 if labels.ndim == 1 else torch.int8)


@dataclass(frozen=True, eq=False)
class Split:
    """The node sets of a task: int64 node numbers, disjoint; copies of what is given."""

    train: Tensor
    val: Tensor
    test: Tensor

    def __post_init__(self) -> None:
        for name in ("train", "val", "test"):
            nodes = whole_numbers(getattr(self, name), f"the {name} set")
            object.__setattr__(self, name, nodes.long().reshape(-1))
        both = torch.cat((self.train, self.val, self.test))
        unique, counts = torch.unique(both, return_counts=True)
        if bool((counts > 1).any()):
            node = int(unique[counts > 1][0])
            raise TaskError(
                f"node {node} is in the split twice ({int((counts > 1).sum())} such nodes). "
                "Keep each node in one of train, val and test."
            )

    @classmethod
    def of(cls, sets: Sets) -> Split:
        """Return the split of arrays of node numbers."""
        return cls(*map(torch.from_numpy, sets))

    def names(self, num_nodes: int) -> NDArray[np.object_]:
        """Return the name of each node's set, [num_nodes]; empty for a node in none of them."""
        return np.array(SETS, dtype=object)[self.codes(num_nodes)]

    def codes(self, num_nodes: int) -> NDArray[np.int8]:
        """Return the place of each node's set in `SETS`, [num_nodes]."""
        codes = np.full(num_nodes, SETS.index(""), dtype=np.int8)
        for code, name in enumerate(SETS[:3]):
            codes[getattr(self, name).numpy()] = code
        return codes

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
        check_fields(self, "observed", "hidden")
        if self.observed.dtype != torch.bool or self.hidden.dtype != torch.bool:
            raise TaskError("observed and hidden must be masks [N] of True and False.")
        if self.observed.ndim != 1 or self.observed.shape != self.hidden.shape:
            raise TaskError(
                f"observed has shape {tuple(self.observed.shape)} and hidden "
                f"{tuple(self.hidden.shape)}; both must be [N]."
            )
        if bool((self.observed & self.hidden).any()):
            raise TaskError("a label is both observed and hidden; it must be only one of them.")

    def reveal(self, labels: Tensor) -> Tensor:
        """Return the labels that the model may see: UNLABELED except where `observed`."""
        check_argument("LabelMask.reveal", "labels", labels, Tensor)
        if labels.shape[:1] != self.observed.shape:
            raise TaskError(
                f"labels have shape {tuple(labels.shape)}; there must be one row for each of the "
                f"{len(self.observed)} nodes."
            )
        observed = self.observed if labels.ndim == 1 else self.observed[:, None]
        return torch.where(observed, labels, UNLABELED)


@checked
def mask_labels(
    known: Tensor, label_rate: float, *, generator: torch.Generator, groups: Tensor | None = None
) -> LabelMask:
    """Draw which known labels are observed and which are hidden.

    UniMP is trained to predict the hidden part of the known labels from the observed part:

        max  Σ_{i ∈ hidden} log p(y_i | X, A, Y_observed)

    known: [N] bool. Exactly round(label_rate · |known|) labels are observed, the rest hidden.
    groups: [N], the group number of each node. Each group is then observed or hidden as a whole,
    except the one that the exact count divides. If a split keeps groups together, no label in a
    test node's own group is known, and training should have the same condition.
    """
    if known.dtype != torch.bool or known.ndim != 1:
        raise TaskError(
            f"known is {known.dtype} of shape {tuple(known.shape)}; it must be a mask [N] of True "
            "and False."
        )
    if not 0.0 <= label_rate <= 1.0:
        raise TaskError(f"label_rate is {label_rate}; it is a share of the known labels, 0 to 1.")
    groups = None if groups is None else whole_numbers(groups, "groups")
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
