"""What predictions hold: one row a node, under the user's own ids.

The rule, in Python and on the command line: a label that was an input is kept. Its class has
probability 1, the table says `observed`, and gives no confidence, as nothing was predicted there.
For every other node the likeliest class is the prediction, and its probability, calibrated on
validation, the confidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from unimp.analysis.suggest import (
    Suggestion,
    chance_of_error,
    suggest_nodes,
    uncertainty,
    unknown_nodes,
)
from unimp.errors import RunError
from unimp.graph.graph import Graph
from unimp.tasks.labels import UNLABELED, is_known
from unimp.tasks.names import class_names, label_separator, node_ids
from unimp.tasks.task import Task

if TYPE_CHECKING:
    import pyarrow as pa

MOST_ENTRIES = 50_000_000
"""Nodes × classes above which probabilities are left out unless they are asked for."""
MOST_IN_RUN = 1_000_000
"""The same for the table that a run folder keeps: folders are many, `unimp predict` makes all."""


def keep_observed(probabilities: Tensor, observed: Tensor) -> Tensor:
    """Probabilities [N, C] with what was observed laid over them: 1 for a label, 0 for others."""
    if observed.ndim == 2:
        return torch.where(observed != UNLABELED, observed.to(probabilities), probabilities)
    known = observed != UNLABELED
    told = F.one_hot(observed.clamp(min=0), probabilities.shape[1]).to(probabilities)
    return torch.where(known[:, None], told, probabilities)


def known_in_neighbors(graph: Graph, known: Tensor) -> Tensor:
    """How many different in-neighbors of each node are `known` [N] bool: [N] int64.

    A node is no neighbor of its own.
    """
    slots = torch.nonzero(known[graph.source.long()]).squeeze(1)
    target = torch.searchsorted(graph.indptr.long(), slots, right=True) - 1
    source = graph.source[slots].long()
    # Two nodes may be joined by several edges.
    pairs = torch.unique((target * graph.num_nodes + source)[target != source])
    return torch.bincount(pairs // graph.num_nodes, minlength=graph.num_nodes)


def predictions_table(
    task: Task, probabilities: Tensor, observed: Tensor, *, every_class: bool | None = None
) -> pa.Table:
    """One row a node, as an Arrow table (`.to_pandas()`, or `polars.from_arrow`).

    node             the node's name, or its number where nodes have no names
    prediction       its class; of binary tasks, the names of those above one half, with the
                     tables' label_separator between them, or a semicolon
    confidence       the calibrated probability of that class; of binary tasks, the share of entries
                     that it expects to be right; null where all was `observed`
    observed         whether its label was an input; the prediction is then that label
    known_neighbors  how many in-neighbors have a label that was an input
    set              train, val or test; empty for a node in none of them
    label            its label as far as the task or the caller knows it
    p_<class>        the probability of each class, or binary task

    Binary tasks have no column label. probabilities [N, C] keep what was observed
    already (`keep_observed`). every_class: whether the columns p_ are there; None: if nodes ×
    classes are at most 50 million.
    """
    import pyarrow as pa

    names = class_names(task)
    seen = is_known(observed)
    sets = np.full(task.graph.num_nodes, "", dtype=object)
    for name in ("train", "val", "test"):
        sets[getattr(task.split, name).numpy()] = name
    columns: dict[str, Any] = {"node": pa.array(node_ids(task))}
    label = None
    if task.is_multilabel:
        columns["prediction"] = pa.array(_predicted(probabilities, names, task), pa.string())
        right, open_ = _expected_right(probabilities, observed)
        columns["confidence"] = pa.array(right.numpy(), mask=~open_.numpy())
    else:
        lookup = np.array([*names, ""], dtype=object)
        chances, prediction = probabilities.max(1)
        told = torch.where(seen, observed, task.labels)
        label = pa.array(lookup[told.numpy()], pa.string(), mask=~is_known(told).numpy())
        columns["prediction"] = pa.array(lookup[prediction.numpy()], pa.string())
        columns["confidence"] = pa.array(chances.numpy(), mask=seen.numpy())
    columns["observed"] = pa.array(seen.numpy())
    columns["known_neighbors"] = pa.array(known_in_neighbors(task.graph, seen).numpy())
    columns["set"] = pa.array(sets, pa.string())
    if label is not None:
        columns["label"] = label
    if every_class is None:
        every_class = probabilities.numel() <= MOST_ENTRIES
    if every_class:
        for c, name in enumerate(names):
            columns[f"p_{name}"] = pa.array(probabilities[:, c].numpy())
    return pa.table(columns)


def suggestions(task: Task, chances: Tensor, observed: Tensor, number: int) -> pa.Table:
    """The `number` unknown nodes whose label would teach most, best first, as an Arrow table.

    rank         1 for the label that would teach most
    node         the node's name, or number
    label        empty, to be filled in: the table is then a label file
    prediction   what is predicted now; of binary tasks, the names of those above one half
    confidence   the calibrated probability of that class (of binary tasks: a mean)
    uncertainty  entropy over classes as a share of the largest, 0 to 1
    reaches      unsure unknown nodes that it has an edge to
    why          in words

    chances [N, C] are the model's own, with `observed` as inputs.
    """
    import pyarrow as pa

    if number < 1:
        raise RunError(f"{number} suggestions; ask for at least 1")
    error = chance_of_error(chances, multilabel=task.is_multilabel)
    found = suggest_nodes(task.graph, error, unknown_nodes(task, observed), number)
    nodes = torch.tensor([one.node for one in found], dtype=torch.int64)
    rows, ids, names = chances[nodes], node_ids(task), class_names(task)
    columns: dict[str, Any] = {
        "rank": pa.array(range(1, len(found) + 1), pa.int64()),
        "node": pa.array(ids[one.node] for one in found),
        "label": pa.nulls(len(found), pa.string()),
        "prediction": pa.array(_predicted(rows, names, task), pa.string()),
        "confidence": pa.array((1.0 - error[nodes]).numpy()),
        "uncertainty": pa.array(uncertainty(rows, multilabel=task.is_multilabel).numpy()),
        "reaches": pa.array((one.unsure for one in found), pa.int64()),
        "why": pa.array(
            (_why(one, row, names, task) for one, row in zip(found, rows, strict=True)),
            pa.string(),
        ),
    }
    return pa.table(columns)


def _predicted(chances: Tensor, names: Sequence[str], task: Task) -> list[str]:
    if task.is_multilabel:
        above = (chances > 0.5).numpy()
        between = label_separator(task)
        return [between.join(names[t] for t in np.flatnonzero(row).tolist()) for row in above]
    return [names[c] for c in chances.argmax(1).tolist()]


def _expected_right(probabilities: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
    """Of binary tasks: the share of each node's entries that are expected to be right, among those
    that were not observed, and whether there are any."""
    left = observed == UNLABELED
    right = torch.maximum(probabilities, 1.0 - probabilities)
    count = left.sum(1)
    return (right * left).sum(1) / count.clamp(min=1), count > 0


def _why(one: Suggestion, row: Tensor, names: Sequence[str], task: Task) -> str:
    """A suggestion's reason: what it may be, whom it reaches, and what stands beside it."""
    if task.is_multilabel:
        unsure = int(((row > 0.2) & (row < 0.8)).sum())
        may_be = f"unsure of {unsure} of {len(names)} tasks"
    else:
        best = torch.topk(row, min(2, len(names)))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        may_be = " or ".join(f"{names[c]} ({100 * chance:.0f} %)" for c, chance in pairs)
    reach = f"{one.unsure} of its {one.neighbors} unknown neighbors are unsure"
    if not one.neighbors:
        reach = "it has no unknown neighbors"
    beside = "" if one.beside is None else f"; a neighbor of suggestion {one.beside}"
    return f"{may_be}; {reach}{beside}"
