"""The command `unimp audit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from unimp.cli import later
from unimp.cli.console import RunFolder, app, out, print_rows
from unimp.data.outputs import TABLE
from unimp.errors import RunError, nearest_names

UNITS = ("node", "group")


@app.command("audit")
def audit_labels(
    folder: RunFolder,
    path: later.TableFile = Path("audit.csv"),
    force: later.Force = False,
    count: Annotated[
        int | None,
        typer.Option("-n", help="Number of most doubtful rows to write. Default: all.", min=1),
    ] = None,
    reveal: later.RevealOption = None,
    labels: later.Labels = None,
    nodes: later.Nodes = None,
    edges: later.Edges = None,
    unknown_ids: later.UnknownEnds = "refuse",
    smooth: later.Smooth = False,
    folds: Annotated[
        int | None,
        typer.Option(
            help="0: hide each label alone; K: hide one of K parts at a time. Default: by the size "
            "of the graph.",
            min=0,
        ),
    ] = None,
    by: Annotated[
        str, typer.Option(help="node, or group: hide a label together with its group.")
    ] = "node",
) -> None:
    """Rank known labels that the model disagrees with when it sees all the others."""
    if by not in UNITS:
        raise RunError(f"--by {by!r}: {nearest_names(by, UNITS)}")
    if folds == 1:
        raise RunError("--folds 1 would hide every label at once; use 2 or more, or 0")
    later.check_outputs([(path, TABLE)], folder, nodes, edges, *(labels or ()), force=force)
    loaded, extra = later.load_extended(folder, labels, nodes, edges, unknown_ids, smooth=smooth)
    with Progress(console=out, transient=True, disable=not out.is_terminal) as progress:
        bar = progress.add_task("hiding labels", total=None)
        found = loaded.audit(
            extra,
            reveal=later.reveal_of(reveal, loaded),
            folds=folds,
            by_group=by == "group",
            on_part=lambda done, total: progress.update(bar, completed=done, total=total),
        )
    found.head(count).write(path, force=force)
    rows = [
        (
            str(row["rank"]),
            str(row["node"]),
            f"{row['task']}={row['given']}" if "task" in row else str(row["given"]),
            str(row["suggested"]),
            f"{row['p_given']:.4f}",
            f"{row['p_suggested']:.4f}",
        )
        for row in found.head(min(10, count or 10, found.disagreements)).to_pylist()
    ]
    if rows:
        print_rows([("rank", "node", "given", "suggested", "p(given)", "p(suggested)"), *rows])
    how = "each together with its group" if by == "group" else "each alone"
    if found.folds:
        what = "whole groups" if by == "group" else "them"
        how = f"one of {found.folds} parts of {what} at a time"
    if not loaded.takes_labels:
        how = "which changes nothing, because this model takes no labels as inputs"
    if loaded.smooths:
        how += ", with smoothing after the model"
    out.print(
        f"{len(found):,} known labels were hidden, {how}; the model disagrees with "
        f"{f'{found.disagreements:,}' if rows else 'none of them'}. All known labels, the most "
        f"doubtful first: {path}"
    )
