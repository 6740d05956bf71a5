"""Train the members of an ensemble one after the other, and choose their weights on validation.

Each member is a separate run, stored in the folder members/NAME of the ensemble's run. An
interrupted command therefore resumes the member that was being trained, and does not train finished
members again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unimp.config.choices import Metric
from unimp.config.recipe import Recipe
from unimp.config.run_files import CHECKPOINT, MEMBERS, is_finished
from unimp.ensemble.calibration import Calibration, fit_calibration
from unimp.ensemble.model import Ensemble, Entry
from unimp.ensemble.portfolio import Member, member_recipe, members_for, settings_of
from unimp.ensemble.selection import (
    choose_weights,
    mixed,
    nested_score,
)
from unimp.errors import ModelError, RecipeError, RunError, TrainingError
from unimp.runs.context import Experiment
from unimp.runs.folder.files import read_run
from unimp.runs.folder.resume import depends_on, load_state
from unimp.runs.preparation import member_task, model_of, refuse_nothing_hidden
from unimp.runs.run import Run
from unimp.tasks.labels import is_known
from unimp.tasks.metrics import FEW_NODES, score
from unimp.tasks.task import Task
from unimp.training.checkpoint import save_checkpoint
from unimp.training.loop import Fit, Position, TrainingState

SHARE_AFTER = 0.1
"""The part of the time limit that is reserved for scoring and writing the ensemble."""
SLACK = 2.0
"""A member may take this many times its share of the remaining time; most stop earlier."""
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


def fit_ensemble(
    experiment: Experiment, task: Task, data_hash: str, train: Callable[[Experiment], Run]
) -> tuple[Ensemble, Fit]:
    """Train the members that suit the task, as far as the time limit allows, and combine them.

    train: trains one member, or resumes it, or loads it if it is finished; raises if it failed.
    """
    members = checked_members(experiment.recipe, task)
    _mark_begun(experiment, data_hash)
    labels = task.labels[task.split.val]
    trained: list[Trained] = []
    notes: dict[str, str] = {}
    spent_before, cut_short = 0.0, False
    time_limit = experiment.recipe.train.time_limit
    for position, member in enumerate(members):
        if why := _why_left_out(member, trained, labels):
            notes[member.name] = why
            continue
        spent = time.perf_counter() - experiment.started + spent_before
        limit = _time_for(members[position:], time_limit, spent)
        folder = None if experiment.folder is None else experiment.folder / MEMBERS / member.name
        was_finished = folder is not None and is_finished(folder)
        if limit is not None and limit <= 0 and trained and not was_finished:
            notes[member.name] = "there was no time left"
            cut_short = True
            continue
        try:
            inner, settings = _experiment_of(member, experiment, task, folder, limit)
            run = train(inner)
        except (TrainingError, RecipeError, RunError) as error:  # others may still succeed
            notes[member.name] = str(error)
            experiment.progress.note(f"{member.name}: {error}")
            continue
        spent_before += run.metrics["seconds"] if was_finished else 0.0
        trained.append(_answered(member, settings, run))
        experiment.progress.note(_progress(trained, labels, task.metric))
    if not trained:
        raise TrainingError(
            "no member of the ensemble could be trained: "
            + "; ".join(f"{name}: {why}" for name, why in notes.items())
        )
    weights = weights_of(trained, labels)
    summary = _summary(trained, weights, notes, task, experiment.seed)
    chosen = [(one, float(w)) for one, w in zip(trained, weights, strict=True) if w > 0]
    entries = [Entry(t.member.name, t.settings, w, t.run.temperature) for t, w in chosen]
    stopped = f"{len(trained)} of {len(members)} members trained"
    if cut_short:
        stopped = f"cut short by the time limit of {time_limit:g} s after {stopped}"
    fit = Fit(
        stopped=stopped,
        cut_short=cut_short,
        spent_before=spent_before,
        ensemble=summary,
    )
    models = [t.run.model for t, _ in chosen]
    return Ensemble(models, entries, [t.calibration for t, _ in chosen]), fit


def checked_members(recipe: Recipe, task: Task) -> list[Member]:
    """The members of a recipe's ensemble; refused if there is nothing to learn from."""
    refuse_nothing_hidden(recipe, task)
    try:
        return members_for(recipe, task)
    except ModelError as error:
        raise RecipeError(f"ensemble.members: {error}") from None


