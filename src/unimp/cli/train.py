"""train."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from unimp.cli.console import Settings, app, out, parse_seeds, told
from unimp.config.presets import PRESETS, preset_help, recipe_with_preset
from unimp.errors import UnimpError
from unimp.tracking.trackers import TRACKERS
from unimp.training.interruption import exit_code, signals_held, signals_raised


@app.command()
def train(
    name: Annotated[str, typer.Argument(metavar="RECIPE|DATASET", help="Name or path.")],
    settings: Settings = None,
    seeds: Annotated[str, typer.Option(help="One or several: 0, 0-9, or 0,3,5-7.")] = "0",
    folder: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Default: under runs/, where this command was interrupted, or a new one.",
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(PRESETS), help=f"What is not set otherwise. {preset_help()}."
        ),
    ] = None,
    time_limit: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="For all seeds together: 90 (seconds), 10m or 2h."),
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option(
            metavar="|".join(TRACKERS),
            help="Also log metrics to this tracker; may be repeated.",
        ),
    ] = None,
) -> None:
    """Train and score a recipe, once for each seed.

    Ctrl-C keeps what was learned; the same command again goes on from there.
    """
    from unimp.cli.seeds import (
        fresh_folder,
        interrupted_folder,
        limit_of_one,
        train_seeds,
        where_it_stopped,
        where_it_was_kept,
    )

    numbers = parse_seeds(seeds)
    given = [*(settings or ()), *limit_of_one(time_limit, len(numbers))]
    recipe = recipe_with_preset(name, given, preset).with_absolute_paths()
    chosen = folder or interrupted_folder(Path("runs"), recipe, numbers)
    if chosen is not None and folder is None:
        out.print(f"going on with {chosen}, where this command was interrupted")
    with signals_raised():
        try:
            if chosen is None:
                with signals_held():  # it is made and known here, or neither
                    chosen = fresh_folder(Path("runs"), recipe.name)
            train_seeds(recipe, numbers, chosen, log or ())
        except KeyboardInterrupt as stop:
            if chosen is None:
                raise
            told.print(f"stopped {where_it_stopped(recipe, numbers, chosen)}")
            raise typer.Exit(exit_code(stop)) from None
        except OSError:  # no room for a file, and the like
            with suppress(UnimpError):
                if chosen and (kept := where_it_was_kept(recipe, numbers, chosen)):
                    told.print(f"stopped {kept}")
            raise
        finally:
            if folder is None and chosen is not None:
                with suppress(OSError):  # refused if there is anything in it
                    chosen.rmdir()  # made for this run, and it never began
