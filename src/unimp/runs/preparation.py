"""What a run stands on: its task, groups and graph, the device, and the seed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from unimp.config.recipe import Recipe
from unimp.data.catalog import load_task, prepare, refuse_unused
from unimp.data.tables.checking import Rows, read_rows
from unimp.data.tables.transforms import Layout
from unimp.errors import RecipeError
from unimp.graph.graph import Graph
from unimp.inference.exact import fits_one_chunk
from unimp.model.node_model import NodeModel
from unimp.runs.folder.files import TASK, with_transforms
from unimp.tasks.task import Task
from unimp.training.batching import fits_gpu


def task_of(recipe: Recipe, seed: int) -> Task:
    """The recipe's task, with the split that this seed uses."""
    if recipe.task.name == "tables":
        return prepare(tables_of(recipe, seed), **preparation(recipe))
    options = recipe.task.model_dump()
    split = options.pop("split")
    options["metric"] = options["metric"] or None
    task = load_task(**options, split=seed if split == "seed" else split)
    path = Path(recipe.task.name)
    # A run on tables keeps their transforms beside its task.
    return (
        with_transforms(task, path.parent)
        if path.name == TASK and not recipe.task.features
        else task
    )


def tables_of(recipe: Recipe, seed: int) -> Task:
    """The task of the recipe's tables as they stand, not yet prepared; checked whole."""
    options = recipe.task
    number = seed if options.split == "seed" else options.split
    return rows_of(recipe).task(recipe.name, split=number, metric=options.metric or None)


def rows_of(recipe: Recipe) -> Rows:
    """The recipe's tables, read and checked."""
    tables = recipe.tables
    refuse_unused(
        "tables",
        **recipe.task.model_dump(include={"bundle", "features", "node_features", "scale"}),
    )
    if not tables.nodes or not tables.edges:
        raise RecipeError(
            "[tables] needs nodes and edges, the paths of two files; `unimp init NODES EDGES` "
            "writes a recipe for them"
        )
    return read_rows(tables.nodes, tables.edges, layout_of(recipe))


def layout_of(recipe: Recipe) -> Layout:
    """What the recipe says of its tables' columns."""
    return Layout(**recipe.tables.model_dump(exclude={"nodes", "edges"}))


def groups_of(recipe: Recipe, task: Task, learns_from_labels: bool) -> Tensor | None:
    """The groups that are hidden or observed as one; None where each node stands for itself.

    Where no label is ever observed there is nothing to group.
    """
    if recipe.mask.unit == "node" or not learns_from_labels:
        return None
    if task.groups is None:
        raise RecipeError(
            f"mask.unit is 'group', but {task.name} has no groups; set mask.unit=node, or give the "
            "task its groups"
        )
    return task.groups


def refuse_smoothing(recipe: Recipe, task: Task, *, own_model: bool) -> None:
    """Correct & Smooth needs a model's probabilities, of one class a node."""
    if recipe.smooth.form != "none" and (why := never_smoothed(recipe, task, own_model=own_model)):
        raise RecipeError(f"smooth.form is {recipe.smooth.form!r}, but {why}; set smooth.form=none")


def never_smoothed(recipe: Recipe, task: Task, *, own_model: bool) -> str:
    """Why nothing can be smoothed here; empty where it can."""
    if recipe.model.name == "label-propagation" and not own_model:
        return "label propagation has no probabilities to smooth: it spreads labels already"
    return f"{task.name} has binary tasks, not one class a node" if task.is_multilabel else ""


def refuse_nothing_hidden(recipe: Recipe, count: int) -> None:
    """Masked label prediction hides some of the train labels; all of too few would be observed."""
    if recipe.model.name != "label-propagation" and round(recipe.label_rate * count) >= count:
        raise RecipeError(
            f"{count} train labels are too few for mask.label_rate {recipe.label_rate:g}: none "
            "would be hidden and predicted; give more of them, or lower mask.label_rate"
        )


def preparation(recipe: Recipe) -> dict[str, bool]:
    """What the recipe does to any task's graph."""
    return recipe.task.model_dump(include={"scale_rows", "symmetrize", "self_loops"})


def graph_for(recipe: Recipe, model: NodeModel, task: Task, device: str) -> Graph:
    """The graph with the edges that the model needs, on the device if it is scored there as a whole
    or in parts that are cut there."""
    graph = model.prepare(task.graph)
    if recipe.inference.regime == "exact":
        there = fits_one_chunk(graph, recipe.inference.chunk_edges)
    else:
        there = device.startswith("cuda") and fits_gpu(graph.nbytes, device)
    return graph.to(device) if there else graph


def choose_device(device: str) -> str:
    """`auto` as what is here; anything else as it is, if it can be used."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    kind = device.partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise RecipeError(f"no device {device!r}; there are cpu, cuda, cuda:0 … and auto")
    if kind == "cuda" and not torch.cuda.is_available():
        raise RecipeError(
            f"train.device is {device!r}, but torch sees no GPU here; use cpu or auto"
        )
    # With its number, as tensors name their device: "cuda" alone would compare as another one.
    return f"cuda:{torch.cuda.current_device()}" if device == "cuda" else device


@contextmanager
def seeded(seed: int, device: str) -> Iterator[str]:
    """Seed torch for initialization and dropout on the device, and leave its state as it was."""
    cuda = [device] if device.startswith("cuda") else []
    with torch.random.fork_rng(devices=cuda):
        torch.manual_seed(seed)
        yield device
