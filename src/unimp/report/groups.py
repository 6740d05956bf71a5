"""Which runs belong together: the same recipe with other seeds; and other recipes beside it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from unimp.config.recipe import Recipe, load_recipe, options, recipe_names
from unimp.report.evidence import Evidence
from unimp.tasks.metrics import mean_and_std

UNTRAINED = "label-propagation"
SAME_SIZE = 0.2
"""By what share of the larger one train sets of one recipe may differ."""


@dataclass(frozen=True)
class Group:
    """Runs of one recipe, which differ in their seed alone."""

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
    def is_smoothed(self) -> bool:
        """Whether answers are smoothed, which they are once the epochs are over."""
        return self.recipe.smooth.form != "none"

    @property
    def seeds(self) -> str:
        """The seeds in words: `0–4, 7`."""
        return in_ranges([run.manifest["seed"] for run in self.runs])

    def scores(self, part: str, protocol: str = "train") -> list[float]:
        """The scores of its runs, where they have one."""
        values = (run.score(part, protocol) for run in self.runs)
        return [value for value in values if value is not None]

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
        # Tasks of one name may be of other sizes, as those kept in run folders are.
        kind = [run.recipe.name, values_of(run.recipe), run.own_model, run.sizes.get("nodes")]
        tasks.setdefault(task, {}).setdefault(json.dumps(kind), []).append(run)
    return [
        Comparison(
            *task,
            tuple(
                _named(
                    [
                        group
                        for runs in kinds.values()
                        for alike in _by_train_size(runs)
                        for group in _by_data(alike)
                    ]
                )
            ),
        )
        for task, kinds in tasks.items()
    ]


def _by_train_size(runs: Sequence[Evidence]) -> list[list[Evidence]]:
    """Runs whose train sets are about as large, in the order given.

    Sets that seeds draw anew, as where nodes of a group stay together, differ by a little; those
    of Figure (b), which are shares of one, by more than SAME_SIZE.
    """
    groups: list[list[Evidence]] = []
    last = 0
    for run in sorted(runs, key=_train_size):
        size = _train_size(run)
        if not groups or size - last > SAME_SIZE * size:
            groups.append([])
        groups[-1].append(run)
        last = size
    order = {id(run): place for place, run in enumerate(runs)}
    for group in groups:
        group.sort(key=lambda run: order[id(run)])
    return sorted(groups, key=lambda group: order[id(group[0])])


def _train_size(run: Evidence) -> int:
    return run.sizes.get("train", 0)


def _by_data(runs: Sequence[Evidence]) -> list[list[Evidence]]:
    """Runs that differ in their seed alone: where one seed had two sets of data, by the data.

    Data that differ between seeds say nothing, as each seed may have a split of its own.
    """
    if _one_each(runs):
        return [list(runs)]
    by_size = _by(runs, lambda run: json.dumps(dict(run.sizes)))  # shares that differ by a little
    if all(map(_one_each, by_size)):
        return by_size
    return _by(runs, lambda run: str(run.manifest["data_hash"]))


def _one_each(runs: Sequence[Evidence]) -> bool:
    """Whether every seed had one set of data."""
    hashes = {(run.manifest["seed"], run.manifest["data_hash"]) for run in runs}
    return len(hashes) == len({seed for seed, _ in hashes})


def _by(runs: Sequence[Evidence], key: Callable[[Evidence], str]) -> list[list[Evidence]]:
    groups: dict[str, list[Evidence]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return list(groups.values())


def values_of(recipe: Recipe) -> dict[str, Any]:
    """Every option and its value, but for the task's name: a run's own task lies in its folder."""
    values = recipe.model_dump()
    named = {f"{s}.{k}": values[s][k] for s, k, _ in options() if f"{s}.{k}" != "task.name"}
    return _with_regime(named)


def defaults() -> dict[str, Any]:
    """Every option and its default."""
    return _with_regime({f"{s}.{k}": declared.default for s, k, declared in options()})


def _with_regime(values: dict[str, Any]) -> dict[str, Any]:
    """A regime left open counts as the full batch, which it is wherever that fits."""
    return values | ({"batch.regime": "full"} if values["batch.regime"] == "auto" else {})


def differing(recipes: Sequence[Recipe]) -> list[str]:
    """The options in which recipes differ."""
    every = [values_of(recipe) for recipe in recipes]
    return [key for key in every[0] if any(values[key] != every[0][key] for values in every)]


def telling(recipes: Sequence[Recipe]) -> list[list[str]]:
    """For each recipe, the options that tell it apart from the others.

    What is not trained has no width and no epochs, and a task kept in a run folder no scale: such
    options are compared among their own kind.
    """
    untrained = [recipe.model.name == UNTRAINED for recipe in recipes]
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


def in_ranges(numbers: Sequence[int]) -> str:
    """Numbers in words, neighbors as one: `0–4, 7`; where one is there twice, how many in all."""
    parts: list[str] = []
    unique = sorted(set(numbers))
    start = 0
    for place, number in enumerate(unique):
        if place + 1 < len(unique) and unique[place + 1] == number + 1:
            continue
        first, start = unique[start], place + 1
        parts.append(str(number) if first == number else f"{first}–{number}")
    return ", ".join(parts) + (f" ({len(numbers)} runs)" if len(unique) < len(numbers) else "")


def _named(groups: Sequence[Sequence[Evidence]]) -> list[Group]:
    """Groups named by their recipes; where names are shared, by what else tells them apart."""
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
    """What is set otherwise than the recipe of that name has it, as one would write it."""
    shipped = recipe.name in recipe_names()
    usual = values_of(load_recipe(recipe.name)) if shipped else defaults()
    values = values_of(recipe)
    return [
        f"{key}={values[key] if isinstance(values[key], str) else json.dumps(values[key])}"
        for key in keys
        if values[key] != usual[key]
    ]
