"""What a run is prepared from: the recipe, its task, its model, the device and the seed.

Lower packages raise errors in their own words; here the option's name is added.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unimp.config.recipe import DECLARED, Recipe
from unimp.config.run_files import TASK
from unimp.data.catalog import load_task, prepare
from unimp.data.memory import shortage
from unimp.data.store.task import StoredTask
from unimp.data.structure import without_structure
from unimp.data.tables.summary import cautions
from unimp.ensemble.folds import FEW_TO_CHOOSE, number_of_folds
from unimp.errors import BackendError, ModelError, RecipeError
from unimp.graph.graph import Graph
from unimp.model.node_model import NodeModel, count_parameters
from unimp.model.registry import build_model
from unimp.model.table import find_model, most_parameters
from unimp.ops.attention import choose_backend
from unimp.ops.placement import fits_one_chunk, place_graph
from unimp.runs.folder.files import with_transforms
from unimp.runs.recipes import rows_of
from unimp.tasks.labels import Split, is_known
from unimp.tasks.task import Sizes, Task
from unimp.training.objective import Consistency
from unimp.training.precision import inference_precision

LOG = logging.getLogger("unimp")

ModelFactory = Callable[[Sizes], NodeModel]
"""Makes a user's own model for the sizes of a task."""
ONE_AT_A_TIME = threading.RLock()


def whole_only(recipe: Recipe, processes: int) -> str:
    """Why several processes cannot divide the batches of a recipe; empty if they can."""
    if recipe.ensemble.portfolio != "none":
        return (
            "it trains an ensemble, whose members are trained at the same time already. Add "
            "--set ensemble.portfolio=none to train one model"
        )
    if recipe.train.teacher or recipe.train.consistency or recipe.train.samples > 1:
        return (
            "train.teacher, train.consistency and train.samples need all nodes of a batch in one "
            "process. Remove them, or train with one process"
        )
    if recipe.batch.regime == "partition" and recipe.batch.parts_per_step < processes:
        return (
            f"a step has {recipe.batch.parts_per_step} parts for {processes} processes. Set "
            f"batch.parts_per_step to at least {processes}"
        )
    return ""


def undivided(recipe: Recipe, model: NodeModel) -> str:
    """Why several processes cannot divide the logits of a model by nodes; empty if they can."""
    if recipe.ensemble.portfolio != "none":
        return "it is an ensemble"
    if not model.by_layer:
        return f"its model, {recipe.model.name}, computes all nodes at once"
    if recipe.inference.regime != "exact":
        return f"inference.regime is {recipe.inference.regime}, and only exact can be divided"
    return ""


def task_of(recipe: Recipe, seed: int) -> Task:
    """The recipe's task with the split that this seed uses, prepared for training."""
    if recipe.task.name == "tables":
        return prepare(tables_of(recipe, seed), **preparation(recipe))
    options = recipe.task.model_dump()
    split, structure = options.pop("split"), options.pop("structure")
    options["metric"] = options["metric"] or None
    task = load_task(**options, split=seed if split == "seed" else split)
    path = Path(recipe.task.name)
    if path.name == TASK and not recipe.task.features:
        # A run on tables keeps their transforms, which do not describe structural columns.
        task = with_transforms(task, path.parent)
    return prepare(task, structure=structure)


def tables_of(recipe: Recipe, seed: int, *, warn: bool = False) -> Task:
    """The task of the recipe's tables, checked but not yet prepared.

    warn: log the cautions that `unimp check` prints.
    """
    options = recipe.task
    number = seed if options.split == "seed" else options.split
    rows = rows_of(recipe).with_edges(number)
    task = rows.task(recipe.name, split=number, metric=options.metric or None)
    for caution in cautions(rows, rows.split(number)) if warn else ():
        LOG.warning(caution)
    return task


def preparation(recipe: Recipe) -> dict[str, bool]:
    """How the recipe prepares the graph of any task."""
    return recipe.task.model_dump(include={"scale_rows", "symmetrize", "self_loops", "structure"})


def data_hash_of(recipe: Recipe, task: Task) -> str:
    """The hash of the data of a prepared task.

    It does not include structural columns, which differ in rounding between machines.
    """
    if recipe.task.structure:
        task = task.with_graph(without_structure(task.graph))
    return task.data_hash()


