"""The tables of predictions and suggestions: one row per node, under the user's own ids.

In Python and on the command line, a label that was an input is kept: its class has probability 1,
the table marks it as `observed`, and there is no confidence, because nothing was predicted. For
every other node the most likely class is the prediction, and its probability, calibrated on
validation, is the confidence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

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
from unimp.analysis.table import Table
from unimp.errors import RunError
from unimp.graph.graph import Graph
from unimp.tasks.labels import SETS, UNLABELED, is_known
from unimp.tasks.metrics import refuse_non_finite
from unimp.tasks.names import class_names, label_separator, node_ids
from unimp.tasks.task import Task

MAX_ENTRIES = 50_000_000
"""Probabilities are left out above this number of nodes × classes, unless they are requested."""
NODES_PER_PART = 1_000_000
"""The most rows of one part of the predictions."""
MAX_ENTRIES_IN_RUN = 1_000_000
"""The same limit for the table in a run folder; `unimp predict` writes all probabilities."""


def keep_observed(probabilities: Tensor, observed: Tensor) -> Tensor:
    """Replace the probabilities [N, C] of observed labels: 1 for the label, 0 for the others."""
    if observed.ndim == 2:
        return torch.where(observed != UNLABELED, observed.to(probabilities), probabilities)
    known = observed != UNLABELED
    certain = F.one_hot(observed.clamp(min=0), probabilities.shape[1]).to(probabilities)
    return torch.where(known[:, None], certain, probabilities)


def known_in_neighbors(graph: Graph, known: Tensor) -> Tensor:
    """Count the different in-neighbors of each node that are `known` [N] bool: [N] int64.

    A node is not its own neighbor. Ranges of nodes are counted one after the other, because an
    array with one number per edge of a mapped graph may not fit into memory.
    """
    counts = []
    for begin in range(0, graph.num_nodes, NODES_PER_PART):
        indptr = graph.indptr[begin : begin + NODES_PER_PART + 1].long()
        sources = graph.source[int(indptr[0]) : int(indptr[-1])]
        slots = torch.nonzero(known.index_select(0, sources)).squeeze(1)
        target = torch.searchsorted(indptr - indptr[0], slots, right=True) - 1
        source = sources[slots].long()
        # Several edges may connect two nodes.
        pairs = torch.unique((target * graph.num_nodes + source)[target + begin != source])
        rows = indptr.numel() - 1
        counts.append(torch.bincount(pairs // graph.num_nodes, minlength=rows))
    return torch.cat(counts)


def predictions_table(
    task: Task, probabilities: Tensor, observed: Tensor, *, every_class: bool | None = None
) -> Table:
    """Return the predictions, one row per node.

    node             the name of the node, or its number if nodes have no names
    prediction       the class; for binary tasks, the names of those above one half, separated by
                     the label_separator of the tables or a semicolon
    confidence       the calibrated probability of that class; for binary tasks, the expected share
                     of right entries; null if everything was `observed`
    observed         whether the label was an input; the prediction is then that label
    known_neighbors  the number of in-neighbors whose label was an input
    set              train, val or test; empty for a node in none of them
    label            the label, if the task or the caller knows it; not for binary tasks
    p_<class>        the probability of each class or binary task

    probabilities [N, C]: with observed labels (`keep_observed`). every_class: whether to add the
    columns p_; None adds them up to 50 million nodes × classes.
    """
    import pyarrow as pa

    parts = prediction_parts(task, probabilities, observed, every_class=every_class)
    return Table(pa.concat_tables([part.to_arrow() for part in parts]))


def prediction_parts(
    task: Task, probabilities: Tensor, observed: Tensor, *, every_class: bool | None = None
) -> Iterator[Table]:
    """Yield the rows of `predictions_table` in tables of at most a million nodes."""
    import pyarrow as pa

    refuse_non_finite(probabilities, "probabilities")
    names, ids = class_names(task), pa.array(node_ids(task))
    if every_class is None:
        every_class = probabilities.numel() <= MAX_ENTRIES
    sets = task.split.codes(task.graph.num_nodes)
    neighbors = known_in_neighbors(task.graph, is_known(observed))
    for begin in range(0, task.graph.num_nodes, NODES_PER_PART):
        rows = slice(begin, min(begin + NODES_PER_PART, task.graph.num_nodes))
        chances, given = probabilities[rows], observed[rows]
        seen = is_known(given)
        confidence, certain = chances.max(1).values, seen
        if task.is_multilabel:
            confidence, certain = _expected_right(chances, given)
        columns: dict[str, Any] = {
            "node": ids[rows],
            "prediction": pa.array(_predicted(chances, names, task), pa.string()),
            "confidence": pa.array(confidence.numpy(), mask=certain.numpy()),
            "observed": pa.array(seen.numpy()),
            "known_neighbors": pa.array(neighbors[rows].numpy()),
            "set": pa.array(np.array(SETS, dtype=object)[sets[rows]], pa.string()),
        }
        if not task.is_multilabel:
            known = torch.where(seen, given, task.labels[rows])
            labels = np.array([*names, ""], dtype=object)[known.numpy()]
            columns["label"] = pa.array(labels, pa.string(), mask=~is_known(known).numpy())
        if every_class:
            for c, name in enumerate(names):
                columns[f"p_{name}"] = pa.array(chances[:, c].numpy())
        yield Table(pa.table(columns))


def suggestions(
    task: Task, chances: Tensor, observed: Tensor, number: int, removed: Tensor | None = None
) -> Table:
    """Return the `number` unknown nodes whose labels would help most, the best first.

    rank         1 for the label that would help most
    node         the name of the node, or its number if nodes have no names
    label        empty, to be filled in: the table is then a label file
    prediction   the present prediction; for binary tasks, the names of those above one half
    confidence   the calibrated probability of that class; for binary tasks, a mean
    uncertainty  the entropy over classes as a share of the maximum, 0 to 1
    reaches      the number of uncertain unknown nodes that it has an edge to
    why          the reason in words

    chances [N, C]: predicted with `observed` as inputs. removed: see `unknown_nodes`.
    """
    import pyarrow as pa

    if number < 1:
        raise RunError(f"cannot suggest {number} nodes; ask for at least 1")
    refuse_non_finite(chances, "probabilities")
    error = chance_of_error(chances, multilabel=task.is_multilabel)
    found = suggest_nodes(task.graph, error, unknown_nodes(task, observed, removed), number)
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
            (_why(one, row, names, task) for one, row in zip(found, rows, strict=True)), pa.string()
        ),
    }
    return Table(pa.table(columns))


def _predicted(chances: Tensor, names: Sequence[str], task: Task) -> list[str]:
    if task.is_multilabel:
        between, above = label_separator(task), (chances > 0.5).numpy()
        return [between.join(names[t] for t in np.flatnonzero(row).tolist()) for row in above]
    return [names[c] for c in chances.argmax(1).tolist()]


def _expected_right(probabilities: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
    """For binary tasks, return the expected share of right entries among the entries of a node that
    were not observed, and whether all entries were observed."""
    left = observed == UNLABELED
    right = torch.maximum(probabilities, 1.0 - probabilities)
    count = left.sum(1)
    return (right * left).sum(1) / count.clamp(min=1), count == 0


def _why(one: Suggestion, row: Tensor, names: Sequence[str], task: Task) -> str:
    """Return the reason for a suggestion: its likely classes, and the neighbors it informs."""
    if task.is_multilabel:
        unsure = int(((row > 0.2) & (row < 0.8)).sum())
        may_be = f"uncertain for {unsure} of {len(names)} tasks"
    else:
        best = torch.topk(row, min(2, len(names)))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        may_be = " or ".join(f"{names[c]} ({100 * chance:.0f} %)" for c, chance in pairs)
    if one.neighbors == 1:
        reach = f"its unknown neighbor is {'uncertain' if one.unsure else 'certain'}"
    elif one.neighbors:
        verb = "is" if one.unsure == 1 else "are"
        reach = f"{one.unsure} of its {one.neighbors} unknown neighbors {verb} uncertain"
    else:
        reach = "it has no unknown neighbors"
    beside = "" if one.beside is None else f"; it is a neighbor of suggestion {one.beside}"
    return f"{may_be}; {reach}{beside}"
