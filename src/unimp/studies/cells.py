"""Cells: the recipes that studies train, each with a name that describes it.

The name of a cell follows from its recipe alone. Two studies that need the same recipe therefore
share one run folder per seed: OUT/<task>/<cell>/seed-<n>.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unimp.config.choices import Metric
from unimp.config.presets import recipe_with_preset
from unimp.config.recipe import Recipe, load_recipe
from unimp.config.task_names import OGB, SYNTHETIC
from unimp.errors import UnimpError
from unimp.model.table import find_model
from unimp.report.groups import in_ranges
from unimp.runs.preparation import task_of
from unimp.tasks.task import Sizes

QUICK_EPOCHS = 30
"""Epochs of a run with --quick."""

SET_BY_STUDIES = ("task.name", "model.name", "model.inputs")
"""Options that the studies themselves set, because they define a cell."""


@dataclass(frozen=True)
class Cell:
    """One recipe of a study, trained on all of the train labels or on a share of them."""

    name: str
    recipe: Recipe
    train_share: float = 1.0
    unfit: str = ""  # why this cell cannot run on the task; empty if it can

    def folder(self, place: Path, seed: int) -> Path:
        return place / self.name / f"seed-{seed}"


@dataclass(frozen=True)
class Subject:
    """What a study runs on: a task, the recipe to start from, and the seeds."""

    name: str  # of the folder of its runs
    recipe: Recipe
    sizes: Sizes
    metric: Metric
    seeds: tuple[int, ...]
    place: Path  # the folder of its runs
    options: tuple[str, ...]  # those of `unimp reproduce` that determine its numbers
    quick: bool = False

    @property
    def inputs(self) -> str:
        """All inputs that the task has."""
        return "X,A,Y" if self.sizes.features else "A,Y"

    @property
    def has_edge_features(self) -> bool:
        return self.sizes.edge_features > 0 and self.recipe.model.edge_features

    @property
    def data_set(self) -> str | None:
        """The data set of the paper to compare with; None if the task is not one of them."""
        name = self.recipe.task.name
        return name if name in OGB else None

    def compared(self, inputs: str) -> str | None:
        """The paper's data set that equals this task for a model with these inputs."""
        same_but_features = self.recipe.task.name == "ogbn-arxiv-labels" and inputs == "A,Y"
        return "ogbn-arxiv" if same_but_features else self.data_set

    def cell(
        self,
        model: str = "unimp",
        inputs: str | None = None,
        *,
        residual: str | None = None,
        edge_features: bool = False,
        label_rate: float | None = None,
        train_share: float = 1.0,
    ) -> Cell:
        """The cell of a model with the given inputs, otherwise with the settings of the recipe.

        Edge features are left out by default, because GCN and GAT do not take them (Table 7). The
        residual is none, simple or gated; by default that of the recipe, and none for GCN and GAT.
        """
        inputs = inputs or self.inputs
        settings, name = [f"model.name={model}"], model
        takes_inputs = len(find_model(model).inputs) > 1
        if takes_inputs:
            settings.append(f"model.inputs={inputs}")
            name += f"-{inputs.replace(',', '').lower()}"
        elif self.sizes.features:  # the recipe may set the inputs of another model
            settings.append(f"model.inputs={Recipe().model.inputs}")
        usual = kind_of_residual(self.recipe) if model == "unimp" else "none"
        residual = residual or usual
        if takes_inputs and residual != kind_of_residual(self.recipe, model):
            settings.append(f"model.residual={residual}")
            if residual == "gated" and self.recipe.model.gate == "none":
                settings.append("model.gate=all")
        if residual != usual:
            name += {"none": "-bare", "simple": "-residual", "gated": "-gated"}[residual]
        if self.has_edge_features and edge_features:
            name += "-edges"
        elif self.has_edge_features:
            settings.append("model.edge_features=false")
        if label_rate not in (None, self.recipe.mask.label_rate):
            settings.append(f"mask.label_rate={label_rate}")
            name += f"-rate-{label_rate:g}"
        if train_share < 1:
            name += f"-share-{train_share:g}"
        unfit = ""
        if ("X" in inputs or not takes_inputs) and not self.sizes.features:
            unfit = "the task has no node features"
        return Cell(name, self.recipe.with_settings(settings), train_share, unfit)


