"""The commands `unimp data list`, `show`, `export` and `fetch`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from unimp.cli.console import app, out, print_rows
from unimp.cli.later import Force
from unimp.errors import UnimpError

if TYPE_CHECKING:
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
