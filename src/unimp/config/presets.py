"""How much to spend on a task that has no recipe of its own, in one word.

A preset fills in what nobody has set. A recipe that comes with the package was tuned for its task:
of that, a preset changes only how long it trains. What you write in a recipe of your own, or by
`--set`, stays. A recipe of tables that names no preset is filled in by `good`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unimp.errors import RecipeError

if TYPE_CHECKING:
    from unimp.config.recipe import Recipe, Settings


@dataclass(frozen=True)
class Preset:
    """What a word stands for."""

    about: str
    options: Mapping[str, Any]


PRESETS = {
    "quick": Preset(
        "a look: a small model, few epochs",
        {
            "model.layers": 2,
            "model.width": 64,
            "train.epochs": 60,
            "train.eval_every": 5,
            "train.patience": 0,
        },
    ),
    "good": Preset(
        "as long as it gets better: up to 500 epochs, 100 without as good a score end it",
        {"train.epochs": 500, "train.eval_every": 2, "train.patience": 100},
    ),
    "best": Preset(
        "a wide model, up to 2000 epochs, 300 without as good a score end it",
        {
            "model.width": 256,
            "train.epochs": 2000,
            "train.eval_every": 2,
            "train.patience": 300,
        },
    ),
}


def preset_help() -> str:
    return "; ".join(f"{name}: {preset.about}" for name, preset in PRESETS.items())


FOR_TABLES = "good"
"""The preset of a recipe of tables that is given none."""


def recipe_with_preset(
    recipe: Recipe | str | Path, settings: Settings = (), preset: str | None = None
) -> Recipe:
    """A recipe, or the one of a name or path, with settings and then a preset laid over it.

    Without a preset, tables get `good`: nobody tuned a recipe for them, and without patience they
    would train on long after the best epoch. Any other recipe stays as it is.
    """
    from unimp.config.recipe import Recipe, load_recipe, read_settings, recipe_names

    bundled = not isinstance(recipe, Recipe) and str(recipe) in recipe_names()
    found = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    made = found.with_settings(settings)
    if not isinstance(settings, Mapping):  # typed, so meant; a mapping may name every option
        _refuse_inputs_passed_over(made, {place for place, _ in read_settings(settings)})
    if preset is None and made.task.name == "tables":
        preset = FOR_TABLES
    if preset is None:
        return made
    if preset not in PRESETS:
        raise RecipeError(f"no preset {preset!r}; presets are {', '.join(PRESETS)}")
    given = {place for place, _ in read_settings(settings)}
    stays = given | {
        f"{section}.{key}"
        for section in made.model_fields_set - {"name", "about"}
        for key in getattr(made, section).model_fields_set
        if not (bundled and section == "train")
    }
    if bundled:
        stays |= {key for key in PRESETS[preset].options if not key.startswith("train.")}
    values = made.model_dump(exclude_unset=True)
    for place, value in PRESETS[preset].options.items():
        section, _, key = place.partition(".")
        if place not in stays:
            values.setdefault(section, {})[key] = value
    return Recipe.model_validate(values)


def _refuse_inputs_passed_over(recipe: Recipe, given: set[str]) -> None:
    """Whoever asks for labels as inputs must not be given a model that looks at none."""
    name, inputs = recipe.model.name, recipe.model.inputs
    takes = {"appnp": "X,A", "gcn-lpa": "X,A", "mlp": "X", "label-propagation": "A,Y"}.get(name)
    if "model.inputs" in given and takes not in (None, inputs):
        raise RecipeError(
            f"model.inputs is {inputs}, but {name} always takes {takes}; leave it out, or choose "
            "unimp, gcn or gat (from Python, MaskedLabels gives labels to any model)"
        )
