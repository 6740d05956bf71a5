"""audit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from unimp.cli.console import RunFolder, app, out, print_rows, require_label_inputs
from unimp.errors import RunError, nearest_names
from unimp.inference.audit import audit, named_rows, write_audit
from unimp.tasks.labels import PROTOCOLS, reveal_only
from unimp.trained import load_run

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
    if reveal not in PROTOCOLS:
        raise RunError(f"--reveal {reveal!r}: {nearest_names(reveal, PROTOCOLS)}")
    if by not in UNITS:
        raise RunError(f"--by {by!r}: {nearest_names(by, UNITS)}")
    if folds == 1:
        raise RunError("--folds 1 would hide every label at once; give 2 or more, or 0")
    if path.is_dir():
        raise RunError(f"{path} is a folder; name the file that the table is to be")
    loaded = load_run(folder)
    if reveal != "train":
        require_label_inputs(loaded, "--reveal train+val")
    task, known = loaded.task, loaded.task.split.known(reveal)
    with Progress(console=out, transient=True, disable=not out.is_terminal) as progress:
        bar = progress.add_task("hiding labels", total=None)
        found = audit(
            loaded.hold(reveal_only(known, task.labels)),
            task,
            known,
            chances=loaded.chances,
            folds=folds,
            by_group=by == "group",
            on_part=lambda done, all: progress.update(bar, completed=done, total=all),
        )
    written = write_audit(path, task, found, count=count)
    print_rows(
        [("rank", "node", "given", "suggested", "p(given)", "p(suggested)")]
        + [
            (
                str(row["rank"]),
                str(row["node"]),
                str(row["given"]) if found.task is None else f"{row['task']}={row['given']}",
                str(row["suggested"]),
                f"{row['p_given']:.4f}",
                f"{row['p_suggested']:.4f}",
            )
            for row in named_rows(task, found, min(10, written))
        ]
    )
    how = f"a {found.folds}th of them at a time" if found.folds else "each alone"
    if not loaded.takes_labels:
        how = "which changes nothing, as this model takes no labels: it was trained on all of them"
    out.print(
        f"{len(found):,} known labels hidden, {how}; the model disagrees with "
        f"{found.disagreements:,}: {path}"
    )
