"""What came after training, for every command that asks a finished run: labels, nodes and edges."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

from unimp.cli.console import require_label_inputs, told
from unimp.errors import RunError, nearest_names

if TYPE_CHECKING:
    from torch import Tensor

    from unimp.runs.run import Run

LaterLabels = Annotated[
    list[Path] | None,
    typer.Option(
        help="CSV or Parquet with columns node,label: labels that came after training. May be "
        "repeated; a later file wins.",
    ),
]
LaterNodes = Annotated[
    Path | None,
    typer.Option(help="Nodes that came after training: a table like the one it was given."),
]
LaterEdges = Annotated[
    Path | None, typer.Option(help="Edges that came since, between any two nodes, new or old.")
]
UnknownEnds = Annotated[
    str, typer.Option(help="Edges that name an id which is no node: refuse, or skip them.")
]
Smooth = Annotated[
    bool, typer.Option("--smooth", help="Correct & Smooth after the model; the same weights.")
]


def load_with_later(
    folder: Path,
    labels: Sequence[Path] | None,
    nodes: Path | None,
    edges: Path | None,
    unknown_ids: str,
    *,
    smooth: bool | None = False,
    labels_are_inputs: bool = True,
) -> tuple[Run, Tensor | None]:
    """A run on the graph that these tables extend, and the labels that came since.

    smooth: Correct & Smooth after the model; None: if that scores better on validation.
    labels_are_inputs: whether labels are refused that the model would not look at.
    """
    from unimp.config.choices import UnknownIds
    from unimp.data.tables.label_files import read_label_files
    from unimp.runs.run import load_run

    choices = get_args(UnknownIds)
    if unknown_ids not in choices:
        raise RunError(f"--unknown-ids {unknown_ids!r}: {nearest_names(unknown_ids, choices)}")
    loaded = load_run(folder)
    if smooth is None:
        loaded = loaded.smoothed_if_better()
    elif smooth:
        loaded = loaded.smoothed()
    if labels and labels_are_inputs:
        require_label_inputs(loaded, "--labels")
    if nodes is not None or edges is not None:
        loaded = loaded.extended(nodes, edges, unknown_ids=cast("UnknownIds", unknown_ids))
    extra = read_label_files(labels or (), loaded.task)
    if extra is not None and not bool((extra >= 0).any()):
        told.print(f"no label is filled in: {', '.join(map(str, labels or ()))}")
    return loaded, extra
