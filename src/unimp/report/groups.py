"""Which runs belong together: the seeds of one recipe form a group, recipes are compared."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

from unimp.config.recipe import Recipe, load_recipe, recipe_names
from unimp.model.table import find_model
from unimp.report.evidence import Evidence
from unimp.tasks.means import mean_and_std

SAME_SIZE = 0.2
"""The share by which train sets of one group may differ in size."""


@dataclass(frozen=True)
class Group:
    """Runs of one recipe that differ only in their seed."""

    name: str
    runs: tuple[Evidence, ...]

    @property
    def recipe(self) -> Recipe:
        return self.runs[0].recipe

    @property
    def takes_labels(self) -> bool:
        """Whether labels are inputs."""
        return self.runs[0].takes_labels

    @property
    def is_ensemble(self) -> bool:
        return "ensemble" in self.runs[0].metrics

    @property
    def is_smoothed(self) -> bool:
        """Whether predictions are smoothed after training."""
        return self.recipe.smooth.form != "none"

    @property
    def seeds(self) -> str:
        """The seeds as text: `0–4, 7`; and the number of runs if a seed occurs twice."""
        seeds = [run.manifest["seed"] for run in self.runs]
        unique = sorted(set(seeds))
        return in_ranges(unique) + (f" ({len(seeds)} runs)" if len(unique) < len(seeds) else "")

    def scores(self, part: str, protocol: str = "train") -> list[float]:
        """The scores of its runs that have one."""
        values = (run.score(part, protocol) for run in self.runs)
        return [value for value in values if value is not None]

    @property
    def model(self) -> str:
        """The model and its inputs."""
        if self.runs[0].own_model:
            return f"{self.runs[0].own_model} (custom model)"
        if self.is_ensemble:
            return f"ensemble ({self.recipe.ensemble.portfolio})"
        model = self.recipe.model
        chosen = len(find_model(model.name).inputs) > 1
        return f"{model.name}, {model.inputs}" if chosen else model.name

    def mean(self, part: str) -> float:
        values = self.scores(part)
        return mean_and_std(values)[0] if values else math.nan


@dataclass(frozen=True)
class Comparison:
    """Recipes for one task under one metric."""

    task: str
    metric: str
    groups: tuple[Group, ...]

    @property
    def runs(self) -> list[Evidence]:
        return [run for group in self.groups for run in group.runs]


def compare(runs: Sequence[Evidence]) -> list[Comparison]:
    """Runs by task, and within a task by recipe, in the order given."""
    tasks: dict[tuple[str, str], dict[str, list[Evidence]]] = {}
    for run in runs:
        task = (str(run.manifest.get("task", run.recipe.task.name)), str(run.metrics["metric"]))
        # Tasks with the same name may differ in size, such as those stored in run folders.
        kind = [run.recipe.name, values_of(run.recipe), run.own_model, run.sizes.get("nodes")]
        tasks.setdefault(task, {}).setdefault(json.dumps(kind), []).append(run)
    found = []
    for (name, metric), kinds in tasks.items():
        alike = [one for runs in kinds.values() for one in _by_train_size(runs)]
        groups = [group for runs in alike for group in _by_data(runs)]
        found.append(Comparison(name, metric, tuple(_named(groups))))
    return found


def _by_train_size(runs: Sequence[Evidence]) -> list[list[Evidence]]:
    """Runs with train sets of about the same size.

    Train sets that each seed draws, for example from whole groups of nodes, differ a little; the
    shares of one set in Figure (b) differ by more than SAME_SIZE.
    """
    sizes = sorted({_train_size(run) for run in runs})
    starts = [b for a, b in pairwise([-math.inf, *sizes]) if b - a > SAME_SIZE * b]
    return _by(runs, lambda run: bisect_right(starts, _train_size(run)))


def _train_size(run: Evidence) -> int:
    return run.sizes.get("train", 0)


def _by_data(runs: Sequence[Evidence]) -> list[list[Evidence]]:
    """Runs that differ only in their seed: split by data if one seed has two data sets.

    Different data of different seeds mean nothing, because each seed may have its own split.
    """
    if _one_each(runs):
        return [list(runs)]
    by_size = _by(runs, lambda run: json.dumps(dict(run.sizes)))  # shares that differ a little
    if all(map(_one_each, by_size)):
        return by_size
    return _by(runs, lambda run: run.manifest["data_hash"])


def _one_each(runs: Sequence[Evidence]) -> bool:
    """Whether every seed has one data set."""
    hashes = {(run.manifest["seed"], run.manifest["data_hash"]) for run in runs}
    return len(hashes) == len({seed for seed, _ in hashes})


def _by(runs: Sequence[Evidence], key: Callable[[Evidence], Any]) -> list[list[Evidence]]:
    """Runs with equal keys together, in the order given."""
    groups: dict[Any, list[Evidence]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return list(groups.values())


def values_of(recipe: Recipe) -> dict[str, Any]:
    """Every option and its value, except the name of the task, which may be a file of the run.

    The regime auto counts as full, which it selects wherever that fits.
    """
    values = recipe.settings()
    del values["task.name"]
    if values["batch.regime"] == "auto":
        values["batch.regime"] = "full"
    return values


def differing(recipes: Sequence[Recipe]) -> list[str]:
    """The options in which recipes differ."""
    every = [values_of(recipe) for recipe in recipes]
    return [key for key in every[0] if any(values[key] != every[0][key] for values in every)]


def telling(recipes: Sequence[Recipe]) -> list[list[str]]:
    """For each recipe, the options that distinguish it from the others.

    Options of training are compared among trained models, and options of the task among tasks that
    are not stored in a run folder.
    """
    untrained = [not find_model(recipe.model.name).learns for recipe in recipes]
    kept = [recipe.task.name.endswith(".npz") for recipe in recipes]

    def unlike(flags: Sequence[bool]) -> dict[bool, list[str]]:
        return {
            flag: differing([r for r, one in zip(recipes, flags, strict=True) if one is flag])
            for flag in set(flags)
        }

    of_model, of_task = unlike(untrained), unlike(kept)
    always = ["model.name"] if len(of_model) > 1 else []
    return [
        [key for key in of_task[k] if key.startswith("task.")]
        + always
        + [key for key in of_model[u] if not key.startswith("task.") and key not in always]
        for u, k in zip(untrained, kept, strict=True)
    ]


def in_ranges(numbers: Sequence[int], dash: str = "–", comma: str = ", ") -> str:
    """Numbers in their order, with consecutive ones as a range: `0–4, 7`."""
    parts = []
    for _, run in groupby(enumerate(numbers), lambda entry: entry[1] - entry[0]):
        first, *rest = (number for _, number in run)
        parts.append(f"{first}{dash}{rest[-1]}" if rest else str(first))
    return comma.join(parts)


def _named(groups: Sequence[Sequence[Evidence]]) -> list[Group]:
    """Groups named by their recipes; equal names get the settings that distinguish them."""
    recipes = [runs[0].recipe for runs in groups]
    names = [recipe.name or recipe.task.name for recipe in recipes]
    if len(set(names)) < len(names):
        names = [
            ", ".join([name, *_settings(recipe, keys)])
            for name, recipe, keys in zip(names, recipes, telling(recipes), strict=True)
        ]
    firsts = [runs[0] for runs in groups]
    for words in (
        [run.own_model for run in firsts],
        [f"{run.sizes['train']:,} train nodes" if run.sizes else "" for run in firsts],
        [f"data {run.manifest['data_hash'][:8]}" for run in firsts],
        [f"group {place + 1}" for place in range(len(firsts))],
    ):
        shared = {name for name in names if names.count(name) > 1}
        names = [
            f"{name}, {word}" if word and name in shared else name
            for name, word in zip(names, words, strict=True)
        ]
    return [Group(name, tuple(runs)) for name, runs in zip(names, groups, strict=True)]


def _settings(recipe: Recipe, keys: Sequence[str]) -> list[str]:
    """The settings that differ from the bundled recipe of that name, or from the defaults."""
    shipped = recipe.name in recipe_names()
    usual, values = values_of(load_recipe(recipe.name) if shipped else Recipe()), values_of(recipe)
    return [
        f"{key}={values[key] if isinstance(values[key], str) else json.dumps(values[key])}"
        for key in keys
        if values[key] != usual[key]
    ]
