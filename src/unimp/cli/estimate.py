"""The command `unimp estimate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from unimp.cli.console import Settings, app, out
from unimp.config.presets import FOR_TABLES, PRESETS

if TYPE_CHECKING:
    from unimp.config.recipe import Recipe
    from unimp.tasks.task import Task


@app.command("estimate")
def estimate_run(
    name: Annotated[
        str, typer.Argument(metavar="RECIPE|TASK", help="Name or path of a recipe or a task.")
    ],
    settings: Settings = None,
    preset: Annotated[
        str | None, typer.Option(metavar="|".join(PRESETS), help="As for unimp train.")
    ] = None,
) -> None:
    """Estimate the memory and time of training, from sizes and a few steps."""
    from unimp.model.solved_model import SolvedModel
    from unimp.runs.estimate import estimate
    from unimp.runs.preparation import choose_device, model_of, seeded, task_of
    from unimp.runs.recipes import resolve_recipe

    recipe = resolve_recipe(name, settings or (), preset)
    device = choose_device(recipe.train.device)
    task = task_of(recipe, 0)
    if recipe.ensemble.portfolio != "none":
        out.print(largest_member(recipe, task, device))
        return
    with seeded(0, device):
        model = model_of(recipe, task).to(device)
        if isinstance(model, SolvedModel):
            name = recipe.model.name
            out.print(f"{name} is not trained by the training loop, so its time is not estimated")
            return
        if not model.learns:
            out.print(f"{recipe.model.name} has nothing to learn; it takes seconds")
            return
        out.print(estimate(recipe, model, task, device).in_words())
    train = recipe.train
    stops = f", or {train.patience} without an equal or better score" if train.patience else ""
    why = ""
    if preset or recipe.task.name == "tables":
        why = f" (preset {preset or f'{FOR_TABLES}, the default for tables'})"
    out.print(f"training stops after {train.epochs:,} epochs{stops}{why}")


def largest_member(recipe: Recipe, task: Task, device: str) -> str:
    """The time limit of an ensemble, and the memory of the member that needs most."""
    from unimp.ensemble.portfolio import member_recipe, settings_of
    from unimp.model.solved_model import SolvedModel
    from unimp.runs.estimate import estimate
    from unimp.runs.members import checked_members
    from unimp.runs.preparation import member_task, model_of, seeded

    members, found = checked_members(recipe, task), []
    with seeded(0, device):
        for member in members:
            own = member_recipe(recipe, member.name, settings_of(member, task))
            own_task = member_task(recipe, own, task)
            model = model_of(own, own_task)
            if model.learns and not isinstance(model, SolvedModel):
                found.append((member.name, estimate(own, model, own_task, device, timed=False)))
    limit = recipe.train.time_limit
    text = f"an ensemble of {len(members)} members"
    text += f", trained within {limit:g} s" if limit else ", without a time limit"
    if found:
        name, largest = max(found, key=lambda one: one[1].memory)
        text += f"\nthe largest member, {name}: {largest.in_words()}"
    return text
