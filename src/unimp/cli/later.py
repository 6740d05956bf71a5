"""Options of all commands that use a finished run: labels, nodes and edges that came later."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

from unimp.cli.console import IN_A_CELL, err
from unimp.config.choices import Reveal, UnknownIds
from unimp.config.run_files import LABELS
from unimp.errors import OutputError, RunError, UnimpError, nearest_names
from unimp.training.interruption import signals_held

if TYPE_CHECKING:
    import pyarrow as pa
    from torch import Tensor

    from unimp.analysis.table import Table
    from unimp.runs.run import Run

FREQUENT = 4
"""Number of predicted classes that a command lists by name. The others are added up."""
LONGEST_NAME = 40

Labels = Annotated[
    list[Path] | None,
    typer.Option(
        help="CSV or Parquet file with labels that came after training, in the columns node,label "
        "or with the names of your tables. May be repeated; later files take precedence."
    ),
]
Nodes = Annotated[
    Path | None,
    typer.Option(help="Table of nodes that came after training, with the same columns."),
]
Edges = Annotated[
    Path | None, typer.Option(help="Table of edges that came later, between new or old nodes.")
]
UnknownEnds = Annotated[
    str, typer.Option(help="Refuse or skip edges with an id that is not a node.")
]
TableFile = Annotated[Path, typer.Option("--out", help="File to write: .csv, .parquet or .pq.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing file.")]
Smooth = Annotated[bool, typer.Option("--smooth", help="Apply Correct & Smooth after the model.")]
RevealOption = Annotated[
    str | None,
    typer.Option(
        help="Known labels that are inputs: train, train+val, or known (all). Default: known for "
        "your own data, train for a task that is loaded by its name."
    ),
]


def load_extended(
    folder: Path,
    labels: Sequence[Path] | None,
    nodes: Path | None,
    edges: Path | None,
    unknown_ids: str,
    *,
    smooth: bool = False,
    labels_are_inputs: bool = True,
    shared: bool = False,
) -> tuple[Run, Tensor | None]:
    """Load a run on the graph that these tables extend, and read the labels that came later.

    smooth: apply Correct & Smooth. labels_are_inputs: refuse labels if the model takes no labels.
    shared: compute logits with the processes that were started together with this one.
    """
    with signals_held():  # torch ignores an interrupted import of numpy, and later code fails
        from unimp.data.tables.label_files import read_label_files
        from unimp.runs.loading import load_run, load_shared

    choices = get_args(UnknownIds)
    if unknown_ids not in choices:
        raise RunError(f"--unknown-ids {unknown_ids!r}: {nearest_names(unknown_ids, choices)}")
    loaded = load_shared(folder) if shared else load_run(folder)
    if smooth:
        loaded = loaded.smoothed()
    if labels and labels_are_inputs:
        require_label_inputs(loaded, "--labels")
    if nodes is not None or edges is not None:
        loaded = loaded.extended(nodes, edges, unknown_ids=cast("UnknownIds", unknown_ids))
    if not labels and labels_are_inputs and loaded.takes_labels:
        mention_served_labels(folder)
    extra = read_label_files(labels or (), loaded.task)
    if extra is not None and not bool((extra >= 0).any()):
        err.print(f"warning: no label is filled in: {', '.join(map(str, labels or ()))}")
        extra = None
    return loaded, extra


def mention_served_labels(folder: Path) -> None:
    """Print how to use the labels that `unimp serve` has stored in a run folder, if it has any."""
    if not (folder / LABELS).is_file():
        return
    from unimp.serving.reader import Reader

    count = 0
    with suppress(UnimpError, sqlite3.Error), Reader(folder) as reader:
        ((count,),) = reader.rows("select count(*) from now where label is not null")
    if count:
        err.print(
            f"note: {folder / LABELS} contains {count:,} labels of `unimp serve`, which are not "
            f"used. To use them: unimp serve export {folder} --out labels.csv, and then add "
            "--labels labels.csv"
        )


def check_outputs(
    outputs: Sequence[tuple[Path | None, Sequence[str]]],
    folder: Path,
    *reads: Path | None,
    force: bool,
) -> None:
    """Refuse a folder without a run and files that a command must not write, before it computes.

    outputs: the files to write, each with the suffixes that it may have.
    reads: the files that the command reads, besides those of the run in `folder`.
    """
    from unimp.data.outputs import check_output, is_same
    from unimp.runs.folder.files import files_behind, refuse_unfinished

    refuse_unfinished(folder)
    written: list[Path] = []
    for path, kinds in outputs:
        if path is None:
            continue
        if any(is_same(path, other) for other in written):
            raise OutputError(f"two options name the file {path}; name a different file for each.")
        check_output(path, kinds, reads=[*files_behind(folder), *reads], force=force)
        written.append(path)


def reveal_of(reveal: str | None, loaded: Run) -> Reveal:
    """The value of --reveal, checked; its default depends on the run."""
    if reveal is None:
        return loaded.default_reveal
    if reveal not in get_args(Reveal):
        raise RunError(f"--reveal {reveal!r}: {nearest_names(reveal, get_args(Reveal))}")
    if reveal != "train":
        require_label_inputs(loaded, f"--reveal {reveal}")
    return cast("Reveal", reveal)


def require_label_inputs(loaded: Run, option: str) -> None:
    """Refuse to reveal labels to a model that does not use them."""
    if not loaded.takes_labels:
        raise RunError(
            f"{option} has no effect: {loaded.recipe.model.name}, the model of this run, takes no "
            "labels as inputs. Leave the option out."
        )


def predictions_in_words(loaded: Run, table: Table) -> str:
    """How many labels were predicted, how sure the model is, and which classes are most frequent.

    Empty if every label was an input, or if nodes have several binary labels.
    """
    import pyarrow.compute as pc

    rows = table.to_arrow().select(["prediction", "confidence", "observed"])
    rows = rows.filter(pc.invert(rows["observed"]))
    if loaded.task.is_multilabel or not rows.num_rows:
        return ""
    counts = sorted(
        rows["prediction"].value_counts().to_pylist(),
        key=lambda count: (-count["counts"], count["values"]),
    )
    shares = [(count["values"], count["counts"]) for count in counts[:FREQUENT]]
    if others := counts[FREQUENT:]:
        name = "other class" if len(others) == 1 else "other classes"
        shares.append((f"{len(others):,} {name}", sum(count["counts"] for count in others)))
    words = ", ".join(
        f"{shortened(name).translate(IN_A_CELL)}: {100 * count / rows.num_rows:.1f} %"
        for name, count in shares
    )
    confidence = 100 * pc.mean(rows["confidence"]).as_py()
    number = f"{rows.num_rows:,} {'label was' if rows.num_rows == 1 else 'labels were'}"
    return (
        f"{number} predicted, with a mean confidence of {confidence:.1f} %. "
        f"Predicted classes: {words}"
    )


def shortened(name: str) -> str:
    """The name of a class, with at most `LONGEST_NAME` characters."""
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"


def changes_in_words(before: pa.Table, after: pa.Table) -> str:
    """How many predictions other labels changed, among the nodes whose label was no input."""
    rows = zip(
        *(before[name].to_pylist() for name in ("prediction", "observed")),
        *(after[name].to_pylist() for name in ("prediction", "observed")),
        strict=True,
    )
    others = [one != other for one, shown, other, given in rows if not (shown or given)]
    changed = f"{sum(others):,} of {len(others):,} other nodes"
    return f"later labels changed the prediction, not only its confidence, for {changed}"


def inputs_in_words(loaded: Run, extra: Tensor | None, reveal: Reveal) -> str:
    """Which labels were inputs, for the line that a command prints."""
    from unimp.tasks.labels import is_known

    if not loaded.takes_labels:
        return "the model takes no labels as inputs"
    of_task, with_later, all_known = (
        is_known(loaded.observed_labels(*given))
        for given in ((None, reveal), (extra, reveal), (extra, "known"))
    )
    used, unused = int(with_later.sum()), int((all_known & ~with_later).sum())
    sets = {"train": "the train set", "train+val": "the train and validation sets"}
    if extra is None and reveal == "known":
        words = f"all {used:,} known labels"
    elif extra is None:
        words = f"{used:,} labels of {sets[reveal]}"
    else:
        later = is_known(extra)
        words = (
            f"{used:,} labels: {int((of_task & ~later).sum()):,} of {sets.get(reveal, 'the task')} "
            f"and {int(later.sum()):,} that came later"
        )
        known = loaded.task.labels
        if replaced := int(((known >= 0) & (extra >= 0) & (known != extra)).sum()):
            verb = "replaces" if replaced == 1 else "replace"
            words += f" ({replaced:,} of them {verb} another known label)"
    hint = f"; --reveal known would use {unused:,} more" if unused else ""
    if bool(with_later.all()):
        hint = ". Every label is an input, so nothing was predicted"
        hint += "; --reveal train predicts the other nodes" if reveal != "train" else ""
    return f"inputs: {words}{hint}"
