"""Cells: the recipes that studies are made of, each with a name that says what it is.

A cell's name follows from its recipe alone, so that two studies that need the same recipe share
one run folder a seed: OUT/<task>/<cell>/seed-<n>.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from unimp.config.choices import Metric
from unimp.config.presets import recipe_with_preset
from unimp.config.recipe import Recipe, load_recipe
from unimp.config.task_names import OGB, SYNTHETIC
from unimp.errors import UnimpError
from unimp.runs.preparation import task_of
from unimp.tasks.task import Sizes

QUICK_EPOCHS = 30
"""Of a run that is only for a look."""

SET_BY_STUDIES = ("task.name", "model.name", "model.inputs")
"""What no setting may change: it says what a cell is."""


@dataclass(frozen=True)
class Cell:
    """One recipe of a study, on all of the train labels or on a share of them."""

    name: str
    recipe: Recipe
    train_share: float = 1.0
    unfit: str = ""  # why the task cannot have this cell; empty: it can

    def folder(self, place: Path, seed: int) -> Path:
        return place / self.name / f"seed-{seed}"


@dataclass(frozen=True)
class Subject:
    """What a study is run on: a task, the recipe to start from, and the seeds."""

    name: str  # of the folder of its runs
    recipe: Recipe
    sizes: Sizes
    metric: Metric
    seeds: tuple[int, ...]
    place: Path  # the folder of its runs
    options: tuple[str, ...]  # of `unimp reproduce` that decide its numbers
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
        """The data set of the paper whose numbers ours stand beside; None: it has none."""
        name = self.recipe.task.name
        return name if name in OGB else None

    def compared(self, inputs: str) -> str | None:
        """The paper's data set that a model with these inputs was trained on, features and all."""
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
        """The cell of a model with some inputs, else as the recipe has it.

        Edge features are left out unless asked for, as a GCN and a GAT take none (Table 7). A
        residual is none, simple or gated; without one named, the recipe's own, and none for a GCN
        or a GAT.
        """
        inputs = inputs or self.inputs
        settings = [f"model.name={model}"]
        with_inputs = model in ("unimp", "gcn", "gat")
        if with_inputs:
            settings.append(f"model.inputs={inputs}")
        if self.has_edge_features and not edge_features:
            settings.append("model.edge_features=false")
        usual = kind_of_residual(self.recipe) if model == "unimp" else "none"
        residual = residual or usual
        if with_inputs and residual != kind_of_residual(self.recipe, model):
            settings.append(f"model.residual={residual}")
            if residual == "gated" and self.recipe.model.gate == "none":
                settings.append("model.gate=all")
        if label_rate is not None:
            settings.append(f"mask.label_rate={label_rate}")
        recipe = self.recipe.with_settings(settings)
        parts = [model]
        if with_inputs:
            parts.append(inputs.replace(",", "").lower())
        if residual != usual:
            parts.append({"none": "bare", "simple": "residual", "gated": "gated"}[residual])
        if self.has_edge_features and edge_features:
            parts.append("edges")
        if recipe.mask.label_rate != self.recipe.mask.label_rate:
            parts.append(f"rate-{recipe.mask.label_rate:g}")
        if train_share < 1:
            parts.append(f"share-{train_share:g}")
        needs_features = "X" in inputs or not with_inputs
        unfit = (
            "the task has no node features" if needs_features and not self.sizes.features else ""
        )
        return Cell("-".join(parts), recipe, train_share, unfit)


def kind_of_residual(recipe: Recipe, model: str = "unimp") -> str:
    """What a model of this recipe keeps of a node itself: none, simple or gated."""
    m = recipe.model
    residual = m.residual
    if residual == "auto":
        residual = "gated" if model == "unimp" else "none"
    return "simple" if residual == "gated" and m.gate == "none" else residual


def subject_of(
    name: str,
    *,
    seeds: Iterable[int],
    out: Path,
    settings: Iterable[str] = (),
    quick: bool = False,
) -> Subject:
    """A task by name or path, with the recipe that its cells start from."""
    settings, seeds = tuple(settings), tuple(seeds)
    recipe = recipe_for(name)
    if quick:
        recipe = quickened(recipe)
    # With the preset that a run of tables is given: what its folder says must be what was asked.
    recipe = recipe_with_preset(recipe, settings).with_absolute_paths()
    task = task_of(recipe, seeds[0])
    folder = Path(name).stem if name.endswith((".npz", ".toml")) else name
    if folder == "recipe":  # as `unimp init` calls them all: after its nodes, as runs are
        folder = Path(recipe.name).name
    if quick:
        folder += "-quick"
    options = ["--task", name, "--seeds", in_ranges(seeds)]
    for setting in settings:
        options += ["--set", setting]
    if quick:
        options.append("--quick")
    return Subject(
        folder, recipe, task.sizes, task.metric, seeds, out / folder, tuple(options), quick
    )


def in_ranges(seeds: Sequence[int]) -> str:
    """Seeds as the command line takes them: 0-4,7."""
    parts: list[list[int]] = []
    for seed in seeds:
        if parts and seed == parts[-1][-1] + 1:
            parts[-1][1:] = [seed]
        else:
            parts.append([seed])
    return ",".join("-".join(map(str, part)) for part in parts)


def refuse_settings_not_kept(
    settings: Iterable[str], subject: Subject, cells: Mapping[str, Sequence[Cell]]
) -> None:
    """A setting that a study's cells set otherwise is refused: it would be passed over in silence.

    cells: of each study, by its name.
    """
    keys = dict.fromkeys(setting.partition("=")[0].strip() for setting in settings)
    given = _values(subject.recipe, keys)
    refused = {key: "every study" for key in keys if key in SET_BY_STUDIES}
    for study, those in cells.items():
        for cell in those:
            values = _values(cell.recipe, keys)
            lost = [key for key in keys if values[key] != given[key] and key not in refused]
            refused |= dict.fromkeys(lost, study)
    if refused:
        told = ", ".join(f"{key} (by {study})" for key, study in refused.items())
        raise UnimpError(
            f"--set of what studies set themselves: {told}; leave it out, or choose other studies; "
            "what to run them on is --task"
        )


def _values(recipe: Recipe, keys: Iterable[str]) -> dict[str, object]:
    sections = recipe.model_dump()
    return {key: sections[key.partition(".")[0]][key.partition(".")[2]] for key in keys}


def recipe_for(name: str) -> Recipe:
    """The recipe of that name or for that task; of OGB's tasks and their stand-ins, the paper's."""
    if name in OGB:
        return load_recipe(f"{name.removeprefix('ogbn-')}-paper")
    if name in SYNTHETIC:
        return load_recipe(f"{SYNTHETIC[name]}-paper", [f"task.name={name}"])
    return load_recipe(name)


def quickened(recipe: Recipe) -> Recipe:
    """The recipe with few epochs, scored every fifth."""
    train = recipe.train
    epochs = min(train.epochs, QUICK_EPOCHS)
    return recipe.with_settings(
        [
            f"train.epochs={epochs}",
            f"train.eval_every={min(max(train.eval_every, 5), epochs)}",
            f"train.eval_from={min(train.eval_from, 5)}",
        ]
    )
