"""Trained members of an ensemble: their answers, their weights, and the leaderboard."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unimp.config.choices import Metric
from unimp.ensemble.calibration import Calibration, fit_calibration
from unimp.ensemble.portfolio import Member
from unimp.ensemble.selection import choose_weights, mixed, nested_score, score_of
from unimp.runs.run import Run
from unimp.tasks.labels import is_known
from unimp.tasks.means import FEW_NODES
from unimp.tasks.task import Task

WEAK = 0.05
"""If the best validation score of a family is lower than that of the best member by more than this,
the other members of the family are left out, unless the ensemble uses the family."""


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained member and its answers on the validation set."""

    member: Member
    settings: Mapping[str, Any]
    run: Run
    calibration: Calibration
    chances: Tensor  # [n_val, C] calibrated probabilities, with train labels as inputs
    val: float


def weights_of(trained: Sequence[Trained], labels: Tensor) -> Tensor:
    """The weights of the members; equal ones if there are few validation labels to choose by."""
    metric = trained[0].run.task.metric
    return weights_by([one.chances for one in trained], labels, metric)


def weights_by(chances: Sequence[Tensor], labels: Tensor, metric: Metric) -> Tensor:
    """The weights of members: chosen by the metric, or equal if few labels are known.

    chances: the calibrated probabilities [n, C] of each member for the nodes with these labels.
    """
    if int(is_known(labels).sum()) < FEW_NODES:
        return torch.full((len(chances),), 1 / len(chances), dtype=torch.float64)
    return choose_weights(chances, labels, metric)


def answered(member: Member, settings: Mapping[str, Any], run: Run) -> Trained:
    """A trained member with its calibrated answers on the validation set."""
    val, multilabel = run.task.split.val, run.task.is_multilabel
    outputs = run.outputs(run.observed_labels(reveal="train"))
    chances = run.probabilities_of(outputs)[val]
    calibration = fit_calibration(chances, run.task.labels[val])
    chances = calibration.apply(chances, multilabel=multilabel)
    score = run.metrics["scores"]["train"].get("val", math.nan)
    return Trained(member, settings, run, calibration, chances, score)


def why_left_out(member: Member, trained: Sequence[Trained], labels: Tensor) -> str:
    """Why a member is not trained: others of its family were too weak; empty if it is trained."""
    scored = [one for one in trained if math.isfinite(one.val)]
    family = [one for one in scored if one.member.family == member.family]
    if not family or any(one.run.metrics["cut_short"] for one in family):
        return ""
    best, own = (max(one.val for one in some) for some in (scored, family))
    weights = weights_of(trained, labels)
    used = any(float(w) > 0 for one, w in zip(trained, weights, strict=True) if one in family)
    noise = 1 / math.sqrt(len(labels))  # about two standard errors of an accuracy
    if used or best - own <= max(WEAK, noise):
        return ""
    return f"{family[0].member.name} was {100 * (best - own):.1f} points below the best member"


def progress_line(
    newest: Trained, trained: Sequence[Trained], labels: Tensor, metric: Metric
) -> str:
    """One line about the newest member and the ensemble so far."""
    text = f"{newest.member.name}: {newest.run.metrics['seconds']:.0f} s"
    if not math.isfinite(newest.val):
        return text
    answers = mixed([one.chances for one in trained], weights_of(trained, labels))
    together = score_of(answers, labels, metric)
    return (
        f"{text}, validation {100 * newest.val:.2f} %; "
        f"ensemble of {len(trained)}: {100 * together:.2f} %"
    )


def leaderboard(
    trained: Sequence[Trained], weights: Tensor, notes: Mapping[str, str], task: Task, seed: int
) -> dict[str, Any]:
    """The leaderboard of an ensemble, and how optimistic its validation score is."""
    val = task.split.val
    labels, chances = task.labels[val], [one.chances for one in trained]
    chosen = nested = math.nan
    known = int(is_known(labels).sum())
    if known >= 2:
        chosen = score_of(mixed(chances, weights), labels, task.metric)
    if known >= FEW_NODES:  # with fewer, no weights were chosen
        groups = None if task.groups is None else task.groups[val]
        nested = nested_score(chances, labels, task.metric, seed=seed, groups=groups)
    rows = [
        {
            "name": one.member.name,
            "weight": float(weight),
            "temperature": one.run.temperature,
            "takes_labels": one.run.takes_labels,
            **{name: one.run.metrics["scores"]["train"].get(name) for name in ("val", "test")},
            "seconds": one.run.metrics["seconds"],
            "epochs": one.run.metrics["best_epoch"],
            "seconds_per_epoch": one.run.metrics["seconds_per_epoch"],
            "cut_short": one.run.metrics["cut_short"],
            "folds": 1,
            "settings": dict(one.settings),
        }
        for one, weight in zip(trained, weights, strict=True)
    ]
    return {
        "members": rows,
        "left_out": dict(notes),
        "val": chosen,
        "val_nested": nested,
        "optimism": chosen - nested,
        "folds": 0,
        "val_folds": None,
        "refitted": False,
        "not_refitted": {},
    }