def refits(recipe: Recipe, task: Task) -> bool:
    """Whether the members of the recipe's ensemble are trained again on all known labels."""
    options = recipe.ensemble
    wanted = options.refit == "always" or (options.refit == "own" and recipe.is_of_own_data)
    has_val = bool(is_known(task.labels[task.split.val]).any())
    return options.portfolio != "none" and wanted and has_val


def trains_folds(recipe: Recipe, task: Task) -> bool:
    """Whether the refit trains members on folds, because there are few validation labels."""
    if not refits(recipe, task) or number_of_folds(task, recipe.ensemble.folds) < 2:
        return False
    return int(is_known(task.labels[task.split.val]).sum()) < FEW_TO_CHOOSE


def member_task(recipe: Recipe, member: Recipe, task: Task, split: Split | None = None) -> Task:
    """The task of a member of an ensemble, from the task that the ensemble's recipe prepared.

    split: the split of the member; None: the split of the task.
    """
    done = preparation(recipe)
    further = {name: on and not done[name] for name, on in preparation(member).items()}
    task = prepare(task, **further) if any(further.values()) else task
    return task if split is None else replace(task, split=split)


def model_of(recipe: Recipe, task: Task, factory: ModelFactory | None = None) -> NodeModel:
    """The recipe's model, or the user's own, for a task; checked against both."""
    if factory is None:
        try:
            refuse_too_many_parameters(recipe, task)
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
    refuse_too_many_parts(recipe, task, model)
    refuse_smoothing(recipe, task, model)
    if factory is None and model.learns_from_labels:
        refuse_nothing_hidden(recipe, task)
    return model


def refuse_nothing_hidden(recipe: Recipe, task: Task) -> None:
    """Refuse a task with so few train labels that none of them would be hidden and predicted."""
    count, rate = task.split.train.numel(), recipe.mask.label_rate
    if round(rate * count) >= count:
        raise RecipeError(
            f"mask.label_rate is {rate:g}, but there are only {count} train labels: none of them "
            "would be hidden and predicted; provide more labels, or lower mask.label_rate"
        )


def refuse_too_many_parameters(recipe: Recipe, task: Task) -> None:
    """Refuse a model that does not fit into memory, before it is built."""
    sizes = task.sizes
    most = most_parameters(
        recipe.model,
        features=sizes.features,
        classes=sizes.classes,
        edge_features=sizes.edge_features,
    )
    if not shortage(2 * 4 * most):  # counting them takes seconds, because torch loads more modules
        return
    parameters = count_parameters(model_without_weights(recipe, sizes))
    # Weights and their gradients, or weights in memory and in a file.
    if short := shortage(2 * 4 * parameters):
        raise RecipeError(
            f"the model has {parameters:,} parameters; {short}; {what_to_reduce(recipe)}"
        )


def refuse_too_many_parts(recipe: Recipe, task: Task, model: NodeModel) -> None:
    """Refuse to divide the graph into more parts than it has nodes."""
    nodes = task.graph.num_nodes
    for name, options in (("batch", recipe.batch), ("inference", recipe.inference)):
        used = options.regime == "partition" and (name == "inference" or model.learns)
        if used and options.parts > nodes:
            raise RecipeError(
                f"{name}.parts is {options.parts:,}, but {task.name} has only {nodes:,} nodes; "
                f"set {name}.parts to {nodes:,} or less"
            )


