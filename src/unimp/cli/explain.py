"""explain."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unimp.cli.console import RunFolder, app, out
from unimp.cli.console import err as notes
from unimp.cli.later import (
    LaterEdges,
    LaterLabels,
    LaterNodes,
    Smooth,
    UnknownEnds,
    load_with_later,
)
from unimp.data.files import write_atomically
from unimp.errors import RunError, UnimpError
from unimp.report.explanation import (
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
"""Times the usual budget: a command computes the states first, which takes a while, so exact
effects may take a second more."""

UNLIMITED = 2**62


@app.command("explain")
def explain_node(
    folder: RunFolder,
    node: Annotated[
        str, typer.Argument(metavar="NODE", help="A node's name; its number, where there are none.")
    ],
    name: Annotated[
        str | None,
        typer.Option(
            "--class", metavar="NAME", help="The class or binary task. Default: likeliest."
        ),
    ] = None,
    labels: LaterLabels = None,
    nodes: LaterNodes = None,
    edges: LaterEdges = None,
    unknown_ids: UnknownEnds = "refuse",
    smooth: Smooth = False,
    top: Annotated[int, typer.Option(help="Labels, and edges, to show.", min=1)] = 10,
    exact: Annotated[
        int | None,
        typer.Option(
            help="Labels, and edges, whose exact effect is computed. Default: the 20 of the "
            "largest shares.",
            min=0,
        ),
    ] = None,
    patient: Annotated[
        bool, typer.Option("--all", help="Exact however long it takes, as at a hub it may.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON in place of text.")] = False,
    path: Annotated[
        Path | None, typer.Option("--out", help="Write it into this file in place of printing it.")
    ] = None,
    page: Annotated[
        Path | None, typer.Option("--report", help="Write a page of its own into this file.")
    ] = None,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep/--no-keep", help="Keep it in RUN/explanations, with a picture in the report."
        ),
    ] = True,
) -> None:
    """Tell which neighbors and known labels drove the prediction of a node.

    The run's report.html shows it too, with a picture.
    """
    import torch

    from unimp.analysis.explain import BUDGET, EXACT, explain
    from unimp.inference.incremental.changes import FullRecomputation
    from unimp.tasks.names import classes_of, nodes_of

    for file in (path, page):
        if file is not None:
            refuse_place(file, folder)
    loaded, extra = load_with_later(folder, labels, nodes, edges, unknown_ids, smooth=smooth)
    task = loaded.task
    number = nodes_of(task).find(node)
    target = None if name is None else classes_of(task).find(name)
    began = time.perf_counter()
    answers = loaded.incremental(loaded.observed_labels(extra), around=torch.tensor([number]))
    held = time.perf_counter() - began
    found = explain(
        answers,
        task.graph,
        loaded.observed_labels(extra),
        number,
        chances=loaded.probabilities_of,
        takes_labels=loaded.takes_labels,
        target=target,
        top=top,
        exact=EXACT if exact is None else exact,
        budget=UNLIMITED if patient else PATIENCE * BUDGET,
    )
    took = time.perf_counter() - began - held
    told = {**found.named(task), "smooth": loaded.recipe.smooth.form}
    if isinstance(answers, FullRecomputation):
        told["computed"] = f"every change computed on the whole graph, in {took:.1f} s"
    else:
        told["computed"] = (
            f"states of the {len(answers.held):,} of {task.graph.num_nodes:,} nodes that it rests "
            f"on in {held:.1f} s, then the rest in {took:.1f} s"
        )
    if loaded.recipe.inference.regime != "exact":
        told["computed"] += "; exact inference, while the run's own predictions are over parts"
    written = json.dumps(told, indent=2, ensure_ascii=False) if as_json else text_of(told, top)
    if path is None:
        out.print(written)
    else:
        write_atomically(path, (written + "\n").encode())
    if page is not None:
        write_atomically(page, explanation_page(told, loaded.recipe.name, top).encode())
    later = {"labels": labels or (), "nodes": [nodes], "edges": [edges]}
    given = {
        option: " and ".join(legible(file.name) for file in files if file is not None)
        for option, files in later.items()
        if any(files)
    }
    lines = [f"{told['node']}: {file}" for file in (path, page) if file is not None]
    if keep:
        changed = smooth or nodes is not None or edges is not None
        lines += kept_in(folder, told, given, None if changed else loaded)
    # JSON that goes to a program stays JSON.
    for line in () if as_json and path is None else lines:
        out.print(line)


def refuse_place(file: Path, folder: Path) -> None:
    """Refuse to write where something stands that is not an explanation."""
    from unimp.runs.folder.explanations import STATE
    from unimp.runs.reporting import PAGE

    if file.is_dir():
        raise RunError(f"{file} is a folder; name the file that it is to be")
    for name in (*STATE, PAGE):
        own = folder / name
        if file.resolve() == own.resolve() or (
            file.exists() and own.exists() and file.samefile(own)
        ):
            raise RunError(
                f"{file} is a file of the run itself, which would be lost; name another, such as "
                f"why.html. Without --report, {PAGE} shows the explanation beside the rest"
            )


def legible(name: str) -> str:
    """The name of a file as a page can show it: bytes that are no UTF-8 are marked."""
    return os.fsencode(name).decode(errors="replace")


def kept_in(
    folder: Path, told: Mapping[str, Any], given: Mapping[str, str], run: Run | None
) -> list[str]:
    """Store an explanation in the folder of its run and render the page of the run again.

    Returns a line with the path of the page. A failure is only a note, because the answer is
    already printed. `run` is the run as it was trained, if it is loaded.
    """
    from unimp.runs.folder.explanations import store_explanation
    from unimp.runs.reporting import write_report

    try:
        store_explanation(folder, told, given)
        page = write_report(folder, run)
    except (OSError, UnimpError, ValueError, RecursionError) as error:
        why = str(error) or type(error).__name__
        if isinstance(error, OSError) and error.filename:
            why = f"{error.filename}: {error.strerror}"
        notes.print(f"The explanation was not stored with the run: {why}")
        return []
    return [f"{told['node']}: {page}"]


def text_of(told: Mapping[str, Any], top: int) -> str:
    """An explanation in a few lines."""
    now = told["probability"]
    lines = [f"{told['node']}: {told['class']}, {percent(now)}"]
    if others := others_in_words(told):
        lines.append(others)
    if smoothed := smoothed_in_words(told):
        lines.append(smoothed)
    if told["observed"] is not None:
        lines.append(f"its own label is an input: {in_words(told['observed'])}")
    lines.append("")
    for words, chance in without_in_words(told):
        lines.append(f"{words:<24} {percent(chance)} ({points(chance - now)})")
    share = "attention" if told["shares_are"] == "attention" else "even walk"
    if told["labels"]:
        lines += ["", f"Known labels ({exactly(told, 'labels', told['known_labels'])})"]
        lines += columns(
            [("effect", "node", "label", "hops", share)]
            + [
                (effect(one), str(one["node"]), in_words(one["label"]), str(one["hops"]),
                 percent(one["share"]))
                for one in told["labels"][:top]
            ]
        )  # fmt: skip
    if told["edges"]:
        lines += ["", f"Edges ({exactly(told, 'edges', None)})"]
        lines += columns(
            [("effect", "edge", share)]
            + [
                (effect(one), f"{one['source']} {arrow(one)} {one['target']}",
                 percent(one["share"]))
                for one in told["edges"][:top]
            ]
        )  # fmt: skip
    if told["attention"]:
        lines += ["", "Attention of each layer, heads averaged"]
        for number, layer in enumerate(told["attention"], 1):
            names = ", ".join(f"{one['node']} {percent(one['weight'])}" for one in layer[:5])
            lines.append(f"  layer {number}  {names or 'no in-neighbors'}")
    lines += ["", told["computed"]]
    return "\n".join(lines)


def exactly(told: Mapping[str, Any], what: str, count: int | None) -> str:
    """How the effects came about."""
    among = f"of {count:,} found within reach, " if count is not None else ""
    chosen = "attention rolled out over the layers"
    if told["shares_are"] != "attention":
        of = "smoothing" if smoothed_in_words(told) else "the model"
        chosen = f"an even walk, as {of} has no attention"
    return (
        f"{among}{told['exact_' + what]} of the {len(told[what])} largest shares computed exactly; "
        f"shares are of {chosen}"
    )


def effect(one: Mapping[str, Any]) -> str:
    return "–" if one["effect"] is None else points(one["effect"])


def arrow(one: Mapping[str, Any]) -> str:
    return "↔" if one["both_ways"] else "→"


def in_words(label: str | Sequence[str]) -> str:
    return label if isinstance(label, str) else ", ".join(label) or "none"


def columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[c]) for row in rows) for c in range(len(rows[0]))]
    for row in rows:
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        yield ("  " + "  ".join(cells)).rstrip()
