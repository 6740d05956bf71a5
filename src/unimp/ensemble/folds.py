"""The train and validation nodes of a member of an ensemble that is trained again."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from unimp.tasks.labels import Split
from unimp.tasks.task import Task

FEW_TO_CHOOSE = 300
"""With fewer validation labels than this, members are trained on folds of train and validation
labels."""

Part = int | Literal["refit"] | None
"""None: the train nodes. refit: train and validation nodes. A number: train and validation nodes
without this fold; the fold is the validation set."""


def split_for(task: Task, part: Part, folds: int, seed: int) -> Split:
    """The split of a task for members that are trained on these nodes."""
    split = task.split
    if part is None:
        return split
    known = known_nodes(split)
    if part == "refit":
        return Split(train=known, val=split.val[:0], test=split.test)
    held_out = fold_of(task, folds, seed) == part
    return Split(train=known[~held_out], val=known[held_out], test=split.test)


def known_nodes(split: Split) -> Tensor:
    """The train and validation nodes, in ascending order."""
    return torch.cat((split.train, split.val)).sort()[0]


def number_of_folds(task: Task, wanted: int) -> int:
    """The number of folds that are not empty: at most the number of nodes, or of groups."""
    nodes = known_nodes(task.split)
    units = nodes if task.groups is None else torch.unique(task.groups[nodes])
    return min(wanted, units.numel())


def fold_of(task: Task, folds: int, seed: int) -> Tensor:
    """The number of the fold of each train or validation node, drawn at random.

    If each node has one class, each class is divided evenly among the folds. If the task has
    groups, the nodes of one group are in the same fold instead.
    """
    nodes, folds = known_nodes(task.split), number_of_folds(task, folds)
    draw = torch.Generator().manual_seed(seed)
    if task.groups is not None:
        of_node = torch.unique(task.groups[nodes], return_inverse=True)[1]
        order = torch.randperm(int(of_node.max()) + 1, generator=draw)
        return order[of_node] % folds
    order = torch.randperm(len(nodes), generator=draw)
    if task.labels.ndim == 1:
        order = order[task.labels[nodes[order]].argsort(stable=True)]
    fold = torch.empty_like(order)
    fold[order] = torch.arange(len(nodes)) % folds
    return fold
