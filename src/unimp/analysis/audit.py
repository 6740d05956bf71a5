"""Known labels that the model, seeing all the others, disagrees with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unimp.data.tables.writing import write_table
from unimp.errors import TaskError
from unimp.inference.incremental.changes import Change, ChangeableLogits
from unimp.inference.incremental.logits import IncrementalLogits
from unimp.tasks.labels import UNLABELED
from unimp.tasks.names import class_names, node_ids
from unimp.tasks.task import Task

FOLDS = 20
"""Parts of the labels hidden one at a time, where hiding each label alone would take too long."""

MOST_EDGES = 300_000_000
"""Edges that hiding each label alone may take: a few minutes on two cores. Above it, `FOLDS`."""

SAMPLE = 50
"""Labels whose cost tells that of all."""


@dataclass(frozen=True, eq=False)
class Audit:
    """One row a known label, the most doubtful first.

    margin = log p(suggested) − log p(given), each with the label itself hidden: above 0 where the
    model, seeing the others, would have said something else. Of binary tasks each known entry is a
    row, and what is suggested is the other of 0 and 1.
    """

    node: Tensor  # [k]
    given: Tensor  # [k] the class; or 0 or 1
    suggested: Tensor  # [k] the likeliest other class
    p_given: Tensor  # [k]
    p_suggested: Tensor  # [k]
    margin: Tensor  # [k]
    task: Tensor | None  # [k] the binary task; None: classes
    folds: int  # parts that were hidden one at a time; 0: each label was hidden alone

    def __len__(self) -> int:
        return len(self.node)

    @property
    def disagreements(self) -> int:
        """Labels that the model would rather see replaced."""
        return int((self.margin > 0).sum())


def audit(
    answers: ChangeableLogits,
    task: Task,
    known: Tensor,
    *,
    chances: Callable[[Tensor], Tensor],
    folds: int | None = None,
    by_group: bool = False,
    seed: int = 0,
    on_part: Callable[[int, int], None] = lambda done, all: None,
) -> Audit:
    """Hide each label of `known` and predict it back from the others; rank by the margin.

    chances: logits → probabilities. folds: 0 hides each label alone, which is exact; k hides a
    random k-th of them at a time, which takes k predictions whatever their number; None: alone,
    unless that would look at more than `MOST_EDGES` edges. by_group: a label is hidden with all of
    its group, so that it must stand without its siblings. `on_part(done, all)` tells how far it is.
    """
    if by_group and task.groups is None:
        raise TaskError(f"{task.name} has no groups to hide labels by; hide them one by one")
    units = list(_units(known, task.groups if by_group else None))
    folds = choose_folds(answers, units) if folds is None else min(folds, len(units))
    if folds:
        order = torch.randperm(len(units), generator=torch.Generator().manual_seed(seed)).tolist()
        parts = [torch.cat([units[u] for u in order[k::folds]]) for k in range(folds)]
    else:
        parts = units
    nodes, logits, together = [], [], 1 if folds else 64
    for begin in range(0, len(parts), together):
        some = parts[begin : begin + together]
        logits += answers.after([Change.hide(part) for part in some], some)
        nodes += some
        on_part(min(begin + together, len(parts)), len(parts))
    node = torch.cat(nodes)
    found = (_of_entries if task.is_multilabel else _of_classes)(
        task.labels[node], chances(torch.cat(logits))
    )
    row = found.pop("row", torch.arange(len(node)))
    doubt = torch.argsort(found["margin"], descending=True, stable=True)
    entry = found.pop("task", None)
    return Audit(
        node=node[row][doubt],
        **{name: values[doubt] for name, values in found.items()},
        task=None if entry is None else entry[doubt],
        folds=folds,
    )


def choose_folds(answers: ChangeableLogits, units: list[Tensor]) -> int:
    """0 where hiding each label alone is affordable, as a sample of them tells; else `FOLDS`."""
    if not isinstance(answers, IncrementalLogits):
        return min(FOLDS, len(units))
    chosen = torch.randperm(len(units), generator=torch.Generator().manual_seed(0))[:SAMPLE]
    costs = [answers.cost(Change.hide(units[u]), units[u]) for u in chosen.tolist()]
    expected = sum(costs) / max(1, len(costs)) * len(units)
    return min(FOLDS, len(units)) if expected > MOST_EDGES else 0


def _units(known: Tensor, groups: Tensor | None) -> Iterator[Tensor]:
    """The labels that are hidden as one."""
    if groups is None:
        yield from torch.split(known, 1)
        return
    _, group, count = torch.unique(groups[known], return_inverse=True, return_counts=True)
    yield from torch.split(known[torch.argsort(group, stable=True)], count.tolist())


def _of_classes(given: Tensor, chances: Tensor) -> dict[str, Tensor]:
    p_given = chances.gather(1, given[:, None]).squeeze(1)
    others = chances.scatter(1, given[:, None], -1.0)
    p_suggested, suggested = others.max(1)
    return {
        "given": given,
        "suggested": suggested,
        "p_given": p_given,
        "p_suggested": p_suggested,
        "margin": _log(p_suggested) - _log(p_given),
    }


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
        "margin": _log(1 - p_given) - _log(p_given),
    }


def _log(chances: Tensor) -> Tensor:
    return chances.clamp(min=1e-12).log()


def write_audit(path: Path, task: Task, found: Audit, *, count: int | None = None) -> int:
    """Write a table of the first `count` rows (None: all); .csv gives CSV, any other name Parquet.

    Columns: rank, node, given, suggested, p_given, p_suggested, margin; of binary tasks also task.
    """
    import pyarrow as pa

    rows = list(named_rows(task, found, count))
    names = ["rank", "node", *(["task"] if found.task is not None else [])]
    names += ["given", "suggested", "p_given", "p_suggested", "margin"]
    write_table(path, pa.table({name: pa.array([row[name] for row in rows]) for name in names}))
    return len(rows)


def named_rows(task: Task, found: Audit, count: int | None = None) -> Iterator[dict[str, Any]]:
    """The rows of an audit under the task's own names."""
    ids, classes = node_ids(task), class_names(task)
    for k in range(len(found) if count is None else min(count, len(found))):
        given, suggested = int(found.given[k]), int(found.suggested[k])
        row: dict[str, Any] = {"rank": k + 1, "node": ids[int(found.node[k])]}
        if found.task is None:
            row |= {"given": classes[given], "suggested": classes[suggested]}
        else:
            row |= {"task": classes[int(found.task[k])], "given": given, "suggested": suggested}
        yield row | {
            name: round(float(getattr(found, name)[k]), 6)
            for name in ("p_given", "p_suggested", "margin")
        }
