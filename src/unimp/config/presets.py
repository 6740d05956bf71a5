"""Presets: how much to spend on a task without a tuned recipe, in one word.

A preset trains an ensemble within its time limit. If you set options of one model, in [model],
[mask] or [train], it trains this model alone and fills in options that you did not set. A recipe of
tables without a preset gets the preset `good`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unimp.config.choices import Portfolio
from unimp.errors import RecipeError

if TYPE_CHECKING:
    from unimp.config.recipe import Recipe, Settings


@dataclass(frozen=True)
class Preset:
    """The meaning of one word."""

    about: str
    seconds: float  # the time limit of the ensemble
    alone: Mapping[str, Any]  # options of a single model
    copies: int = 1  # trainings of each member with a large weight


PRESETS: dict[Portfolio, Preset] = {
    "quick": Preset(
        "a first answer within 30 seconds",
        27.0,  # starting and ending the command takes up to 3 more seconds
        {
            "model.layers": 2,
            "model.width": 64,
            "train.epochs": 60,
            "train.eval_every": 5,
            "train.patience": 0,
        },
    ),
    "good": Preset(
        "an ensemble within 3 minutes",
        180.0,
        {"train.epochs": 500, "train.eval_every": 2, "train.patience": 100},
        copies=2,
    ),
    "best": Preset(
        "a larger ensemble within 10 minutes",
        600.0,
        {
            "model.width": 256,
            "train.epochs": 2000,
            "train.eval_every": 2,
            "train.patience": 300,
        },
        copies=5,
    ),
}

OF_EVERY_MODEL = (
    "mask.unit",
    "model.backend",
    "model.edge_features",
    "train.device",
    "train.precision",
    "train.replay",
    "train.checkpoint_every",
)
"""Options that all members of an ensemble keep, so that they do not select a single model."""

_MODEL = ("model.", "mask.", "train.")

FOR_TABLES = "good"
"""The preset of a recipe of tables if none is given."""


def preset_help() -> str:
    return "; ".join(f"{name}: {preset.about}" for name, preset in PRESETS.items())


def of_one_model(options: Iterable[str]) -> list[str]:
    """Those of some options that describe a single model, so that no ensemble is trained."""
    kept = {*OF_EVERY_MODEL, "train.time_limit"}
    return [name for name in options if name.startswith(_MODEL) and name not in kept]


def recipe_with_preset(
    recipe: Recipe | str | Path, settings: Settings = (), preset: str | None = None
) -> Recipe:
    """Load a recipe, then apply settings, then a preset.

    Without a preset, tables get `good`, because their recipe was not tuned. Any other recipe stays
    as it is. An ensemble gets the reverse of every edge, unless the recipe is bundled or sets
    `task.symmetrize`, or its tables are directed.
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
    if not bundled:  # the options of a bundled recipe were tuned for its task, not set by the user
        for section in loaded.model_fields_set - {"name", "about"}:
            keep |= {f"{section}.{key}" for key in getattr(loaded, section).model_fields_set}
    if of_one_model(keep) or ("ensemble.portfolio" in keep and loaded.ensemble.portfolio == "none"):
        filled = PRESETS[preset].alone
        if bundled:  # it was tuned for its task, so only the length of training changes
            filled = {name: value for name, value in filled.items() if name.startswith("train.")}
    else:
        filled = {
            "ensemble.portfolio": preset,
            "ensemble.copies": PRESETS[preset].copies,
            "train.time_limit": PRESETS[preset].seconds,
            "train.precision": "auto-cpu",
        }
        if not bundled and not loaded.tables.directed:
            filled["task.symmetrize"] = True
    values = loaded.model_dump(exclude_unset=True)
    for name, value in filled.items():
        section, _, key = name.partition(".")
        if name not in keep:
            values.setdefault(section, {})[key] = value
    return Recipe.model_validate(values)
