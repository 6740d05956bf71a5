"""Paths in a stored recipe: a project may be moved as a whole, and so may a run folder alone.

The recipe in a run folder names files relative to that folder, and the manifest lists their
absolute paths at the time of training, in case the folder was moved and the files were not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from unimp.config.recipe import TABLE_FILES, Recipe
from unimp.config.task_names import DATA_SUFFIXES

OPTIONS = (
    "task.name",
    "task.bundle",
    *(f"tables.{key}" for key in TABLE_FILES),
    "train.teacher",
)
"""The options that may be paths."""


def paths_in(recipe: Recipe) -> dict[str, str]:
    """The options of a recipe that are paths, by their full names."""
    values = recipe.settings()
    given = {option: values[option] for option in OPTIONS if values[option]}
    return {
        option: path
        for option, path in given.items()
        if option.startswith(("tables.", "train.")) or path.endswith(DATA_SUFFIXES)
    }


def paths_outside(recipe: Recipe, folder: Path) -> dict[str, str]:
    """The paths of a recipe that are not in its run folder."""
    start = folder.resolve()
    return {option: path for option, path in paths_in(recipe).items() if Path(path).parent != start}


def with_relative_paths(recipe: Recipe, folder: Path) -> Recipe:
    """A recipe as its run folder stores it."""
    start = folder.resolve()

    def relative(option: str, path: str) -> str:
        try:
            return Path(os.path.relpath(path, start)).as_posix()
        except ValueError:  # another drive of Windows
            return path

    return _with_paths(recipe, relative)


def with_absolute_paths(recipe: Recipe, folder: Path, before: Mapping[str, str]) -> Recipe:
    """A recipe that a run folder stores, with the paths of its files now.

    before: the absolute paths when the run was written, for files that were not moved with it.
    """

    def absolute(option: str, path: str) -> str:
        now = os.path.normpath(folder.resolve() / path)
        old = before.get(option, now)
        return old if not Path(now).exists() and Path(old).exists() else now

    return _with_paths(recipe, absolute)


def _with_paths(recipe: Recipe, change: Callable[[str, str], str]) -> Recipe:
    for option, path in paths_in(recipe).items():
        section, _, key = option.partition(".")
        recipe = recipe.with_options(section, **{key: change(option, path)})
    return recipe
