"""The gate: whether a newly trained model may replace the active one.

Both models are compared on nodes whose labels neither of them was trained on, with the same inputs
and on the same graph. `docs/decisions/0018-labels-that-the-gate-holds-out.md` states the reasons.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from unimp.analysis.audit import audit, choose_folds
from unimp.errors import NonFiniteError
from unimp.inference.calibration import calibration_error
from unimp.runs.run import Run
from unimp.tasks.labels import is_known, reveal_only
from unimp.tasks.means import FEW_NODES
from unimp.tasks.metrics import score

WORSE = 0.005
"""A score may be lower than that of the active model by this much."""
MISCALIBRATED = 0.02
"""The expected calibration error may be higher than that of the active model by this much."""


@dataclass(frozen=True)
class Check:
    """The result of one check.

    before, after: the figures of the active model and of the new one; None if there are none.
    count: the number of labels that they were measured on. detail: the result in words.
    """

    name: str
    passed: bool
    detail: str
    before: float | None = None
    after: float | None = None
    count: int = 0

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def compare(old: Run, new: Run, held: Tensor) -> list[Check]:
    """Compare a new model with the active one, on the task of the new one.

    held: the live labels that neither model was trained on, as numbers of nodes.
    """
    old = replace(old, task=new.task)
    split, labels = new.task.split, new.task.labels
    inputs = reveal_only(torch.cat((split.train, split.val, held)), labels)
    try:
        chances = new.probabilities_of(new.outputs(inputs))
        finite = bool(torch.isfinite(chances).all())
    except NonFiniteError:
        finite = False
    if not finite:
        return [Check("finite", False, "some predictions of the new model are not finite")]
    checks = [Check("finite", True, "all predictions are finite")]
    return [*checks, *_on_validation(old, new), _on_live_labels(old, new, held, inputs)]


def _on_validation(old: Run, new: Run) -> list[Check]:
    """Score and calibration error on validation nodes, with train labels as inputs."""
    task, nodes = new.task, new.task.split.val
    count = int(is_known(task.labels[nodes]).sum())
    if not count:
        return [Check("validation", True, "there are no validation labels to compare by")]
    if old.is_refitted or new.is_refitted:
        # The members were trained again on validation labels. Both were scored before that.
        scores = [one.metrics["scores"]["train"].get("val") for one in (old, new)]
        errors = [
            one.metrics["calibration"]["ece"].get("val", {}).get("after") for one in (old, new)
        ]
    else:
        observed, labels = reveal_only(task.split.train, task.labels), task.labels[nodes]
        outputs = [one.outputs(observed) for one in (old, new)]
        scores = [score(task.metric, one[nodes], labels) for one in outputs]
        errors = [
            calibration_error(one.probabilities_of(given)[nodes], labels)
            for one, given in zip((old, new), outputs, strict=True)
        ]
    return [
        _compared("validation", scores, count, f"{task.metric} on validation nodes", WORSE),
        _compared(
            "calibration",
            errors,
            count,
            "expected calibration error on validation nodes",
            MISCALIBRATED,
            lower=True,
        ),
    ]


def _on_live_labels(old: Run, new: Run, held: Tensor, inputs: Tensor) -> Check:
    """Accuracy on the last live labels, each predicted with its own label hidden."""
    what = "accuracy on the last live labels, each hidden from the model"
    if not len(held):
        return Check("live labels", True, "no live label is held out yet")
    engines = [one.incremental(inputs) for one in (old, new)]
    folds = choose_folds(engines[0], list(torch.split(held, 1))) if len(held) > 1 else 0
    right, count = [], 0
    for run, engine in zip((old, new), engines, strict=True):
        found = audit(engine, new.task, held, chances=run.probabilities_of, folds=folds)
        count = len(found)
        right.append(1 - found.disagreements / count)
    return _compared("live labels", right, count, what, WORSE)


def _compared(
    name: str,
    figures: Sequence[float | None],
    count: int,
    what: str,
    margin: float,
    *,
    lower: bool = False,
) -> Check:
    """Compare two figures, of which the second may be worse by `margin`; lower: less is better."""
    before, after = (math.nan if figure is None else float(figure) for figure in figures)
    if math.isnan(before) or math.isnan(after):
        return Check(name, True, f"the {what} is not defined", count=count)
    worse = after - before if lower else before - after
    few = name != "validation" and count < FEW_NODES
    passed = few or worse <= margin + 1e-9
    words = f"{100 * after:.2f} % (active model: {100 * before:.2f} %), {what} ({count:,})"
    if few:
        words += f"; not decisive, because there are fewer than {FEW_NODES} labels"
    elif not passed:
        words += f"; worse by {100 * worse:.2f} points, more than {100 * margin:g}"
    return Check(name, passed, words, round(before, 6), round(after, 6), count)
