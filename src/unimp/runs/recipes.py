"""The complete recipe of a run, and the tables that it names; this module does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unimp.config.data_options import TaskOptions
from unimp.config.presets import FOR_TABLES, recipe_with_preset
from unimp.config.recipe import Recipe, Settings, read_settings
from unimp.config.run_files import TASK
from unimp.config.task_names import refuse_unused
from unimp.data.memory import shortage
from unimp.data.tables.checking import Rows, read_rows
from unimp.data.tables.transforms import Layout
from unimp.errors import ModelError, RecipeError
from unimp.model.table import find_model, inputs_of, most_parameters
from unimp.tasks.splitting import Sets
from unimp.training.started import were_started

if TYPE_CHECKING:
    from unimp.tasks.task import Task


def resolve_recipe(
    recipe: Recipe | str | Task,
    settings: Settings = (),
    preset: str | None = None,
    *,
    own_model: bool = False,
) -> Recipe:
    """The complete recipe with settings and preset applied, checked, with absolute paths.

    The recipe of a task that is given as an object has defaults, like the recipe of its tables. A
    user's own model is trained alone.
    """
    own = not isinstance(recipe, Recipe | str)
    if not isinstance(recipe, Recipe | str):
        preset = preset or (FOR_TABLES if recipe.tables is not None else None)
        recipe = Recipe(name=recipe.name, task=TaskOptions(name=TASK))
    if not isinstance(settings, dict):
        settings = (settings,) if isinstance(settings, str) else tuple(settings)
        settings = (*settings, "ensemble.portfolio=none") if own_model else settings
    elif own_model:
        settings = {**settings, "ensemble.portfolio": "none"}
    resolved = recipe_with_preset(recipe, settings, preset).with_absolute_paths()
    if own:
        resolved = resolved.with_options("task", name=TASK)
    names = {name for name, _ in read_settings(settings)}
    try:
        row = find_model(resolved.model.name)
    except ModelError as error:
        raise RecipeError(f"model.name: {error}") from None
    # Inputs that a recipe sets for its own model do not apply to another model.
    is_other = "model.name" in names and "model.inputs" not in names
    if is_other and resolved.model.inputs not in row.inputs:
        resolved = resolved.with_settings({"model.inputs": Recipe().model.inputs})
    try:
        # A dictionary may list every option, as the scikit-learn classifier does. Texts come from a
        # user, who typed them.
        inputs_of(resolved.model, asked="model.inputs" in names and not isinstance(settings, dict))
    except ModelError as error:
        raise RecipeError(f"model.inputs: {error}") from None
    return resolved.with_settings({"train.draws": "node"}) if were_started() else resolved


def rows_of(recipe: Recipe) -> Rows:
    """The recipe's tables, read and checked."""
    tables = recipe.tables
    unused = {"bundle", "features", "node_features", "scale"}
    refuse_unused("tables", **recipe.task.model_dump(include=unused))
    if not tables.nodes or not (tables.edges or tables.near):
        raise RecipeError(
            "[tables] needs nodes and edges, the paths of two files, or nodes and near, the "
            "columns for nearest neighbors; `unimp init NODES EDGES` writes a recipe for them"
        )
    layout = Layout(**tables.model_dump(exclude={"nodes", "edges"}))
    return read_rows(tables.nodes, tables.edges or None, layout)


def surely_trains(recipe: Recipe, rows: Rows, sets: Sets) -> bool:
    """Whether a model for these tables can be built and trained without trying it.

    It can if the recipe has the default model and batches, and enough labels and memory. Then
    `unimp check` does not have to load torch.
    """
    usual = Recipe()
    sections = ("model", "mask", "batch", "inference", "smooth")
    if recipe.train.device not in ("auto", "cpu") or any(
        getattr(recipe, name) != getattr(usual, name) for name in sections
    ):
        return False
    kinds = {"numeric": 2, "categorical": 1100, "text": recipe.tables.text_width}
    features = sum(
        kinds[kind] if kind in kinds else 1 + rows.node_values[column].shape[1]
        for column, kind in rows.layout.features.items()
    )
    most = most_parameters(recipe.model, features=features, classes=len(rows.class_names))
    hides_some = round(recipe.mask.label_rate * sets.train.size) < sets.train.size
    return hides_some and not shortage(2 * 4 * most)
