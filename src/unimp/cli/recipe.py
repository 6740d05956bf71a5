"""recipe list and show."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from unimp.cli.console import Settings, app, out, print_rows
from unimp.errors import UnimpError

if TYPE_CHECKING:
    from unimp.config.recipe import Recipe

recipe_app = typer.Typer(no_args_is_help=True, help="Recipes: what a run depends on.")
app.add_typer(recipe_app, name="recipe")


@recipe_app.command("list")
def list_recipes() -> None:
    """Name the recipes that come with the package, and whether their data is here."""
    from unimp.config.recipe import load_recipe, recipe_names
    from unimp.config.task_names import task_names

    here = {name for name, place in task_names().items() if not place.startswith("not here")}
    recipes = [load_recipe(name) for name in recipe_names()]
    lacks = ["" if recipe.task.name in here else "data not here" for recipe in recipes]
    print_rows((r.name, r.about, lack) for r, lack in zip(recipes, lacks, strict=True))


@recipe_app.command("show")
def show_recipe(
    name: Annotated[str, typer.Argument(metavar="NAME")], settings: Settings = None
) -> None:
    """Show every option of a recipe with its help, and the size of its model."""
    from unimp.config.recipe import choices, load_recipe, options

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
        if words := choices(declared):
            help_text += f" [{' | '.join(words)}]"
        if value != declared.default:
            help_text += f" (default {json.dumps(declared.default)})"
        rows.append((f"  {key}", json.dumps(value), help_text))
    print_rows(rows)
    out.print("\n" + size)


def size_of_model(recipe: Recipe) -> str:
    """The model's parameter count, where the task's sizes are known or its data is here."""
    from unimp.data.catalog import is_generated, known_sizes
    from unimp.model.node_model import count_parameters
    from unimp.runs.preparation import task_of

    if recipe.model.name == "label-propagation":
        return "parameters: none"
    sizes = known_sizes(recipe.task.name)
    if sizes is None:
        try:
            # A generated task has the same sizes at any scale, and a small one is quick to make.
            small = ["task.scale=0.001"] if is_generated(recipe.task.name) else []
            sizes = task_of(recipe.with_settings(small), seed=0).sizes
        except UnimpError:
            return "parameters: not known without the task's data"
    model = recipe.build_model(sizes)
    count, norm = count_parameters(model), getattr(model, "input_norm", None)
    without = f" ({count - count_parameters(norm):,} without the input norm)" if norm else ""
    return f"parameters: {count:,}{without}"
