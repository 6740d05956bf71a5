"""Tasks on part of their train labels, as Figure (b) trains on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from unimp.config.options import TaskOptions
from unimp.config.recipe import SECTIONS, Recipe
from unimp.tasks.labels import Split
from unimp.tasks.task import Task


def with_train_share(task: Task, share: float, *, seed: int) -> Task:
    """The task with round(share · |train|) of its train labels; the others are in no set.

    A smaller share of the same seed is part of a larger one, so that what a curve over shares
    shows is labels added.
    """
    if share == 1:
        return task
    train = task.split.train
    order = torch.randperm(train.numel(), generator=torch.Generator().manual_seed(seed))
    kept = train[order[: max(1, round(share * train.numel()))]].sort().values
    split = Split(train=kept, val=task.split.val, test=task.split.test)
    return replace(task, split=split)


def settings_beside_task(recipe: Recipe) -> dict[str, Any]:
    """The recipe's options as settings, less those that say what its task is."""
    values = recipe.model_dump()
    return {
        f"{section}.{key}": value
        for section in SECTIONS
        if section != "task"
        for key, value in values[section].items()
    }


def recipe_on_file(recipe: Recipe, folder: Path) -> Recipe:
    """The recipe as a run folder that keeps its own task records it."""
    task = TaskOptions(name=str((folder / "task.npz").resolve()))
    return recipe.model_copy(update={"task": task})
