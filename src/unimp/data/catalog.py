"""Load tasks by name, from an `.npz` file, or from a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch

from unimp.config.arguments import Range, Seed, checked
from unimp.config.choices import Metric, Pooling
from unimp.config.task_names import (
    BUNDLED,
    GENERATED,
    OGB,
    SYNTHETIC,
    TABLES,
    data_folder,
    ogb_folder_name,
    refuse_unused,
    task_names,
)
from unimp.data.california import load_california
from unimp.data.debian import load_debian, load_debian_tags
from unimp.data.npz import count_splits, load_npz
from unimp.data.ogb import PUBLISHED, load_ogb
from unimp.data.store.task import is_symmetric, open_store
from unimp.data.structure import with_structure
from unimp.data.synthetic import synthetic_like, synthetic_task
from unimp.errors import TaskError, nearest_names
from unimp.graph.features import SparseFeatures
from unimp.graph.graph import Graph
from unimp.tasks.task import Sizes, Task


def known_sizes(name: str) -> Sizes | None:
    """Return the sizes of an OGB task, which are known without its data; None for other tasks."""
    if name not in PUBLISHED:
        return None
    task = PUBLISHED[name]
    return Sizes(task.features, task.edge_features, task.num_classes, task.metric == "rocauc")


@checked
def load_task(
    name: str,
    *,
    split: Seed = 0,
    bundle: str = "",
    features: str = "",
    metric: Metric | None = None,
    node_features: Pooling = "sum",
    scale: Annotated[float, Range(1e-9, 101)] = 1.0,
    symmetrize: bool = False,
    self_loops: bool = False,
    scale_rows: bool = False,
    structure: bool = False,
) -> Task:
    """Load a task by its name or by the path of an `.npz` file or a store, and prepare its graph.

    `split` selects a split. If a file contains S splits, it is taken modulo S. Bundled tasks draw a
    split for any number, and generated tasks use it as their seed.

    bundle         debian tasks: another bundle, built by `scripts/build-debian`
    features       `.npz` files: another array to use as node features
    metric         `.npz` files and stores: the metric; None: theirs, or the one that fits labels
    node_features  ogbn-proteins: how edge features become node features
    scale          generated tasks: the size relative to the original

    `scale_rows`, `symmetrize`, `self_loops` and `structure` change the graph as in `prepare_graph`.
    """
    refuse_unused(
        name,
        bundle=bundle,
        features=features,
        metric=metric,
        node_features=node_features,
        scale=scale,
    )
    if name == TABLES:
        raise TaskError(
            "'tables' is not the name of a task: it needs two files. Use unimp.task_from_tables, "
            "or write a recipe with `unimp init NODES EDGES`."
        )
    if name == "california":
        task = load_california(split=split)
    elif name in BUNDLED:
        load = load_debian if name == "debian" else load_debian_tags
        task = load(split=split, bundle=Path(bundle) if bundle else None)
    elif name in OGB:
        task = load_ogb(name, root=_ogb_root(name), node_features=node_features)
    elif name in GENERATED:
        task = _generated(name, scale, seed=split)
    elif Path(name).suffix == ".graph":
        task = open_store(Path(name), split=split, metric=metric)
        symmetrize = symmetrize and not is_symmetric(Path(name))
    else:
        path = _npz_path(name)
        number = split % count_splits(path)
        task = load_npz(path, split=number, features=features or None, metric=metric)
    return prepare(
        task,
        scale_rows=scale_rows,
        symmetrize=symmetrize,
        self_loops=self_loops,
        structure=structure,
    )


def prepare(task: Task, **changes: bool) -> Task:
    """Return the task with its graph changed as by `prepare_graph`."""
    graph = prepare_graph(task.graph, **changes)
    return task if graph is task.graph else task.with_graph(graph)


def prepare_graph(
    graph: Graph,
    *,
    scale_rows: bool = False,
    symmetrize: bool = False,
    self_loops: bool = False,
    structure: bool = False,
) -> Graph:
    """Scale the rows of x to sum 1, add the reverse of each edge, self-loops, and structural
    columns; in this order. A graph in which every edge has a reverse is not symmetrized again."""
    if scale_rows and graph.x is not None:
        if isinstance(graph.x, SparseFeatures):
            graph = graph.with_features(graph.x.scale_rows())
        else:
            sums = graph.x.sum(1, keepdim=True)
            graph = graph.with_features(graph.x / torch.where(sums == 0, 1.0, sums))
    if symmetrize and not graph.is_symmetric:
        graph = graph.symmetrize()
    if self_loops:
        graph = graph.with_self_loops()
    return with_structure(graph) if structure else graph


def _generated(name: str, scale: float, *, seed: int) -> Task:
    if name in SYNTHETIC:
        return synthetic_like(SYNTHETIC[name], scale=scale, seed=seed)
    num_nodes = max(10, round(10_000 * scale))
    return synthetic_task(
        num_nodes=num_nodes,
        # A quarter of all pairs at most, which matters for very small graphs only.
        num_edges=min(round(50_000 * scale), num_nodes * (num_nodes - 1) // 8),
        num_classes=10,
        num_features=32,
        seed=seed,
    )


def _npz_path(name: str) -> Path:
    """The file that is named by its path, or by its stem in the folder UNIMP_DATA."""
    path = Path(name)
    if path.suffix == ".npz":
        if not path.is_file():
            raise TaskError(
                f"{name}: no such file. Give the path of an .npz file, or a task's name"
            )
        return path
    folder = data_folder()
    if folder is not None and (folder / f"{name}.npz").is_file():
        return folder / f"{name}.npz"
    searched = f"{folder} has no file {name}.npz" if folder else "UNIMP_DATA is not set"
    raise TaskError(
        f"no task {name!r}; {nearest_names(name, task_names())} (An .npz file can be given by its "
        f"path, or by its name if it is in the folder UNIMP_DATA: {searched}.)"
    )


def _ogb_root(name: str) -> Path:
    folder = data_folder()
    if folder is None:
        raise TaskError(
            f"{name} is not bundled. Set UNIMP_DATA to the folder that contains "
            f"{ogb_folder_name(name)}/, or to an empty folder and run `unimp data fetch {name}`. "
            f"Without the data, {name.replace('ogbn', 'synthetic')} is a generated graph of the "
            "same shape."
        )
    return folder
