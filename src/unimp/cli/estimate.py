"""estimate."""

from __future__ import annotations

from typing import Annotated

import typer

from unimp.cli.console import Settings, app, out
from unimp.config.presets import FOR_TABLES, PRESETS, recipe_with_preset


@app.command("estimate")
def estimate_run(
    name: Annotated[str, typer.Argument(metavar="RECIPE|DATASET", help="Name or path.")],
    settings: Settings = None,
    preset: Annotated[
        str | None, typer.Option(metavar="|".join(PRESETS), help="As of unimp train.")
    ] = None,
) -> None:
    """Say what training would take, from sizes and a few steps: regime, memory and time."""
    from unimp.runs.estimate import estimate
    from unimp.runs.preparation import choose_device, seeded, task_of

    recipe = recipe_with_preset(name, settings or (), preset)
    if recipe.model.name == "label-propagation":
        out.print("label propagation has nothing to train: seconds, and a few rows a node")
        return
    device = choose_device(recipe.train.device)
    task = task_of(recipe, 0)
    with seeded(0, device):
        model = recipe.build_model(task.sizes).to(device)
        out.print(estimate(recipe, model, task, device).in_words())
    train = recipe.train
    ends = f"; {train.patience} without as good a score end it" if train.patience else ""
    why = ""
    if preset or recipe.task.name == "tables":
        why = f" (preset {preset or f'{FOR_TABLES}, as none is named'})"
    out.print(f"trains up to {train.epochs:,} epochs{ends}{why}")
