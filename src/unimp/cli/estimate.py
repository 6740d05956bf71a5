"""The command `unimp estimate`."""

from __future__ import annotations

from typing import Annotated

import typer

from unimp.cli.console import Settings, app, out
from unimp.config.presets import FOR_TABLES, PRESETS


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
    from unimp.runs.preparation import choose_device, model_of, resolve_recipe, seeded, task_of

    recipe = resolve_recipe(name, settings or (), preset)
    device = choose_device(recipe.train.device)
    task = task_of(recipe, 0)
    with seeded(0, device):
        model = model_of(recipe, task).to(device)
        if isinstance(model, SolvedModel):
            out.print(f"{recipe.model.name} is solved at once; it has no epochs to estimate")
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
