"""The teacher of a student: a finished run that the student's recipe names, and its answers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unimp.config.recipe import Recipe
from unimp.config.run_files import PREDICTIONS
from unimp.ensemble.distillation import Distillation
from unimp.ensemble.student import teacher_summary
from unimp.errors import RecipeError, RunError
from unimp.model.node_model import NodeModel
from unimp.model.solved_model import SolvedModel
from unimp.runs.folder.files import read_run
from unimp.runs.folder.predictions import read_predictions
from unimp.runs.loading import load_run
from unimp.runs.preparation import seeded
from unimp.tasks.names import class_names
from unimp.tasks.task import Task


class Teacher(NamedTuple):
    """What a student learns from, and the summary that it is compared with."""

    loss: Distillation
    summary: Mapping[str, Any]


def answers_hash(folder: Path) -> str:
    """The SHA-256 of the stored predictions of a finished run, which identifies a teacher."""
    _, _, manifest = read_run(folder)
    found: str = manifest["files"][PREDICTIONS]["sha256"]
    return found


def teacher_of(recipe: Recipe, model: NodeModel, task: Task, device: str) -> Teacher | None:
    """The teacher that a recipe names; None if it names none.

    Train labels are the only inputs of its answers, and the split must be that of the student, so
    that validation scores stay comparable. torch's random state stays unchanged.
    """
    options, folder = recipe.train, Path(recipe.train.teacher)
    if not options.teacher:
        return None
    if not model.learns or isinstance(model, SolvedModel):
        raise RecipeError(
            f"train.teacher is set, but {recipe.model.name} is not trained by the training loop, "
            "so it cannot learn from a teacher; set model.name=unimp"
        )
    sha256 = answers_hash(folder)
    if sha256 != options.teacher_sha256:
        raise RunError(
            f"train.teacher: the run in {folder} is not the teacher that the recipe names: its "
            f"{PREDICTIONS} has the SHA-256 {sha256}, not {options.teacher_sha256}. Restore that "
            "run, or start a new student with `unimp distill`."
        )
    with seeded(0, device):
        teacher = load_run(folder, device=device)
        ours, theirs = (
            (one.labels, one.split.train, one.split.val, one.split.test)
            for one in (task, teacher.task)
        )
        if not all(map(torch.equal, ours, theirs)):
            raise RunError(
                f"train.teacher: the run in {folder} has other labels or another split than this "
                "run, so its answers could reveal labels. Use the task and task.split of the "
                "teacher."
            )
        if teacher.is_refitted:
            probabilities = _stored_probabilities(folder, task)
        else:
            outputs = teacher.outputs(teacher.observed_labels(reveal="train"))
            probabilities = teacher.probabilities_of(outputs)
    loss = Distillation.of(
        probabilities.to(device),
        task.split.train,
        weight=options.teacher_weight,
        multilabel=task.is_multilabel,
    )
    return Teacher(loss, teacher_summary(folder.name, sha256, teacher.metrics))


def _stored_probabilities(folder: Path, task: Task) -> Tensor:
    """The probabilities of a refitted ensemble from before its refit: [N, classes].

    The predictions of the refitted members depend on validation labels, so that a student could
    not be compared on the validation set.
    """
    _, _, manifest = read_run(folder)
    columns = [f"p_{name}" for name in class_names(task)]
    table = read_predictions(folder, manifest, lambda names: columns)
    if not set(columns) <= set(table.column_names):
        raise RunError(
            f"train.teacher: {folder / PREDICTIONS} does not contain the probability of each class "
            "from before the refit, because there are too many. Train the teacher with "
            "ensemble.refit=never."
        )
    return torch.stack([torch.tensor(table[name].to_numpy()) for name in columns], 1)
