"""What a run is prepared from: the recipe, its task, its model, the device and the seed.

Lower packages raise errors in their own words; here the option's name is added.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from unimp.config.presets import FOR_TABLES, recipe_with_preset
from unimp.config.recipe import Recipe, Settings, read_settings
from unimp.data.catalog import load_task, prepare, refuse_unused
from unimp.data.tables.checking import Rows, read_rows
from unimp.data.tables.summary import cautions
from unimp.data.tables.transforms import Layout
from unimp.errors import ModelError, RecipeError
from unimp.graph.graph import Graph
from unimp.model.node_model import NodeModel
from unimp.model.registry import MODELS, build_model, find_model
from unimp.ops.placement import place_graph
from unimp.runs.folder.files import with_transforms
from unimp.runs.folder.names import TASK
from unimp.tasks.task import Sizes, Task

LOG = logging.getLogger("unimp")

ModelFactory = Callable[[Sizes], NodeModel]
"""Makes a user's own model for the sizes of a task."""


def resolve_recipe(
    recipe: Recipe | str | Task, settings: Settings = (), preset: str | None = None
) -> Recipe:
    """The complete recipe with settings and preset applied, checked, with absolute paths.

    The recipe of a task that is given as an object has defaults, like the recipe of its tables.
    """
    own = isinstance(recipe, Task)
    if isinstance(recipe, Task):
        preset = preset or (FOR_TABLES if recipe.tables is not None else None)
        recipe = Recipe(name=recipe.name)
    settings = settings if isinstance(settings, dict) else tuple(_listed(settings))
    resolved = recipe_with_preset(recipe, settings, preset).with_absolute_paths()
    if own:
        task = resolved.task.model_copy(update={"name": TASK})
        resolved = resolved.model_copy(update={"task": task})
    try:
        entry = find_model(resolved.model.name)
    except ModelError as error:
        raise RecipeError(f"model.name: {error}") from None
    # A dictionary may list every option, as the scikit-learn classifier does; texts are typed.
    typed = () if isinstance(settings, dict) else read_settings(settings)
    names = {name for name, _ in typed}
    fixed = entry.inputs if len(entry.inputs) == 1 else (resolved.model.inputs,)
    if "model.inputs" in names and resolved.model.inputs not in fixed:
        several = ", ".join(name for name, row in MODELS.items() if len(row.inputs) > 1)
        raise RecipeError(
            f"model.inputs is {resolved.model.inputs}, but {entry.name} always takes "
            f"{entry.inputs[0]}; leave it out, or choose one of {several} (in Python, "
            "MaskedLabels gives labels to other models)"
        )
    return resolved


def _listed(settings: Settings) -> Settings:
    return (settings,) if isinstance(settings, str) else settings


def task_of(recipe: Recipe, seed: int) -> Task:
    """The recipe's task with the split that this seed uses, prepared for training."""
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


def tables_of(recipe: Recipe, seed: int, *, warn: bool = False) -> Task:
    """The task of the recipe's tables, checked but not yet prepared.

    warn: log the cautions that `unimp check` prints.
    """
    options, rows = recipe.task, rows_of(recipe)
    number = seed if options.split == "seed" else options.split
    task = rows.task(recipe.name, split=number, metric=options.metric or None)
    for caution in cautions(rows, task.split) if warn else ():
        LOG.warning("warning: %s", caution)
    return task


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
    layout = Layout(**tables.model_dump(exclude={"nodes", "edges"}))
    return read_rows(tables.nodes, tables.edges, layout)


def preparation(recipe: Recipe) -> dict[str, bool]:
    """How the recipe prepares the graph of any task."""
    return recipe.task.model_dump(include={"scale_rows", "symmetrize", "self_loops"})


def model_of(recipe: Recipe, task: Task, factory: ModelFactory | None = None) -> NodeModel:
    """The recipe's model, or the user's own, for a task; checked against both."""
    if factory is None:
        try:
            model = build_model(recipe.model, task.sizes)
        except ModelError as error:
            raise RecipeError(f"[model] of recipe {recipe.name}: {error}") from None
    else:
        model = factory(task.sizes)
        if not isinstance(model, NodeModel):
            raise RecipeError(
                f"model returned a {type(model).__name__}, which does not state its inputs; wrap "
                "it: MaskedLabels(module, sizes, width=…)"
            )
    groups_of(recipe, task, model)
    refuse_smoothing(recipe, task, model)
    count = task.split.train.numel()
    rate = recipe.mask.label_rate
    if factory is None and model.learns_from_labels and round(rate * count) >= count:
        raise RecipeError(
            f"mask.label_rate is {rate:g}, but there are only {count} train labels: none of them "
            "would be hidden and predicted; provide more labels, or lower mask.label_rate"
        )
    return model


def groups_of(recipe: Recipe, task: Task, model: NodeModel) -> Tensor | None:
    """The groups of nodes that are hidden or observed together; None: each node on its own."""
    if recipe.mask.unit == "node" or not model.learns_from_labels:
        return None
    if task.groups is None:
        raise RecipeError(
            f"mask.unit is 'group', but {task.name} has no groups; set mask.unit=node, or give the "
            "task groups"
        )
    return task.groups


def refuse_smoothing(recipe: Recipe, task: Task, model: NodeModel) -> None:
    """Refuse Correct & Smooth where there is nothing that it could be applied to."""
    if recipe.smooth.form != "none" and (why := cannot_smooth(task, model)):
        raise RecipeError(f"smooth.form is {recipe.smooth.form!r}, but {why}; set smooth.form=none")


def cannot_smooth(task: Task, model: NodeModel) -> str:
    """The reason why Correct & Smooth cannot be applied; empty if it can."""
    if not model.learns:
        return "label propagation spreads labels already and gives no probabilities to smooth"
    if task.is_multilabel:
        return f"{task.name} has binary tasks instead of one class per node"
    return ""


def graph_for(recipe: Recipe, model: NodeModel, task: Task, device: str) -> Graph:
    """The graph with the edges that the model needs, placed by the policy of `ops/placement.py`."""
    exact = recipe.inference.regime == "exact"
    chunk_edges = recipe.inference.chunk_edges if exact else None
    return place_graph(model.prepare(task.graph), device, chunk_edges=chunk_edges)


def choose_device(device: str) -> str:
    """The device that an option names: `auto` is a GPU if there is one."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    kind = device.partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise RecipeError(f"train.device is {device!r}; it is cpu, cuda, cuda:0, … or auto")
    if kind == "cuda" and not torch.cuda.is_available():
        raise RecipeError(
            f"train.device is {device!r}, but torch finds no GPU; use cpu or auto instead"
        )
    # With its number, as tensors name their device: "cuda" alone would compare as another one.
    return f"cuda:{torch.cuda.current_device()}" if device == "cuda" else device


@contextmanager
def seeded(seed: int, device: str) -> Iterator[None]:
    """Seed torch for initialization and dropout, and restore its random state afterwards."""
    cuda = [device] if device.startswith("cuda") else []
    with torch.random.fork_rng(devices=cuda):
        torch.manual_seed(seed)
        yield
