"""Find known labels that the model disagrees with when it sees all the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from unimp.analysis.table import Table
from unimp.errors import TaskError
from unimp.inference.incremental.changes import Change, ChangeableLogits
from unimp.inference.incremental.logits import IncrementalLogits
from unimp.tasks.labels import UNLABELED
from unimp.tasks.names import class_names, node_ids
from unimp.tasks.task import Task

if TYPE_CHECKING:
    import pyarrow as pa

FOLDS = 20
"""Labels are hidden in so many parts if hiding each label alone would take too long."""

MAX_EDGES = 300_000_000
"""Each label is hidden alone up to this number of computed edges: minutes on two cores."""

SAMPLE = 50
"""The cost of all labels is estimated from so many of them."""


class Audit(Table):
    """One row per known label, the most doubtful first.

    rank         1 for the most doubtful label
    node         the name of the node, or its number if nodes have no names
    task         the binary task; only for binary tasks, where each known entry is a row
    given        the label as it is known: a class, or 0 or 1
    suggested    the most likely other class, or the other of 0 and 1
    p_given      the probability of the given label, predicted with this label hidden
    p_suggested  the probability of the suggested one
    margin       log p_suggested − log p_given: above 0 if the model disagrees
    """

    def __init__(self, arrow: pa.Table, *, nodes: Tensor, disagreements: int, folds: int) -> None:
        super().__init__(arrow)
        self.nodes = nodes  # [k] the number of each row's node
        self.disagreements = disagreements  # rows for which the model prefers another label
        self.folds = folds  # parts that were hidden one at a time; 0: each label was hidden alone


def audit(
    answers: ChangeableLogits,
    task: Task,
    known: Tensor,
    *,
    chances: Callable[[Tensor], Tensor],
    folds: int | None = None,
    by_group: bool = False,
    given: Tensor | None = None,
    seed: int = 0,
    on_part: Callable[[int, int], None] = lambda done, total: None,
) -> Audit:
    """Hide each label of `known`, predict it from the others, and rank labels by the margin.

    chances: the function from logits to probabilities. folds: 0 hides each label alone, which is
    exact; k hides a random k-th of the labels at a time, which takes k predictions for any number
    of labels; None hides labels alone unless that would compute more than `MAX_EDGES` edges.
    by_group: hide a label together with all labels of its group, so that related nodes cannot
    give it away. given: the labels that are inputs, if they differ from those of the task.
    `on_part(done, total)` is called as the audit proceeds.
    """
    if by_group and task.groups is None:
        raise TaskError(f"{task.name} has no groups. Hide its labels one by one instead.")
    if folds is not None and (folds < 0 or folds == 1):
        raise TaskError(
            f"folds is {folds}; use 2 or more parts, or 0 to hide each label alone. One part would "
            "hide every label at once."
        )
    if not len(known):
        raise TaskError("no label is known, so there is nothing to audit. Reveal some labels.")
    units = list(_units(known, task.groups if by_group else None))
    folds = choose_folds(answers, units) if folds is None else min(folds, len(units))
    if folds:
        order = torch.randperm(len(units), generator=torch.Generator().manual_seed(seed)).tolist()
        parts = [torch.cat([units[u] for u in order[k::folds]]) for k in range(folds)]
    else:
        parts = units
    nodes, logits, together = [], [], 1 if folds else 1024
    for begin in range(0, len(parts), together):
        some = parts[begin : begin + together]
        logits += answers.after([Change.hide(part) for part in some], some)
        nodes += some
        on_part(min(begin + together, len(parts)), len(parts))
    node = torch.cat(nodes)
    compare = _of_entries if task.is_multilabel else _of_classes
    labels = task.labels if given is None else given
    found = compare(labels[node], chances(torch.cat(logits)))
    found["node"] = node[found.pop("row")] if task.is_multilabel else node
    log_given, log_suggested = (
        found[name].clamp(min=1e-12).log() for name in ("p_given", "p_suggested")
    )
    found["margin"] = log_suggested - log_given
    ranking = torch.argsort(found["margin"], descending=True, stable=True)
    found = {name: values[ranking] for name, values in found.items()}
    against = int((found["margin"] > 0).sum())
    return Audit(_named(task, found), nodes=found["node"], disagreements=against, folds=folds)


def choose_folds(answers: ChangeableLogits, units: list[Tensor]) -> int:
    """Return 0 if hiding each label alone is affordable, judged by a sample; else `FOLDS`."""
    if not isinstance(answers, IncrementalLogits):
        return min(FOLDS, len(units))
    chosen = torch.randperm(len(units), generator=torch.Generator().manual_seed(0))[:SAMPLE]
    costs = [answers.cost(Change.hide(units[u]), units[u]) for u in chosen.tolist()]
    expected = (answers.propagation_cost + sum(costs) / max(1, len(costs))) * len(units)
    return min(FOLDS, len(units)) if expected > MAX_EDGES else 0


def _units(known: Tensor, groups: Tensor | None) -> Iterator[Tensor]:
    """Yield the sets of nodes whose labels are hidden together."""
    if groups is None:
        yield from torch.split(known, 1)
        return
    _, group, count = torch.unique(groups[known], return_inverse=True, return_counts=True)
    yield from torch.split(known[torch.argsort(group, stable=True)], count.tolist())


def _of_classes(given: Tensor, chances: Tensor) -> dict[str, Tensor]:
    p_given = chances.gather(1, given[:, None]).squeeze(1)
    others = chances.scatter(1, given[:, None], -1.0)
    p_suggested, suggested = others.max(1)
    return {"given": given, "suggested": suggested, "p_given": p_given, "p_suggested": p_suggested}


def _of_entries(given: Tensor, chances: Tensor) -> dict[str, Tensor]:
    row, task = torch.nonzero(given != UNLABELED, as_tuple=True)
    label, p_one = given[row, task].long(), chances[row, task]
    p_given = torch.where(label == 1, p_one, 1 - p_one)
    return {
        "row": row,
        "task": task,
        "given": label,
        "suggested": 1 - label,
        "p_given": p_given,
        "p_suggested": 1 - p_given,
    }


def _named(task: Task, found: dict[str, Tensor]) -> pa.Table:
    """Return the columns of `Audit` under the names of the task."""
    import pyarrow as pa

    ids, classes = pa.array(node_ids(task)), np.asarray(class_names(task), dtype=object)
    given, suggested = found["given"].numpy(), found["suggested"].numpy()
    columns: dict[str, Any] = {
        "rank": np.arange(1, len(given) + 1),
        "node": ids.take(pa.array(found["node"].numpy())),
    }
    if "task" in found:
        columns |= {"task": classes[found["task"].numpy()]}
    else:
        given, suggested = classes[given], classes[suggested]
    columns |= {"given": given, "suggested": suggested}
    for name in ("p_given", "p_suggested", "margin"):
        columns[name] = found[name].double().numpy().round(6)
    return pa.table(columns)
