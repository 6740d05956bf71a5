"""evaluate and predict."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

from unimp.cli.console import RunFolder, app, out, require_label_inputs
from unimp.cli.later import (
    LaterEdges,
    LaterLabels,
    LaterNodes,
    Smooth,
    UnknownEnds,
    load_with_later,
)
from unimp.errors import RunError, nearest_names

if TYPE_CHECKING:
    from unimp.config.choices import Reveal


@app.command()
def evaluate(
    folder: RunFolder,
    reveal: Annotated[
        str, typer.Option(help="Labels that are inputs: train (the headline), or train+val.")
    ] = "train",
) -> None:
    """Score a run again, with train labels or with train and validation labels as inputs."""
    from unimp.runs.run import load_run
    from unimp.tasks.labels import PROTOCOLS

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
    labels: LaterLabels = None,
    nodes: LaterNodes = None,
    edges: LaterEdges = None,
    unknown_ids: UnknownEnds = "refuse",
    reveal: Annotated[
        str,
        typer.Option(help="Labels of the run's task that are inputs: train, train+val, or known."),
    ] = "train",
    smooth: Smooth = False,
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
    """Label all nodes, using train labels and any that arrived since, without retraining.

    With --nodes and --edges the graph of a run made from tables grows first.
    """
    from unimp.config.choices import Reveal
    from unimp.tasks.labels import is_known

    if reveal not in get_args(Reveal):
        raise RunError(f"--reveal {reveal!r}: {nearest_names(reveal, get_args(Reveal))}")
    loaded, extra = load_with_later(folder, labels, nodes, edges, unknown_ids, smooth=smooth)
    if reveal != "train":
        require_label_inputs(loaded, f"--reveal {reveal}")
    table = loaded.predictions(extra, reveal=cast("Reveal", reveal), probabilities=every_class)
    table.write(path)
    seen = ""
    if loaded.takes_labels:
        used = int(is_known(loaded.observed_with(extra, cast("Reveal", reveal))).sum())
        known = int(is_known(loaded.observed_with(extra, "known")).sum())
        more = f" ({known - used:,} more are known: --reveal known)" if known > used else ""
        seen = f", with {used:,} labels as inputs{more}"
    out.print(f"{len(table):,} nodes labeled{seen}: {path}")
