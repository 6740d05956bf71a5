"""The command `unimp distill`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unimp.cli.console import RunFolder, Settings, app, err, out
from unimp.cli.train import print_runs
from unimp.training.interruption import exit_code, signals_held, signals_raised


@app.command()
def distill(
    teacher: RunFolder,
    folder: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the student.")],
    settings: Settings = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the student. Default: that of RUN.")
    ] = None,
) -> None:
    """Train one UniMP on the answers of a run, such as an ensemble, to get a faster model.

    Ctrl-C stores the state of training; run the same command again to resume.
    """
    with signals_held():  # torch ignores an interrupted import of numpy, and later code fails
        from unimp.config.run_files import is_finished
        from unimp.runs.seeds import Runs
        from unimp.runs.student import distill

    finished = is_finished(folder)
    with signals_raised():
        try:
            run = distill(teacher, out=folder, seed=seed, settings=settings or (), progress=True)
        except KeyboardInterrupt as stop:
            err.print(f"stopped; run the same command again to resume the student in {folder}")
            raise typer.Exit(exit_code(stop)) from None
    if finished:
        out.print(f"{folder} contains this student already; it was not trained again")
    if run.metrics["cut_short"]:
        err.print(f"warning: training was {run.metrics['stopped']}")
    print_runs(Runs((run,), folder))
