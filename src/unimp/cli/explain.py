"""The command `unimp explain`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unimp.cli import later
from unimp.cli.console import RunFolder, app, err, out
from unimp.data.files import write_atomically
from unimp.data.outputs import PAGE
from unimp.errors import UnimpError
from unimp.report.explanation import (
    edge_text,
    explanation_page,
    others_in_words,
    percent,
    points,
    smoothed_in_words,
    without_in_words,
)

if TYPE_CHECKING:
    from unimp.runs.run import Run

PATIENCE = 5
"""A command may use this multiple of the usual budget, because loading the run takes longer."""


@app.command("explain")
def explain_node(
    folder: RunFolder,
    node: Annotated[
        str,
        typer.Argument(metavar="NODE", help="Name of a node, or its number if there are no names."),
    ],
    about: Annotated[
        str | None,
        typer.Option(
            "--class", metavar="NAME", help="Class or binary task. Default: the most likely one."
        ),
    ] = None,
    labels: later.Labels = None,
    nodes: later.Nodes = None,
    edges: later.Edges = None,
    unknown_ids: later.UnknownEnds = "refuse",
    reveal: later.RevealOption = None,
    smooth: later.Smooth = False,
    top: Annotated[int, typer.Option(help="Number of labels and edges to show.", min=1)] = 10,
    exact: Annotated[
        int | None,
        typer.Option(
            help="Number of labels and edges whose exact effect is computed. Default: 20.", min=0
        ),
    ] = None,
    patient: Annotated[
        bool, typer.Option("--all", help="Compute all exact effects, even if it takes long.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
    path: Annotated[
        Path | None, typer.Option("--out", help="Write to this file instead of printing.")
    ] = None,
    page: Annotated[
        Path | None, typer.Option("--report", help="Also write an HTML page to this file.")
    ] = None,
    force: later.Force = False,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep/--no-keep", help="Store it in RUN/explanations and show it in the report."
        ),
    ] = True,
) -> None:
    """Show the neighbors and known labels behind the prediction of a node.

    The explanation is also shown in report.html of the run, with a picture.
    """
    from unimp.analysis.explain import BUDGET, EXACT

    text_kinds = (".json",) if as_json else (".txt", ".md")
    later_files = (nodes, edges, *(labels or ()))
    later.check_outputs([(path, text_kinds), (page, PAGE)], folder, *later_files, force=force)
    loaded, extra = later.load_extended(folder, labels, nodes, edges, unknown_ids, smooth=smooth)
    explanation = loaded.explain(
        node,
        about=about,
        labels=extra,
        reveal=later.reveal_of(reveal, loaded),
        top=top,
        exact=EXACT if exact is None else exact,
        budget=None if patient else PATIENCE * BUDGET,
    )
    found = explanation.to_dict()
    text = json.dumps(found, indent=2, ensure_ascii=False) if as_json else text_of(found, top)
    if path is None:
        out.print(text)
    else:
        write_atomically(path, (text + "\n").encode())
    if page is not None:
        write_atomically(page, explanation_page(found, loaded.recipe.name, top).encode())
    added = {"labels": labels or (), "nodes": [nodes], "edges": [edges]}
    given = {
        option: " and ".join(legible(file.name) for file in files if file is not None)
        for option, files in added.items()
        if any(files)
    }
    files = {"explanation": path, "page": page}
    lines = [f"{what}: {file}" for what, file in files.items() if file is not None]
    if keep:
        changed = smooth or nodes is not None or edges is not None
        lines += stored_in(folder, found, given, None if changed else loaded)
    # JSON that is printed for a program must stay JSON.
    for line in () if as_json and path is None else lines:
        out.print(line)


def legible(name: str) -> str:
    """The name of a file for a page; bytes that are not UTF-8 are replaced."""
    return os.fsencode(name).decode(errors="replace")


def stored_in(
    folder: Path, found: Mapping[str, Any], given: Mapping[str, str], run: Run | None
) -> list[str]:
    """Store an explanation in the folder of its run and render the page of the run again.

    Returns a line with the path of the page. A failure is only a note, because the answer is
    already printed. `run` is the run as it was trained, if it is loaded.
    """
    from unimp.runs.folder.explanations import store_explanation
    from unimp.runs.reporting import write_report

    try:
        store_explanation(folder, found, given)
        page = write_report(folder, run)
    except (OSError, UnimpError, ValueError, RecursionError) as error:
        why = str(error) or type(error).__name__
        if isinstance(error, OSError) and error.filename:
            why = f"{error.filename}: {error.strerror}"
        err.print(f"The explanation was not stored with the run: {why}")
        return []
    return [f"report: {page}"]


def text_of(found: Mapping[str, Any], top: int) -> str:
    """An explanation in a few lines."""
    now = found["probability"]
    lines = [f"{found['node']}: {found['class']}, {percent(now)}"]
    if others := others_in_words(found):
        lines.append(others)
    if smoothed := smoothed_in_words(found):
        lines.append(smoothed)
    if found["observed"] is not None:
        lines.append(f"its own label is an input: {in_words(found['observed'])}")
        lines.append("(unimp predict keeps it; shown is the output of the model)")
    lines.append("")
    for words, chance in without_in_words(found):
        lines.append(f"{words:<24} {percent(chance)} ({points(chance - now)})")
    share = "attention" if found["shares_are"] == "attention" else "walk"
    if found["labels"]:
        lines += ["", f"Known labels ({exactly(found, 'labels', found['known_labels'])})"]
        lines += columns(
            [("effect", "node", "label", "hops", share)]
            + [
                (effect(one), str(one["node"]), in_words(one["label"]), str(one["hops"]),
                 percent(one["share"]))
                for one in found["labels"][:top]
            ]
        )  # fmt: skip
    if found["edges"]:
        lines += ["", f"Edges ({exactly(found, 'edges', None)})"]
        lines += columns(
            [("effect", "edge", share)]
            + [(effect(one), edge_text(one), percent(one["share"])) for one in found["edges"][:top]]
        )
    if found["attention"]:
        lines += ["", "Attention of each layer, heads averaged"]
        for number, layer in enumerate(found["attention"], 1):
            names = ", ".join(f"{one['node']} {percent(one['weight'])}" for one in layer[:5])
            lines.append(f"  layer {number}  {names or 'no in-neighbors'}")
    lines += ["", found["computed"]]
    return "\n".join(lines)


def exactly(found: Mapping[str, Any], what: str, count: int | None) -> str:
    """How many effects are exact, and what the shares are."""
    among = f"{count:,} within reach; " if count is not None else ""
    shares = "attention rolled out over the layers"
    if found["shares_are"] != "attention":
        shares = (
            "a uniform walk, because attention is not available for ensembles, smoothed runs and "
            "models without attention"
        )
    return (
        f"{among}effects in percentage points, exact for {found['exact_' + what]} of the "
        f"{len(found[what])} largest shares; each is for one of the {what} alone, and the effect "
        f"of several can differ from the sum; shares come from {shares}"
    )


def effect(one: Mapping[str, Any]) -> str:
    return "–" if one["effect"] is None else points(one["effect"])


def in_words(label: str | Sequence[str]) -> str:
    return label if isinstance(label, str) else ", ".join(label) or "none"


def columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[c]) for row in rows) for c in range(len(rows[0]))]
    for row in rows:
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        yield ("  " + "  ".join(cells)).rstrip()