def model_without_weights(recipe: Recipe, sizes: Sizes) -> NodeModel:
    """The recipe's model with the shapes of its weights alone: nothing is allocated."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        return build_model(recipe.model, sizes)


def what_to_reduce(recipe: Recipe) -> str:
    """Name the option to reduce if memory is short: the one farthest above its default."""
    sizes = ("width", "heads", "layers", "label_width", "propagation_steps")
    names = (*(f"model.{size}" for size in sizes), "tables.text_width", "batch.workers")
    values = recipe.settings()
    factors = {name: values[name] / DECLARED[name].default for name in names}
    name = max(factors, key=factors.__getitem__)
    smaller = "set batch.regime=neighbors with a small batch.batch_size, or reduce model.width"
    return f"reduce {name}" if factors[name] > 1 else smaller


def device_of(recipe: Recipe, factory: ModelFactory | None) -> str:
    """The device of a recipe; refuses a backend that cannot compute on it."""
    device = choose_device(recipe.train.device)
    if factory is None and find_model(recipe.model.name).attends:
        try:
            choose_backend(recipe.model.backend, device.partition(":")[0])
        except BackendError as error:
            raise BackendError(f"model.backend: {error}") from None
    return device


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


SMALL_GRAPH = 10_000
"""The largest number of nodes plus edges in a small graph."""


def is_small(graph: Graph) -> bool:
    """Whether pruning a batch, or starting worker processes, takes more time than it saves."""
    return graph.num_nodes + graph.num_edges <= SMALL_GRAPH


def prunes(recipe: Recipe, model: NodeModel, graph: Graph) -> bool:
    """Whether a full batch on CPU contains only the rows that hidden nodes depend on.

    Rows that are left out change nothing layer by layer. All rows are needed by a module that runs
    as a whole, by a model in which the rows of a batch interact, and by the consistency loss and
    the answers of a teacher, which cover other nodes too. A small graph is not pruned, because that
    would take longer.
    """
    independent = model.by_layer and not model.mixes_rows
    only_hidden = not (recipe.train.consistency or recipe.train.teacher)
    return recipe.batch.prune and independent and only_hidden and not is_small(graph)


MOST_CUT_EDGES = 20_000_000
"""The most in-edges, summed over layers, that are cut out of a graph."""


def cuts_validation(recipe: Recipe, model: NodeModel, graph: Graph, device: str) -> bool:
    """Whether epochs are scored on the rows and edges that validation nodes depend on.

    These rows and edges are cut out of the graph before the first epoch. The logits are computed in
    the precision of training, because they are only used to choose an epoch. On a GPU, and on a
    graph that is predicted in chunks, all nodes are predicted instead.
    """
    in_full = recipe.batch.regime in ("auto", "full") and recipe.inference.regime == "exact"
    is_exact = recipe.train.eval_neighbors == "all" and model.by_layer and in_full
    in_one_chunk = fits_one_chunk(graph, recipe.inference.chunk_edges)
    fits = in_one_chunk and model.num_layers * graph.num_edges <= MOST_CUT_EDGES
    return recipe.train.eval_nodes == "val" and is_exact and fits and device == "cpu"


def consistency_of(recipe: Recipe) -> Consistency:
    """The consistency loss of a recipe."""
    options = recipe.train
    return Consistency(
        options.consistency, options.samples, options.sharpening, options.consistency_warmup
    )


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
    _refuse_to_copy_edges(model, task)
    graph = model.prepare(task.graph)
    # Batches and chunks convert their own rows of the 16-bit features of a store.
    in_parts = recipe.batch.regime in ("neighbors", "partition")
    in_parts &= chunk_edges is None or not fits_one_chunk(graph, chunk_edges)
    if isinstance(graph.x, Tensor) and graph.x.dtype == torch.float16 and not in_parts:
        graph = graph.with_features(graph.x)
    return place_graph(graph, device, chunk_edges=chunk_edges)


def _refuse_to_copy_edges(model: NodeModel, task: Task) -> None:
    """Refuse a model that needs all edges of a store in memory if they do not fit there."""
    copies = not model.by_layer or model.weighs_by_degree or model.adds_self_loops
    if copies and isinstance(task, StoredTask) and (lacking := shortage(task.graph.nbytes)):
        raise ModelError(
            f"{type(model).__name__} needs all edges of the store in memory: {lacking}. Use unimp, "
            "sage or mlp, which read edges from the store"
        )


def inference_options(recipe: Recipe, device: str) -> dict[str, Any]:
    """The options of `predict_logits` that a recipe sets for a device."""
    precision = inference_precision(recipe.train.precision, device)
    return {**recipe.inference.model_dump(), "precision": precision}


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
    """Seed torch for initialization and dropout, and restore its random state afterwards.

    All threads share this state, so the others wait: each would change the results of the others.
    """
    cuda = [device] if device.startswith("cuda") else []
    with ONE_AT_A_TIME, torch.random.fork_rng(devices=cuda):
        torch.manual_seed(seed)
        yield
