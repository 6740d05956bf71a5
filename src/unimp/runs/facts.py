"""Compute what a report takes from the task and the model of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from unimp.analysis.predictions import known_in_neighbors
from unimp.config.recipe import Recipe
from unimp.errors import UnimpError
from unimp.runs.folder.facts import LABEL_RATES, Facts
from unimp.runs.preparation import data_hash_of, task_of
from unimp.runs.run import Run
from unimp.runs.scoring import score_split
from unimp.tasks.labels import mask_of
from unimp.tasks.names import class_names
from unimp.tasks.task import Task


def facts_of(task: Task) -> Facts:
    """What a task knows about its nodes, without the label-rate curve."""
    trained = mask_of(task.split.train, task.graph.num_nodes)
    return Facts(
        tuple(str(name) for name in class_names(task)),
        task.graph.in_degree.numpy(),
        known_in_neighbors(task.graph, trained).numpy(),
        None if task.positions is None else task.positions.numpy(),
        task.labels.numpy() if task.is_multilabel else None,
    )


def task_alone(recipe: Recipe, manifest: Mapping[str, Any]) -> Task | None:
    """The task of a run with a custom model, which cannot be loaded from the folder alone."""
    try:
        task = task_of(recipe, manifest["seed"])
    except (UnimpError, OSError):
        return None
    return task if data_hash_of(recipe, task) == manifest["data_hash"] else None


def label_rate_curve(run: Run, part: str) -> tuple[tuple[float, float], ...]:
    """Scores of the trained model with a share of the train labels revealed.

    Each set of revealed labels contains the smaller ones. Nothing is trained again.
    """
    task, curve = run.task, []
    for rate in LABEL_RATES:
        if rate == 1.0:
            curve.append((rate, float(run.metrics["scores"]["train"][part])))
            continue
        scores = run.outputs(run.observed_share(rate))
        curve.append((rate, score_split(scores, task, "train")[part]))
    return tuple((rate, value) for rate, value in curve if math.isfinite(value))
