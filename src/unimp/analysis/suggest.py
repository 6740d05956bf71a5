"""Choose the unknown nodes whose labels would help most."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.special import entr

from unimp.graph.csr import group
from unimp.graph.graph import Graph
from unimp.tasks.labels import is_known
from unimp.tasks.task import Task

UNCERTAIN = 0.2
"""A node with at least this chance of error counts as uncertain."""


@dataclass(frozen=True)
class Suggestion:
    """One node whose label is requested."""

    node: int
    worth: float  # the criterion of the choice; comparable within one call
    neighbors: int  # the number of unknown nodes that it has an edge to
    unsure: int  # the number of these that are uncertain
    beside: int | None  # the rank of an earlier suggestion that it has an edge to


def chance_of_error(chances: Tensor, *, multilabel: bool) -> Tensor:
    """Return 1 − the largest probability of each row [N, C]; for binary tasks, the mean chance of
    being on the wrong side of one half: [N]."""
    if multilabel:
        return torch.minimum(chances, 1.0 - chances).mean(1)
    return 1.0 - chances.max(1).values


def uncertainty(chances: Tensor, *, multilabel: bool) -> Tensor:
    """Return the entropy as a share of its maximum, 0 to 1; for binary tasks, the mean: [N]."""
    terms: Tensor = entr(chances) + entr(1.0 - chances) if multilabel else entr(chances)
    if multilabel:
        return terms.mean(1) / math.log(2.0)
    return terms.sum(1) / math.log(max(chances.shape[1], 2))


def unknown_nodes(task: Task, observed: Tensor, removed: Tensor | None = None) -> Tensor:
    """Return the nodes that may be suggested, [N] bool: those without a label in the task.

    If every node has a label, as in a benchmark, these are the nodes of the test set. A label that
    arrived after training is not requested again. removed: numbers of nodes whose label was removed
    after training; they may be suggested too.
    """
    unknown = ~is_known(task.labels)
    if not bool(unknown.any()):
        unknown[task.split.test] = True
    if removed is not None:
        unknown[removed] = True
    return unknown & ~is_known(observed)


def suggest_nodes(graph: Graph, error: Tensor, unknown: Tensor, number: int) -> list[Suggestion]:
    """Choose the `number` unknown nodes whose labels would help most, best first.

    A label helps if the model may be wrong about the node itself and about the nodes that its
    messages reach. With e the chance of error [N], o and d the out- and in-degrees:

        worth_i = e_i² / (1 + o_i) · Σ_{i → j} w_j / √(1 + d_j)       w = e at unknown nodes, else 0

    so an uncertain node among uncertain neighbors comes before a hub that reaches many nodes a
    little, and a neighbor with many other in-edges counts less. Coverage: when i is chosen,

        w_j ← w_j · (1 − e_i² / ((1 + o_i) √(1 + d_j))) for i → j       w_i ← 0

    A worth can only decrease, so a node is evaluated again only if its last worth is the largest
    one left. Nodes that reach no others come last, by their own chance of error; among equals, the
    lower number comes first.
    unknown: [N] bool.
    """
    indptr, order = group(graph.source, graph.num_nodes)
    begin = indptr.numpy().astype(np.int64)
    reached = graph.target[order.long()].numpy()
    damping = 1.0 / np.sqrt(1.0 + graph.in_degree.numpy())
    candidates = unknown.numpy()
    left = np.where(candidates, error.double().numpy(), 0.0)
    own = left**2 / (1.0 + np.diff(begin))

    def others(node: int) -> NDArray[np.int64]:
        found: NDArray[np.int64] = np.unique(reached[begin[node] : begin[node + 1]]).astype(
            np.int64
        )
        return np.delete(found, np.flatnonzero(found == node))

    source = np.repeat(np.arange(graph.num_nodes), np.diff(begin))
    reach = np.where(source == reached, 0.0, (left * damping)[reached])
    bound = own * np.bincount(source, weights=reach, minlength=graph.num_nodes)
    # Nodes that reach no others: by their own chance of error, below all the rest.
    bound = np.where(candidates, np.where(bound > 0, bound, left - 2.0), -np.inf)
    rank: dict[int, int] = {}
    chosen: list[Suggestion] = []
    first = left.copy()
    while len(chosen) < number:
        node = int(bound.argmax())
        if bound[node] == -np.inf:
            break
        near = others(node)
        worth = float(own[node] * (left[near] * damping[near]).sum())
        if bound[node] > 0:
            bound[node] = worth if worth > 0 else left[node] - 2.0
            if bound[node] < bound.max():
                continue
        unknown_near = near[candidates[near]]
        beside = min((rank[j] for j in near.tolist() if j in rank), default=None)
        unsure = int((first[unknown_near] >= UNCERTAIN).sum())
        rank[node] = len(chosen) + 1
        chosen.append(Suggestion(node, worth, len(unknown_near), unsure, beside))
        left[near] *= 1.0 - own[node] * damping[near]
        left[node], bound[node] = 0.0, -np.inf
    return chosen
