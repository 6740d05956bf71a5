"""evaluate and predict."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unimp.cli.console import RunFolder, app, out, require_label_inputs
from unimp.errors import RunError, nearest_names
from unimp.predictions import write_table
from unimp.run import load_run
from unimp.tasks.label_file import read_labels
from unimp.tasks.labels import PROTOCOLS


@app.command()
def evaluate(
    folder: RunFolder,
    reveal: Annotated[
        str, typer.Option(help="Labels that are inputs: train (the headline), or train+val.")
    ] = "train",
) -> None:
    """Score a run again, with train labels or with train and validation labels as inputs."""
    if reveal not in PROTOCOLS:
        raise RunError(f"--reveal {reveal!r}: {nearest_names(reveal, PROTOCOLS)}")
    loaded = load_run(folder)
    if reveal != "train":
        require_label_inputs(loaded, "--reveal train+val")
    inputs = f"{reveal} labels as inputs" if loaded.takes_labels else "no labels as inputs"
    for name, value in loaded.evaluate(reveal).items():
        out.print(f"{name} {loaded.task.metric} {100 * value:.2f} %   ({inputs})")


@app.command()
def predict(
    folder: RunFolder,
    labels: Annotated[
        Path | None,
        typer.Option(
            help="CSV or Parquet with columns node,label: labels that came after training."
        ),
    ] = None,
    path: Annotated[
        Path, typer.Option("--out", help="Where to write; .csv gives CSV, else Parquet.")
    ] = Path("predictions.parquet"),
    every_class: Annotated[
        bool | None,
        typer.Option(
            "--probabilities/--no-probabilities",
            help="A column for the probability of each class. Default: yes, but for very many.",
        ),
    ] = None,
) -> None:
    """Label all nodes, using train labels and any that arrived since, without retraining."""
    loaded = load_run(folder)
    if labels is not None:
        require_label_inputs(loaded, "--labels")
    extra = None if labels is None else read_labels(labels, loaded.task)
    table = loaded.predictions(extra, probabilities=every_class)
    write_table(path, table)
    known = sum(table["observed"].to_pylist())
    seen = f", with {known:,} labels as inputs" if loaded.takes_labels else ""
    out.print(f"{table.num_rows:,} nodes labeled{seen}: {path}")