def kind_of_residual(recipe: Recipe, model: str = "unimp") -> str:
    """The residual connection of a model of this recipe: none, simple or gated."""
    m = recipe.model
    residual = m.residual
    if residual == "auto":
        residual = "gated" if model == "unimp" else "none"
    return "simple" if residual == "gated" and m.gate == "none" else residual


def subject_of(
    name: str, *, seeds: Iterable[int], out: Path, settings: Iterable[str] = (), quick: bool = False
) -> Subject:
    """Load a task by name or path, with the recipe that its cells start from."""
    settings, seeds = tuple(settings), tuple(seeds)
    recipe = quickened(recipe_for(name)) if quick else recipe_for(name)
    # A run on tables applies a preset. Apply it here too, so that its recipe is recognized later.
    single = {"ensemble.portfolio": "none"}  # a study compares single models
    recipe = recipe_with_preset(recipe.with_settings(single), settings).with_absolute_paths()
    task = task_of(recipe, seeds[0])
    folder = Path(name).stem if name.endswith((".npz", ".toml")) else name
    if folder == "recipe":  # `unimp init` gives every recipe this name: use that of the nodes
        folder = recipe.folder_name
    if quick:
        folder += "-quick"
    options = ["--task", name, "--seeds", in_ranges(seeds, "-", ",")]
    for setting in settings:
        options += ["--set", setting]
    if quick:
        options.append("--quick")
    return Subject(
        folder, recipe, task.sizes, task.metric, seeds, out / folder, tuple(options), quick
    )


def refuse_overwritten_settings(
    settings: Iterable[str], subject: Subject, cells: Mapping[str, Sequence[Cell]]
) -> None:
    """Refuse settings that the cells of a study overwrite: they would have no effect.

    cells: the cells of each study, by its name.
    """
    keys = dict.fromkeys(setting.partition("=")[0].strip() for setting in settings)
    given = subject.recipe.settings()
    refused = {key: "every study" for key in keys if key in SET_BY_STUDIES}
    for study, those in cells.items():
        for cell in those:
            values = cell.recipe.settings()
            lost = [key for key in keys if values[key] != given[key] and key not in refused]
            refused |= dict.fromkeys(lost, study)
    if refused:
        listed = ", ".join(f"{key} (by {study})" for key, study in refused.items())
        raise UnimpError(
            f"--set cannot change options that studies set themselves: {listed}. Remove the "
            "setting or choose other studies. Choose the data with --task."
        )


def changed_settings(recipe: Recipe, base: Recipe) -> dict[str, Any]:
    """The settings that turn the base into the recipe."""
    before = base.settings()
    return {key: value for key, value in recipe.settings().items() if value != before[key]}


def recipe_hash(recipe: Recipe) -> str:
    """Identifies a recipe by the options that it changes from their defaults."""
    options = recipe.model_dump(exclude={"name", "about"}, exclude_defaults=True)
    return hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:12]


def recipe_for(name: str) -> Recipe:
    """The recipe of that name or task; the paper's for OGB's tasks and their generated versions."""
    if name in OGB:
        return load_recipe(f"{name.removeprefix('ogbn-')}-paper")
    if name in SYNTHETIC:
        return load_recipe(f"{SYNTHETIC[name]}-paper", [f"task.name={name}"])
    return load_recipe(name)


def quickened(recipe: Recipe) -> Recipe:
    """The recipe with few epochs, scored every fifth epoch."""
    train = recipe.train
    epochs = min(train.epochs, QUICK_EPOCHS)
    every, first = min(max(train.eval_every, 5), epochs), min(train.eval_from, 5)
    return recipe.with_settings(
        {"train.epochs": epochs, "train.eval_every": every, "train.eval_from": first}
    )
