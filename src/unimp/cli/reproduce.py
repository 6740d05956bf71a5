"""The commands `unimp report` and `unimp reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from unimp.cli.console import Settings, app, leave_out_pandas, out, print_rows
from unimp.cli.later import Force
from unimp.config.seeds import parse_seeds
from unimp.ops.allocator import keep_freed_memory
from unimp.training.interruption import signals_held


@app.command("report")
def make_report(
    places: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN", help="Folders of runs, or folders that contain such folders."
        ),
    ],
    path: Annotated[
        Path | None,
        typer.Option(
            "--out", help="File to write. Default: report.html in RUN, or here for several runs."
        ),
    ] = None,
    force: Force = False,
    label_rates: Annotated[
        bool,
        typer.Option(
            "--label-rates/--no-label-rates",
            help="Draw the curve by share of revealed labels: four more predictions per run.",
        ),
    ] = True,
) -> None:
    """Write one HTML page about one or more runs: scores, curves, confusions, maps."""
    with signals_held():  # torch ignores an interrupted import of numpy, and later code fails
        from unimp.runs.evidence import find_unfinished
        from unimp.runs.reporting import write_comparison

        leave_out_pandas()

    with out.status("reading runs") as status:
        page, count = write_comparison(
            places,
            path,
            label_rates=label_rates,
            force=force,
            on_run=lambda run: status.update(Text(f"reading {run}")),
        )
    out.print(f"{count} {'run' if count == 1 else 'runs'}: {page}")
    for folder in find_unfinished(places):
        out.print(f"left out, because it is not finished: {folder}")


@app.command("reproduce")
def reproduce_studies(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="TABLE|FIGURE…", help="Names of tables and figures, or all."),
    ] = None,
    task: Annotated[
        str, typer.Option(metavar="RECIPE|TASK", help="Name or path of the recipe or task.")
    ] = "debian",
    seeds: Annotated[
        str, typer.Option(help="One seed or several, such as 0, 0-9 or 0,3,5-7.")
    ] = "0-9",
    settings: Settings = None,
    folder: Annotated[
        Path,
        typer.Option(
            "--out", metavar="DIR", help="Folder of the runs; finished runs are not repeated."
        ),
    ] = Path("runs/reproduce"),
    jobs: Annotated[
        int, typer.Option(help="Number of runs at a time, each in its own process.")
    ] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="Train only a few epochs.")] = False,
    name_all: Annotated[bool, typer.Option("--list", help="List all tables and figures.")] = False,
) -> None:
    """Compute tables and figures of the paper on any task, with the paper's numbers beside ours."""
    with signals_held():  # torch ignores an interrupted import of numpy, and later code fails
        from unimp.studies.reproduce import STUDIES, reproduce

    if name_all:
        print_rows((study.name, study.place, study.title) for study in STUDIES.values())
        return
    reproduce(
        names or (),
        task=task,
        seeds=parse_seeds(seeds),
        settings=settings or (),
        out=folder,
        jobs=jobs,
        quick=quick,
        say=out.print,
        prepare_process=keep_freed_memory,
    )
