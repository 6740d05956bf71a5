"""Which labels to ask for: unknown nodes whose label would teach most."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unimp.graph.csr import group
from unimp.graph.graph import Graph
from unimp.tasks.labels import is_known
from unimp.tasks.task import Task

UNSURE = 0.2
"""A chance of being wrong from which a node counts as unsure."""


@dataclass(frozen=True)
class Suggestion:
    """One node whose label to ask for."""

    node: int
    worth: float  # what it was chosen by; comparable within one call
    neighbors: int  # unknown nodes that it has an edge to
    unsure: int  # and of these, those that are unsure
    beside: int | None  # the rank of an earlier suggestion that it has an edge to


def chance_of_error(chances: Tensor, *, multilabel: bool) -> Tensor:
    """1 − the largest probability of each row [N, C]; of binary tasks, the mean chance to be on the
    wrong side of one half: [N]."""
    if multilabel:
        return torch.minimum(chances, 1.0 - chances).mean(1)
    return 1.0 - chances.max(1).values


def uncertainty(chances: Tensor, *, multilabel: bool) -> Tensor:
    """Entropy as a share of the largest there is, 0 to 1; of binary tasks, its mean: [N]."""

    def terms(p: Tensor) -> Tensor:
        return -p * p.clamp(min=1e-12).log()

    if multilabel:
        return (terms(chances) + terms(1.0 - chances)).mean(1) / math.log(2.0)
    return terms(chances).sum(1) / math.log(max(chances.shape[1], 2))


def unknown_nodes(task: Task, observed: Tensor) -> Tensor:
    """The nodes that may be asked about, [N] bool: those that the task has no label for.

    Where it has a label for every node, as a benchmark does, those of the test set. A label that
    was given since is not asked for again.
    """
    unknown = ~is_known(task.labels)
    if not bool(unknown.any()):
        unknown[task.split.test] = True
    return unknown & ~is_known(observed)


def suggest_nodes(graph: Graph, error: Tensor, unknown: Tensor, number: int) -> list[Suggestion]:
    """The `number` unknown nodes whose label would teach most, best first.

    A label teaches where the model may be wrong about the node itself, and about those that
    messages from it reach. With e the chance of error [N], o and d the out- and in-degrees:

        worth_i = e_i² / (1 + o_i) · Σ_{i → j} w_j / √(1 + d_j)       w = e at unknown nodes, else 0

    so an unsure node among unsure neighbors comes before a hub that reaches many, each a little,
    and a neighbor that hears many others counts for less. Coverage: when i is chosen,

        w_j ← w_j · (1 − e_i² / ((1 + o_i) √(1 + d_j))) for i → j       w_i ← 0

    Worths only fall, so a node is weighed again only when its last worth is the largest left.
    Nodes that reach nobody come last, by their own chance of error; of equals, the lower number.
    unknown: [N] bool.
    """
    indptr, order = group(graph.source, graph.num_nodes)
    begin = indptr.numpy().astype(np.int64)
    reached = graph.target[order.long()].numpy()
    hears = 1.0 / np.sqrt(1.0 + graph.in_degree.numpy())
    asked = unknown.numpy()
    left = np.where(asked, error.double().numpy(), 0.0)
    own = left**2 / (1.0 + np.diff(begin))

    def others(node: int) -> NDArray[np.int64]:
        found: NDArray[np.int64] = np.unique(reached[begin[node] : begin[node + 1]]).astype(
            np.int64
        )
        return np.delete(found, np.flatnonzero(found == node))

    source = np.repeat(np.arange(graph.num_nodes), np.diff(begin))
    heard = np.where(source == reached, 0.0, (left * hears)[reached])
    bound = own * np.bincount(source, weights=heard, minlength=graph.num_nodes)
    # Those that reach nobody: by their own chance of error, below all others.
    bound = np.where(asked, np.where(bound > 0, bound, left - 2.0), -np.inf)
    rank: dict[int, int] = {}
    chosen: list[Suggestion] = []
    first = left.copy()
    while len(chosen) < number:
        node = int(bound.argmax())
        if bound[node] == -np.inf:
            break
        near = others(node)
        worth = float(own[node] * (left[near] * hears[near]).sum())
        if bound[node] > 0:
            bound[node] = worth if worth > 0 else left[node] - 2.0
            if bound[node] < bound.max():
                continue
        unknown_near = near[asked[near]]
        beside = min((rank[j] for j in near.tolist() if j in rank), default=None)
        unsure = int((first[unknown_near] >= UNSURE).sum())
        rank[node] = len(chosen) + 1
        chosen.append(Suggestion(node, worth, len(unknown_near), unsure, beside))
        left[near] *= 1.0 - own[node] * hears[near]
        left[node], bound[node] = 0.0, -np.inf
    return chosen
