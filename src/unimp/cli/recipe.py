"""The commands `unimp recipe list` and `unimp recipe show`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from unimp.cli.console import Settings, app, out, print_rows
from unimp.errors import UnimpError

if TYPE_CHECKING:
    from unimp.config.recipe import Recipe

recipe_app = typer.Typer(no_args_is_help=True, help="Recipes: the options of a run.")
app.add_typer(recipe_app, name="recipe")


@recipe_app.command("list")
def list_recipes() -> None:
    """List the bundled recipes, and whether their data is available."""
    from unimp.config.recipe import load_recipe, recipe_names
    from unimp.config.task_names import task_names

    available = {n for n, place in task_names().items() if not place.startswith("missing")}
    recipes = [load_recipe(name) for name in recipe_names()]
    print_rows(
        (r.name, r.about, "" if r.task.name in available else "data missing") for r in recipes
    )


@recipe_app.command("show")
def show_recipe(
    name: Annotated[str, typer.Argument(metavar="NAME")], settings: Settings = None
) -> None:
    """Show every option of a recipe with its help, and the size of its model."""
    from unimp.config.recipe import load_recipe, options
    from unimp.config.validation import choices
    from unimp.model.table import MODELS

    recipe = load_recipe(name, settings or ())
    size = size_of_model(recipe)
    print_rows([(recipe.name, recipe.about)])
    values, shown = recipe.model_dump(), ""
    rows: list[Sequence[str]] = []
    for section, key, declared in options():
        if section != shown:
            rows += [(), (f"[{section}]",)]
            shown = section
        value, help_text = values[section][key], declared.description or ""
        if words := list(MODELS) if (section, key) == ("model", "name") else choices(declared):
            help_text += f" [{' | '.join(words)}]"
        if value != declared.default:
            help_text += f" (default {json.dumps(declared.default)})"
        rows.append((f"  {key}", json.dumps(value), help_text))
    print_rows(rows)
    out.print("\n" + size)


def size_of_model(recipe: Recipe) -> str:
    """The number of parameters, if the sizes of the task are known or its data is available."""
    from unimp.config.task_names import GENERATED
    from unimp.data.catalog import known_sizes
    from unimp.model.node_model import count_parameters
    from unimp.runs.preparation import model_without_weights, task_of

    sizes = None if recipe.task.structure else known_sizes(recipe.task.name)
    if sizes is None:
        try:
            # A generated task has the same sizes at any scale; a small one is quick to generate.
            small = ["task.scale=0.001"] if recipe.task.name in GENERATED else []
            sizes = task_of(recipe.with_settings(small), seed=0).sizes
        except UnimpError:
            return "parameters: unknown without the data of the task"
    model = model_without_weights(recipe, sizes)
    count, norm = count_parameters(model), getattr(model, "input_norm", None)
    without = f" ({count - count_parameters(norm):,} without the input norm)" if norm else ""
    return f"parameters: {count:,}{without}"
