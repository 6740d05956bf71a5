"""Presets: how much to spend on a task without a tuned recipe, in one word.

A preset fills in options that you did not set. A bundled recipe was tuned for its task, so a preset
changes only how long it trains. Options that you write in your own recipe or pass with `--set` stay
as they are. A recipe of tables without a preset gets the preset `good`.
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
    """The meaning of one word."""

    about: str
    options: Mapping[str, Any]


PRESETS = {
    "quick": Preset(
        "a first look with a small model and few epochs",
        {
            "model.layers": 2,
            "model.width": 64,
            "train.epochs": 60,
            "train.eval_every": 5,
            "train.patience": 0,
        },
    ),
    "good": Preset(
        "up to 500 epochs; stops after 100 epochs without an equal or better score",
        {"train.epochs": 500, "train.eval_every": 2, "train.patience": 100},
    ),
    "best": Preset(
        "a wide model for up to 2000 epochs; stops after 300 without an equal or better score",
        {
            "model.width": 256,
            "train.epochs": 2000,
            "train.eval_every": 2,
            "train.patience": 300,
        },
    ),
}

FOR_TABLES = "good"
"""The preset of a recipe of tables if none is given."""


def preset_help() -> str:
    return "; ".join(f"{name}: {preset.about}" for name, preset in PRESETS.items())


def recipe_with_preset(
    recipe: Recipe | str | Path, settings: Settings = (), preset: str | None = None
) -> Recipe:
    """Load a recipe, then apply settings, then a preset.

    Without a preset, tables get `good`: their recipe was not tuned, and without patience training
    would continue long after the best epoch. Any other recipe stays as it is.
    """
    from unimp.config.recipe import Recipe, load_recipe, read_settings, recipe_names

    bundled = not isinstance(recipe, Recipe) and str(recipe) in recipe_names()
    loaded = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    loaded = loaded.with_settings(settings)
    if preset is None and loaded.task.name == "tables":
        preset = FOR_TABLES
    if preset is None:
        return loaded
    if preset not in PRESETS:
        raise RecipeError(f"there is no preset {preset!r}; presets are {', '.join(PRESETS)}")
    keep = {name for name, _ in read_settings(settings)}
    for section in loaded.model_fields_set - {"name", "about"}:
        if not (bundled and section == "train"):
            keep |= {f"{section}.{key}" for key in getattr(loaded, section).model_fields_set}
    if bundled:
        keep |= {name for name in PRESETS[preset].options if not name.startswith("train.")}
    values = loaded.model_dump(exclude_unset=True)
    for name, value in PRESETS[preset].options.items():
        section, _, key = name.partition(".")
        if name not in keep:
            values.setdefault(section, {})[key] = value
    return Recipe.model_validate(values)
