"""The commands `unimp data list`, `show`, `export`, `fetch`, `build` and `verify`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from unimp.cli.console import Settings, app, out, print_rows
from unimp.cli.later import Force
from unimp.config.options import bytes_of
from unimp.errors import UnimpError, nearest_names

if TYPE_CHECKING:
    from unimp.data.store.build import Precision
    from unimp.data.tables.export import Form
    from unimp.tasks.task import Task

data_app = typer.Typer(no_args_is_help=True, help="Tasks: graphs with labels and a split.")
app.add_typer(data_app, name="data")


@data_app.command("list")
def list_data() -> None:
    """List the available tasks."""
    from unimp.config.task_names import data_folder, task_names

    print_rows(task_names().items())
    if data_folder() is None:
        out.print("Set UNIMP_DATA to a folder with .npz files to list these too.")


@data_app.command("show")
def show_data(name: Annotated[str, typer.Argument(metavar="NAME")]) -> None:
    """Show the sizes, the split and the hash of a task."""
    from unimp.data.catalog import load_task

    print_rows(task_rows(load_task(name)).items())


def task_rows(task: Task) -> dict[str, str]:
    """The properties of a task, one per line."""
    graph, split = task.graph, task.split
    rows = {
        "nodes": f"{graph.num_nodes:,}",
        "in-edges": f"{graph.num_edges:,} (mean {graph.num_edges / graph.num_nodes:.1f} per node, "
        f"largest {int(graph.in_degree.max()):,})",
        "features": repr(graph.x) if task.sizes.sparse else str(graph.num_features),
        "edge features": str(graph.num_edge_features),
        "binary tasks" if task.is_multilabel else "classes": str(task.num_classes),
        "train / val / test": " / ".join(
            f"{nodes.numel():,}" for nodes in (split.train, split.val, split.test)
        ),
        "metric": task.metric,
    }
    if not task.is_multilabel:
        rows["edge homophily"] = f"{task.homophily:.3f}"
    rows["SHA-256"] = task.data_hash()
    return {"task": task.name, **rows}


@data_app.command("export")
def export_data(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    folder: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to write to.")],
    form: Annotated[str, typer.Option("--format", help="parquet or csv.")] = "parquet",
    split: Annotated[int, typer.Option(help="Number of the split.")] = 0,
    force: Force = False,
) -> None:
    """Write a task as two tables, nodes and edges."""
    from unimp.data.catalog import load_task
    from unimp.data.tables.export import export_tables

    task = load_task(name, split=split)
    nodes, edges = export_tables(task, folder, cast("Form", form), force=force)
    out.print(f"nodes: {nodes}\nedges: {edges}\nNext: unimp init {nodes} {edges}")


@data_app.command("fetch")
def fetch_data(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A data set of OGB, such as ogbn-arxiv.")
    ],
) -> None:
    """Download a data set of OGB into UNIMP_DATA; no other command downloads anything."""
    from unimp.config.task_names import data_folder
    from unimp.data.ogb import fetch_ogb

    folder = data_folder()
    if folder is None:
        raise UnimpError("set UNIMP_DATA to the folder to download to")
    out.print(f"stored in {fetch_ogb(name, folder)}")


@data_app.command("build")
def build_data(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Recipe of tables.")],
    folder: Annotated[Path, typer.Option("--out", metavar="NAME.graph", help="Store to write.")],
    memory: Annotated[str, typer.Option(help="Memory to use, such as 2G.")] = "4G",
    precision: Annotated[
        str, typer.Option(help="f32, or f16 to store features in half the space.")
    ] = "f32",
    settings: Settings = None,
) -> None:
    """Build a graph on disk from tables in many files, for graphs larger than memory.

    The tables of a recipe may be folders and patterns, such as edges/*.parquet. After an
    interruption, the same command resumes.
    """
    from unimp.config.recipe import load_recipe
    from unimp.data.memory import gib
    from unimp.data.store.build import DTYPES, BuildOptions, Step, build_store
    from unimp.data.store.estimate import Estimate

    if precision not in DTYPES:
        raise UnimpError(f"--precision {precision!r}: {nearest_names(precision, DTYPES)}")
    started = time.monotonic()

    def print_estimate(found: Estimate) -> None:
        out.print(
            f"{found.num_nodes:,} nodes with {found.width} features, {found.num_edges:,} edges in "
            f"the tables: about {gib(found.store_bytes)} for the store, "
            f"{gib(found.temporary_bytes)} more while it is built, {found.seconds / 60:.1f} minutes"
        )

    def print_step(step: Step) -> None:
        tenth = max(1, step.total // 10)
        if not step.total or (step.done % tenth and step.done < step.total):
            return
        again = " (resumed)" if step.resumed and not step.done else ""
        spent = time.monotonic() - started
        out.print(f"{spent:7.1f} s  {step.name:8} {step.done:,} of {step.total:,}{again}")

    found = build_store(
        load_recipe(recipe, settings or ()),
        folder,
        BuildOptions(memory=read_bytes(memory), precision=cast("Precision", precision)),
        on_estimate=print_estimate,
        on_step=print_step,
    )
    out.print(f"{found['num_nodes']:,} nodes, {found['num_edges']:,} in-edges: {folder}")
    if found["skipped_edges"]:
        out.print(f"skipped {found['skipped_edges']:,} edges with ids that no node has")
    out.print(f"Next: unimp train {recipe} --set task.name={folder} --set batch.regime=neighbors")


def read_bytes(text: str) -> int:
    """The value of --memory: a number of bytes, such as 4G, 512M or 4GB."""
    try:
        return int(bytes_of(text))
    except ValueError as error:
        raise UnimpError(f"--memory {text!r} is not a size; {error}") from None


@data_app.command("verify")
def verify_data(folder: Annotated[Path, typer.Argument(metavar="NAME.graph")]) -> None:
    """Compare the files of a store with the hashes in its manifest."""
    from unimp.data.store.manifest import read_manifest, verify_store

    manifest = read_manifest(folder)
    damaged = verify_store(folder)
    for line in damaged:
        out.print(line)
    if damaged:
        raise UnimpError(f"{folder} is damaged; restore the files, or build it again")
    size = sum(entry["bytes"] for entry in manifest["files"].values())
    out.print(f"{len(manifest['files'])} files, {size:,} bytes: all hashes are right")
