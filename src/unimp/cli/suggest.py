"""suggest."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unimp.cli.console import RunFolder, app, out, print_rows
from unimp.predictions import write_table
from unimp.trained import load_run

SHOWN = 10


@app.command()
def suggest(
    folder: RunFolder,
    number: Annotated[int, typer.Option("-n", min=1, help="How many nodes to name.")] = 50,
    labels: Annotated[
        Path | None,
        typer.Option(
            help="CSV or Parquet with columns node,label: labels that came after training."
        ),
    ] = None,
    smooth: Annotated[
        bool,
        typer.Option("--smooth", help="Correct & Smooth after the model; the same weights."),
    ] = False,
    path: Annotated[
        Path, typer.Option("--out", help="Where to write; .csv gives CSV, else Parquet.")
    ] = Path("suggestions.csv"),
) -> None:
    """Name the unknown nodes whose label would teach most; fill in the column label."""
    loaded = load_run(folder)
    table = (loaded.smoothed() if smooth else loaded).suggest(number, labels)
    write_table(path, table)
    rows = table.slice(0, SHOWN).to_pylist()
    print_rows([(str(row["rank"]), str(row["node"]), row["why"]) for row in rows])
    rest = table.num_rows - len(rows)
    out.print(f"{f'… and {rest:,} more: ' if rest else ''}{path}")
    then = f"unimp predict {folder} --labels {path}{' --smooth' if smooth else ''}"
    out.print(f"fill in the column label, then: {then}")
