"""The commands `unimp evaluate` and `unimp predict`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unimp.cli import later
from unimp.cli.console import RunFolder, app, out
from unimp.cli.data import read_bytes
from unimp.cli.processes import on_devices
from unimp.data.outputs import TABLE
from unimp.errors import RunError, nearest_names
from unimp.training.interruption import signals_held

if TYPE_CHECKING:
    from unimp.runs.run import Run


Memory = Annotated[
    str | None,
    typer.Option(help="Memory to use, such as 8G. Default: inference.memory of the recipe."),
]
Devices = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=1024,
        metavar="COUNT",
        help="Compute with this number of processes on this machine. Each process uses its own GPU "
        "or, on CPU, an equal share of the cores.",
    ),
]


def within(memory: str | None, run: Run) -> Run:
    """The run with the memory limit of a command, if it has one."""
    if memory is None:
        return run
    limit = {"inference.memory": read_bytes(memory)}
    return replace(run, recipe=run.recipe.with_settings(limit))


@app.command()
def evaluate(
    folder: RunFolder,
    reveal: Annotated[
        str | None,
        typer.Option(
            help="Labels that are inputs: train (as reported, the default), or train+val."
        ),
    ] = None,
    memory: Memory = None,
    devices: Devices = None,
) -> None:
    """Score a run again, with train labels, or with train and validation labels as inputs.

    For a refitted ensemble, only the test score is computed; leave out --reveal.
    """
    on_devices(devices)
    with signals_held():  # torch ignores an interrupted import of numpy, and later code fails
        from unimp.runs.loading import load_shared
        from unimp.tasks.labels import PROTOCOLS

    if reveal is not None and reveal not in PROTOCOLS:
        raise RunError(f"--reveal {reveal!r}: {nearest_names(reveal, PROTOCOLS)}")
    loaded = within(memory, load_shared(folder))
    if reveal == "train+val":
        later.require_label_inputs(loaded, "--reveal train+val")
    inputs = (
        f"{reveal or 'train'} labels as inputs" if loaded.takes_labels else "no labels as inputs"
    )
    if loaded.is_refitted:
        inputs = "refitted; train and validation labels as inputs"
    scores = loaded.evaluate(reveal)
    if not loaded.shared.is_first:
        return
    if not scores:
        out.print(f"no set has known labels to score   ({inputs})")
    for name, value in scores.items():
        out.print(f"{name} {loaded.task.metric} {100 * value:.2f} %   ({inputs})")


@app.command()
def predict(
    folder: RunFolder,
    labels: later.Labels = None,
    nodes: later.Nodes = None,
    edges: later.Edges = None,
    unknown_ids: later.UnknownEnds = "refuse",
    reveal: later.RevealOption = None,
    smooth: later.Smooth = False,
    path: later.TableFile = Path("predictions.parquet"),
    force: later.Force = False,
    every_class: Annotated[
        bool | None,
        typer.Option(
            "--probabilities/--no-probabilities",
            help="Write a column with the probability of each class. Default: yes, unless there "
            "are very many.",
        ),
    ] = None,
    memory: Memory = None,
    devices: Devices = None,
) -> None:
    """Label all nodes, using the known labels and those that came later, without training.

    --nodes and --edges extend the graph of a run that was trained on tables. If --out has no
    suffix, it is a folder, to which files of a million nodes each are written.
    """
    on_devices(devices)
    in_parts = not path.suffix
    first = path / "part-00000.parquet" if in_parts else path
    later.check_outputs([(first, TABLE)], folder, nodes, edges, *(labels or ()), force=force)
    loaded, extra = later.load_extended(
        folder, labels, nodes, edges, unknown_ids, smooth=smooth, shared=True
    )
    loaded, revealed = within(memory, loaded), later.reveal_of(reveal, loaded)
    compares = bool(labels) and not in_parts and loaded.takes_labels
    if not loaded.shared.is_first:  # compute the logits that the first process needs below
        for given in (extra, None) if compares else (extra,):
            loaded.logits(loaded.observed_labels(given, revealed))
        return
    if in_parts:
        parts = loaded.write_predictions(
            path, extra, reveal=revealed, probabilities=every_class, force=force
        )
        where = f"{path}, {len(parts)} {'file' if len(parts) == 1 else 'files'}"
    else:
        table = loaded.predictions(extra, reveal=revealed, probabilities=every_class)
        table.write(path, force=force)
        where = str(path)
    out.print(f"{loaded.task.graph.num_nodes:,} nodes, one row each: {where}")
    out.print(later.inputs_in_words(loaded, extra, revealed))
    if not in_parts and (words := later.predictions_in_words(loaded, table)):
        out.print(words)
    if compares:
        without = loaded.predictions(reveal=revealed, probabilities=False)
        out.print(later.changes_in_words(without.to_arrow(), table.to_arrow()))
