"""Tasks by name: what there is, and how each is loaded."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from unimp.config.choices import Metric
from unimp.data.debian import load_debian, load_debian_tags
from unimp.data.npz import count_splits, load_npz
from unimp.data.ogb import load_ogb
from unimp.data.synthetic import synthetic_like, synthetic_task
from unimp.data.tables.transforms import TASK, TRANSFORMS, load_transforms
from unimp.errors import TaskError, nearest_names
from unimp.graph.features import SparseFeatures
from unimp.graph.graph import Graph
from unimp.tasks.task import Sizes, Task

BUNDLED: dict[str, Callable[..., Task]] = {"debian": load_debian, "debian-tags": load_debian_tags}

# Sizes as published, so that a recipe can show its model without the data.
OGB = {
    "ogbn-arxiv": Sizes(features=128, edge_features=0, classes=40, multilabel=False),
    "ogbn-products": Sizes(features=100, edge_features=0, classes=47, multilabel=False),
    "ogbn-proteins": Sizes(features=8, edge_features=8, classes=112, multilabel=True),
}
SYNTHETIC: dict[str, Literal["arxiv", "products", "proteins"]] = {
    "synthetic-arxiv": "arxiv",
    "synthetic-products": "products",
    "synthetic-proteins": "proteins",
}


def data_folder() -> Path | None:
    """Where named `.npz` files and OGB's folders lie: the environment variable UNIMP_DATA."""
    folder = os.environ.get("UNIMP_DATA")
    return Path(folder) if folder else None


def task_names() -> dict[str, str]:
    """Every task that can be named here, with where it comes from."""
    names = dict.fromkeys(BUNDLED, "bundled")
    folder = data_folder()
    for name in OGB:
        there = folder is not None and (folder / name.replace("-", "_")).is_dir()
        names[name] = "in UNIMP_DATA" if there else "not here: unimp data fetch"
    if folder is not None and folder.is_dir():
        names |= dict.fromkeys(sorted(p.stem for p in folder.glob("*.npz")), "in UNIMP_DATA")
    return names | dict.fromkeys(("synthetic", *SYNTHETIC), "generated")


def known_sizes(name: str) -> Sizes | None:
    """The sizes of a task whose data need not be at hand; None where only the data tells."""
    return OGB.get(name)


def is_generated(name: str) -> bool:
    return _kind(name) == "synthetic"


def load_task(
    name: str,
    *,
    split: int = 0,
    bundle: str = "",
    features: str = "",
    metric: Metric | None = None,
    node_features: Literal["sum", "mean"] = "sum",
    scale: float = 1.0,
    symmetrize: bool = False,
    self_loops: bool = False,
    scale_rows: bool = False,
) -> Task:
    """Load a task by name, or from the path of an `.npz` file, and prepare its graph.

    `split` numbers one of the task's splits, counted around where there are fewer; for generated
    tasks it is the seed. Then rows of x are scaled to sum 1, reverse edges added, and self-loops.
    """
    refuse_unused(
        name,
        bundle=bundle,
        features=features,
        metric=metric,
        node_features=node_features,
        scale=scale,
    )
    task = _load(name, split, bundle, features, metric, node_features, scale)
    return prepare(task, scale_rows=scale_rows, symmetrize=symmetrize, self_loops=self_loops)


def prepare(task: Task, **changes: bool) -> Task:
    """A task with its graph made ready, as `prepare_graph` does."""
    graph = prepare_graph(task.graph, **changes)
    return task if graph is task.graph else task.with_graph(graph)


def prepare_graph(
    graph: Graph, *, scale_rows: bool = False, symmetrize: bool = False, self_loops: bool = False
) -> Graph:
    """A graph made ready: rows of x scaled, reverse edges and self-loops added."""
    if scale_rows and graph.x is not None:
        if isinstance(graph.x, SparseFeatures):
            graph = graph.with_features(graph.x.scale_rows())
        else:
            sums = graph.x.sum(1, keepdim=True)
            graph = graph.with_features(graph.x / torch.where(sums == 0, 1.0, sums))
    if symmetrize:
        graph = graph.symmetrize()
    return graph.with_self_loops() if self_loops else graph


# Which options a kind of task takes, beside the ones that every task takes.
_TAKES = {
    "bundled": {"bundle"},
    "ogb": {"node_features"},
    "synthetic": {"scale"},
    "npz": {"features", "metric"},
    "tables": {"metric"},
}
_UNSET = {"bundle": "", "features": "", "metric": None, "node_features": "sum", "scale": 1.0}


def _kind(name: str) -> str:
    if name == "tables":
        return "tables"
    if name in BUNDLED:
        return "bundled"
    if name in OGB:
        return "ogb"
    return "synthetic" if name == "synthetic" or name in SYNTHETIC else "npz"


def refuse_unused(name: str, **given: object) -> None:
    """An option that would change nothing is a mistake; say so before hours are spent on it."""
    for option, value in given.items():
        if value != _UNSET[option] and option not in _TAKES[_kind(name)]:
            takes = [kind for kind, options in _TAKES.items() if option in options]
            raise TaskError(
                f"task.{option} = {value!r} means nothing for {name!r}: only {takes[0]} tasks take "
                "it; leave it out"
            )


def _load(
    name: str,
    split: int,
    bundle: str,
    features: str,
    metric: Metric | None,
    node_features: Literal["sum", "mean"],
    scale: float,
) -> Task:
    if name == "tables":
        raise TaskError(
            "task.name is 'tables', but no tables are named; `unimp init NODES EDGES` writes a "
            "recipe that does, and in Python there is unimp.task_from_tables"
        )
    if name in BUNDLED:
        return BUNDLED[name](split=split, bundle=Path(bundle) if bundle else None)
    if name in OGB:
        return load_ogb(name, root=_required_folder(name), node_features=node_features)
    if name == "synthetic":
        return synthetic_task(
            num_nodes=max(10, round(10_000 * scale)),
            num_edges=max(10, round(50_000 * scale)),
            num_classes=10,
            num_features=32,
            seed=split,
        )
    if name in SYNTHETIC:
        return synthetic_like(SYNTHETIC[name], scale=scale, seed=split)
    path = Path(name)
    if path.suffix != ".npz":
        folder = data_folder()
        path = folder / f"{name}.npz" if folder else Path()
        if not path.is_file():
            where = f"{folder} holds no {name}.npz" if folder else "UNIMP_DATA names no folder"
            raise TaskError(
                f"no task {name!r}; {nearest_names(name, task_names())} (an .npz file is taken by "
                f"its path, or by its name from the folder that UNIMP_DATA names; {where})"
            )
    elif not path.is_file():
        raise TaskError(f"no file {name}; give the path of an .npz file, or a task's name")
    task = load_npz(
        path, split=split % count_splits(path), features=features or None, metric=metric
    )
    how = path.with_name(TRANSFORMS)  # a run on tables keeps them beside its task
    if path.name == TASK and how.is_file() and not features:
        return replace(task, tables=load_transforms(how))
    return task


def _required_folder(name: str) -> Path:
    folder = data_folder()
    if folder is None:
        raise TaskError(
            f"{name} is not bundled; set UNIMP_DATA to the folder that holds "
            f"{name.replace('-', '_')}/, or fetch it there with: unimp data fetch {name} (without "
            f"it, a generated graph of its shape: {name.replace('ogbn', 'synthetic')})"
        )
    return folder
