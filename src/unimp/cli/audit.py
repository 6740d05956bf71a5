"""audit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.progress import Progress

from unimp.cli.console import RunFolder, app, out, print_rows, require_label_inputs
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
    from torch import Tensor

    from unimp.config.choices import Reveal
    from unimp.runs.run import Run
    from unimp.tasks.task import Task

UNITS = ("node", "group")


@app.command("audit")
def audit_labels(
    folder: RunFolder,
    path: Annotated[
        Path, typer.Option("--out", help="Where to write; .csv gives CSV, else Parquet.")
    ] = Path("audit.csv"),
    count: Annotated[
        int | None,
        typer.Option("-n", help="Rows to write, the most doubtful. Default: all.", min=1),
    ] = None,
    reveal: Annotated[str, typer.Option(help="Labels to look at: train, or train+val.")] = "train",
    labels: LaterLabels = None,
    nodes: LaterNodes = None,
    edges: LaterEdges = None,
    unknown_ids: UnknownEnds = "refuse",
    smooth: Smooth = False,
    folds: Annotated[
        int | None,
        typer.Option(
            help="0: hide each label alone; K: a K-th at a time. Default: by size.",
            min=0,
        ),
    ] = None,
    by: Annotated[
        str, typer.Option(help="node, or group: a label is hidden with all of its group.")
    ] = "node",
) -> None:
    """Rank known labels that the model, seeing all the others, disagrees with."""
    from unimp.analysis.audit import audit
    from unimp.tasks.labels import PROTOCOLS

    if reveal not in PROTOCOLS:
        raise RunError(f"--reveal {reveal!r}: {nearest_names(reveal, PROTOCOLS)}")
    if by not in UNITS:
        raise RunError(f"--by {by!r}: {nearest_names(by, UNITS)}")
    if folds == 1:
        raise RunError("--folds 1 would hide every label at once; give 2 or more, or 0")
    if path.is_dir():
        raise RunError(f"{path} is a folder; name the file that the table is to be")
    loaded, extra = load_with_later(folder, labels, nodes, edges, unknown_ids, smooth=smooth)
    if reveal != "train":
        require_label_inputs(loaded, "--reveal train+val")
    task, known, observed = labels_to_look_at(loaded, extra, reveal)
    with Progress(console=out, transient=True, disable=not out.is_terminal) as progress:
        bar = progress.add_task("hiding labels", total=None)
        found = audit(
            loaded.hold(observed),
            task,
            known,
            chances=loaded.chances,
            folds=folds,
            by_group=by == "group",
            on_part=lambda done, all: progress.update(bar, completed=done, total=all),
        )
    table = found.head(count)
    table.write(path)
    print_rows(
        [("rank", "node", "given", "suggested", "p(given)", "p(suggested)")]
        + [
            (
                str(row["rank"]),
                str(row["node"]),
                f"{row['task']}={row['given']}" if "task" in row else str(row["given"]),
                str(row["suggested"]),
                f"{row['p_given']:.4f}",
                f"{row['p_suggested']:.4f}",
            )
            for row in table.head(10).to_pylist()
        ]
    )
    how = "each with all of its group" if by == "group" else "each alone"
    if found.folds:
        what = "whole groups" if by == "group" else "them"
        how = f"one of {found.folds} parts of {what} at a time"
    if not loaded.takes_labels:
        how = "which changes nothing, as this model takes no labels: it was trained on all of them"
    if loaded.recipe.smooth.form != "none":
        how += ", with smoothing after the model"
    out.print(
        f"{len(found):,} known labels hidden, {how}; the model disagrees with "
        f"{found.disagreements:,}: {path}"
    )


def labels_to_look_at(
    loaded: Run, extra: Tensor | None, reveal: str
) -> tuple[Task, Tensor, Tensor]:
    """The task with labels that came since, the nodes whose labels are hidden in turn, and all
    labels that are inputs."""
    import torch

    from unimp.tasks.labels import is_known

    task, known = loaded.task, loaded.task.split.known(reveal)
    observed = loaded.observed_with(extra, cast("Reveal", reveal))
    if extra is None:
        return task, known, observed
    seen = is_known(observed)
    labels = torch.where(seen if observed.ndim == 1 else seen[:, None], observed, task.labels)
    since = seen.clone()
    since[known] = False
    fresh = torch.nonzero(since).squeeze(1)
    return replace(task, labels=labels), torch.cat((known, fresh)), observed
