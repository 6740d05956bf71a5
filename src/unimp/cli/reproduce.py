"""report and reproduce."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from unimp.cli.console import Settings, app, out, parse_seeds, print_rows
from unimp.ops.allocator import keep_freed_memory


@app.command("report")
def make_report(
    places: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Folders of runs, or folders of these.")
    ],
    path: Annotated[
        Path | None,
        typer.Option("--out", help="The page. Default: report.html in RUN; here, if several."),
    ] = None,
    label_rates: Annotated[
        bool,
        typer.Option(
            "--label-rates/--no-label-rates",
            help="Curves by labels revealed: four more predictions a run.",
        ),
    ] = True,
) -> None:
    """Make one HTML page of any set of runs: results, curves, confusions, confidence."""
    from unimp.runs.evidence import find_unfinished
    from unimp.runs.reporting import write_comparison

    with out.status("reading runs") as status:
        page, count = write_comparison(
            places,
            path,
            label_rates=label_rates,
            on_run=lambda run: status.update(Text(f"reading {run}")),
        )
    out.print(f"{count} {'run' if count == 1 else 'runs'}: {page}")
    for folder in find_unfinished(places):
        out.print(f"not finished, so left out: {folder}")


@app.command("reproduce")
def reproduce_studies(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="TABLE|FIGURE…", help="Names, or all.")
    ] = None,
    task: Annotated[
        str, typer.Option(metavar="RECIPE|DATASET", help="What to run them on: name or path.")
    ] = "debian",
    seeds: Annotated[str, typer.Option(help="One or several: 0, 0-9, or 0,3,5-7.")] = "0-9",
    settings: Settings = None,
    folder: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Runs that are there are not repeated.")
    ] = Path("runs/reproduce"),
    jobs: Annotated[int, typer.Option(help="Runs at a time, in processes.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="Few epochs, for a look.")] = False,
    name_all: Annotated[bool, typer.Option("--list", help="Name them all.")] = False,
) -> None:
    """Run tables and figures of the paper on any task, the paper's numbers beside ours."""
    from unimp.studies.reproduce import listing, reproduce

    if name_all:
        print_rows(listing())
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