def ensemble_of(recipe: Recipe, task: Task, summary: Mapping[str, Any]) -> Ensemble:
    """The ensemble of a stored run, with members of the right shapes; weights are read later."""
    entries = [
        Entry(row["name"], row["settings"], row["weight"], row["temperature"])
        for row in summary["members"]
        if row["weight"] > 0
    ]
    if not entries:
        raise RunError("no member of the ensemble has a weight in metrics.json. Train again.")
    recipes = [member_recipe(recipe, entry.name, entry.settings) for entry in entries]
    models = [model_of(r, member_task(recipe, r, task)) for r in recipes]
    width = task.num_classes if task.is_multilabel else 1
    numbers = torch.ones(width, dtype=torch.float64)
    return Ensemble(models, entries, [Calibration(numbers, numbers)] * len(models))


def weights_of(trained: Sequence[Trained], labels: Tensor) -> Tensor:
    """The weights of the members; equal ones if there are few validation labels to choose by."""
    if int(is_known(labels).sum()) < FEW_NODES:
        return torch.full((len(trained),), 1 / len(trained), dtype=torch.float64)
    metric = trained[0].run.task.metric
    return choose_weights([one.chances for one in trained], labels, metric)


def _answered(member: Member, settings: Mapping[str, Any], run: Run) -> Trained:
    """A trained member with its calibrated answers on the validation set."""
    val, multilabel = run.task.split.val, run.task.is_multilabel
    outputs = run.outputs(run.observed_labels(reveal="train"))
    chances = run.probabilities_of(outputs)[val]
    calibration = fit_calibration(chances, run.task.labels[val])
    chances = calibration.apply(chances, multilabel=multilabel)
    score = run.metrics["scores"]["train"].get("val", math.nan)
    return Trained(member, settings, run, calibration, chances, score)


def _experiment_of(
    member: Member,
    experiment: Experiment,
    task: Task,
    folder: Path | None,
    limit: float | None,
) -> tuple[Experiment, dict[str, Any]]:
    """The experiment that trains one member of another experiment, and the member's settings."""
    settings = settings_of(member, task)
    if limit is not None:
        settings["train.time_limit"] = round(max(limit, 1.0), 2)
    base = experiment.stored_recipe
    if folder is not None and is_finished(folder):  # it was trained with another time left
        settings["train.time_limit"] = read_run(folder)[0].train.time_limit
    recipe = member_recipe(base, member.name, settings)
    inner = replace(
        experiment,
        recipe=recipe,
        folder=folder,
        own_task=None,
        prepared=member_task(base, recipe, task),
        show=False,
        log=(),
        report=False,
    )
    return inner, settings


def _mark_begun(experiment: Experiment, data_hash: str) -> None:
    """Store what the ensemble depends on, so that only the same command resumes it."""
    folder = experiment.folder
    origin = depends_on(
        experiment.recipe,
        experiment.seed,
        data=data_hash,
        device=experiment.device.partition(":")[0],
        model=None,
    )
    if folder is not None and load_state(folder, origin) is None:
        state = TrainingState({}, Position(), (), None)
        save_checkpoint(folder / CHECKPOINT, state, origin)


def _time_for(members: Sequence[Member], limit: float, spent: float) -> float | None:
    """Seconds for the first of the remaining members; None: there is no limit."""
    if not limit:
        return None
    left = (1 - SHARE_AFTER) * limit - spent
    share = members[0].cost / sum(member.cost for member in members)
    return min(left, SLACK * share * left)


def _why_left_out(member: Member, trained: Sequence[Trained], labels: Tensor) -> str:
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


def _progress(trained: Sequence[Trained], labels: Tensor, metric: Metric) -> str:
    """One line about the newest member and the ensemble so far."""
    newest = trained[-1]
    text = f"{newest.member.name}: {newest.run.metrics['seconds']:.0f} s"
    if not math.isfinite(newest.val):
        return text
    answers = mixed([one.chances for one in trained], weights_of(trained, labels))
    together = score(metric, answers, labels)
    return (
        f"{text}, validation {100 * newest.val:.2f} %; "
        f"ensemble of {len(trained)}: {100 * together:.2f} %"
    )


def _summary(
    trained: Sequence[Trained], weights: Tensor, notes: Mapping[str, str], task: Task, seed: int
) -> dict[str, Any]:
    """The leaderboard of an ensemble, and how optimistic its validation score is."""
    val = task.split.val
    labels, chances = task.labels[val], [one.chances for one in trained]
    chosen = nested = math.nan
    if int(is_known(labels).sum()) >= 2:
        chosen = score(task.metric, mixed(chances, weights), labels)
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
    }
