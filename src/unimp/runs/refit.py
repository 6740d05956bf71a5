"""Train the members of an ensemble again on all known labels, after validation has chosen them.

The scores of a run are computed before this step: afterwards, validation labels are train labels,
and nothing could be chosen or measured with them.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from unimp.config.recipe import Recipe
from unimp.config.run_files import REFIT
from unimp.ensemble.calibration import Calibration
from unimp.ensemble.model import Ensemble, Entry
from unimp.ensemble.portfolio import member_recipe
from unimp.errors import TrainingError, UnimpError
from unimp.model.node_model import NodeModel
from unimp.model.solved_model import KnownLabels, SolvedModel
from unimp.runs.context import Experiment
from unimp.runs.preparation import graph_for
from unimp.runs.run import Run
from unimp.runs.trained_model import TrainedModel
from unimp.tasks.labels import Split, is_known, reveal_only
from unimp.tasks.task import Task

SHARE_OF_REFIT = 0.25
"""The part of the time limit that is reserved for this step."""
NO_TIME = "there was no time left to train it again"


def refits(recipe: Recipe, task: Task) -> bool:
    """Whether the members of a recipe's ensemble are trained again on all known labels."""
    wanted = recipe.ensemble.refit
    asked = wanted == "always" or (wanted == "own" and recipe.is_of_own_data)
    is_ensemble = recipe.ensemble.portfolio != "none"
    return is_ensemble and asked and bool(is_known(task.labels[task.split.val]).any())


def refitted_run(experiment: Experiment, run: Run, train: Callable[[Experiment], Run]) -> Run:
    """The run of an ensemble whose members were trained again on train and validation labels.

    Weights, calibration and the number of epochs are those that validation chose before. Members
    with large weights come first. A member that cannot be trained again in the time that is left
    stays as it is. train: trains one member as an experiment of its own, or resumes or loads it.
    """
    ensemble, began = run.model, time.perf_counter()
    assert isinstance(ensemble, Ensemble)
    models, entries = list(ensemble.members), list(ensemble.entries)
    rows = {row["name"]: row for row in run.metrics["ensemble"]["members"]}
    limit, before = run.recipe.train.time_limit, run.metrics["seconds"]
    kept: dict[str, str] = {}
    for index in sorted(range(len(entries)), key=lambda i: -entries[i].weight):
        entry, member = entries[index], run.members[index]
        spent = before + time.perf_counter() - began
        left = 0.95 * limit - spent if limit else None
        try:
            found = _trained_again(experiment, member, entry, rows[entry.name], left, train)
        except UnimpError as error:  # the member from before is still there
            kept[entry.name] = str(error)
            continue
        models[index], entries[index] = found
        experiment.progress.note(f"{entry.name}: trained again with the validation labels")
    calibrations = [Calibration(*one) for one in zip(ensemble.scale, ensemble.shift, strict=True)]
    again = replace(run, model=Ensemble(models, entries, calibrations).eval())  # type: ignore[arg-type]
    summary = _summary(run.metrics["ensemble"], entries, kept)
    again = replace(again, metrics={**run.metrics, "ensemble": summary})
    scores = {**run.metrics["scores"], "refit": again.evaluate("refit")}
    seconds = round(before + time.perf_counter() - began, 2)
    return replace(again, metrics={**again.metrics, "scores": scores, "seconds": seconds})


def _trained_again(
    experiment: Experiment,
    member: TrainedModel,
    entry: Entry,
    row: Mapping[str, Any],
    left: float | None,
    train: Callable[[Experiment], Run],
) -> tuple[NodeModel, Entry]:
    """A member that was trained on all known labels, and its entry.

    left: seconds that are left; None: there is no limit.
    """
    if not member.model.learns:  # it uses all labels that it is given
        return member.model, entry
    if left is not None and left < row["seconds"] / 2:
        raise TrainingError(NO_TIME)
    task = _with_all_known(member.task)
    if isinstance(member.model, SolvedModel):
        model = copy.deepcopy(member.model)
        graph = graph_for(member.recipe, model, task, member.device)
        labels = reveal_only(task.split.train, task.labels)
        known = KnownLabels(labels, task.split.train, task.split.val, task.metric, task.groups)
        model.solve_again(graph, known, seed=member.seed)
        return model, entry
    epochs = max(1, row["epochs"] or 1)
    settings = {
        **entry.settings,
        "train.epochs": epochs,
        "train.eval_from": epochs,
        "train.patience": 0,
        "train.time_limit": 0.0 if left is None else round(max(left, 1.0), 2),
    }
    inner = replace(
        experiment,
        recipe=member_recipe(experiment.stored_recipe, entry.name, settings),
        folder=None if experiment.folder is None else experiment.folder / REFIT / entry.name,
        own_task=None,
        prepared=task,
        show=False,
        log=(),
        report=False,
    )
    run = train(inner)
    if run.metrics["cut_short"]:  # half of a training is worse than the member from before
        raise TrainingError(NO_TIME)
    return run.model, replace(entry, settings=settings)


def _with_all_known(task: Task) -> Task:
    """The task with the validation nodes among the train nodes, and no validation nodes."""
    split = task.split
    train = torch.cat((split.train, split.val)).sort()[0]
    return replace(task, split=Split(train=train, val=split.val[:0], test=split.test))


def _summary(
    summary: Mapping[str, Any], entries: list[Entry], kept: Mapping[str, str]
) -> dict[str, Any]:
    """The leaderboard with the settings of the refit, and the members that were not refitted."""
    settings = {entry.name: dict(entry.settings) for entry in entries}
    rows = [
        {**row, "settings": settings.get(row["name"], row["settings"])}
        for row in summary["members"]
    ]
    return {**summary, "members": rows, "refitted": True, "not_refitted": dict(kept)}
