"""The work of training: the rows and edges of a step in each regime, and its operations."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from unimp.config.choices import ALL, Regime
from unimp.config.recipe import Recipe
from unimp.graph.features import SparseFeatures, rows_of
from unimp.graph.graph import Graph
from unimp.model.node_model import NodeModel
from unimp.model.propagated_labels import STEPS
from unimp.runs.preparation import prunes
from unimp.tasks.labels import mask_labels, mask_of
from unimp.tasks.task import Task
from unimp.training.batch import Batch
from unimp.training.batching import fanout_per_layer, sampled_batch


@dataclass(frozen=True)
class Work:
    """The size of one pass: the rows of sources and targets and the edges of each layer."""

    sources: tuple[float, ...]
    targets: tuple[float, ...]
    edges: tuple[float, ...]
    steps: float = 1.0  # of this size per epoch


def hidden_nodes(recipe: Recipe, model: NodeModel, task: Task) -> float:
    """The number of known labels that are hidden and predicted in an epoch."""
    fixed = model.learns_from_labels and recipe.mask.rate == "fixed"
    rate = recipe.mask.label_rate if fixed else 0.0  # a drawn rate may be 0
    return max(1.0, (1 - rate) * task.split.train.numel())


def work_of(
    recipe: Recipe,
    model: NodeModel,
    task: Task,
    regime: Regime,
    hidden: float,
    on_gpu: bool,
    ranks: int = 1,
) -> Work:
    """The size of a step of a regime.

    If all in-neighbors are used, it is computed as if every node had the same number of edges. If
    they are sampled, a batch is drawn. ranks: processes that divide the seeds of a batch.
    """
    nodes, edges, layers = task.graph.num_nodes, task.graph.num_edges, model.num_layers
    batch = recipe.batch
    pruned = regime == "full" and prunes(recipe, model, task.graph) and not on_gpu
    if regime == "partition":
        rows, kept = nodes / batch.parts, edges / batch.parts**2
        return Work((rows,) * layers, (rows,) * layers, (kept,) * layers, batch.parts)
    if regime == "full" and not pruned:
        return Work((nodes,) * layers, (nodes,) * layers, (edges,) * layers)
    fanout, seeds, steps = [ALL] * layers, hidden, 1.0
    if regime == "neighbors":
        fanout = list(batch.fanout) * (layers if len(batch.fanout) == 1 else 1)
        seeds = min(hidden, batch.batch_size)
        steps = hidden / seeds
        seeds = max(1.0, seeds / ranks)
        seeds *= 2 if recipe.train.teacher else 1  # as many nodes again, for the teacher
        if ALL not in fanout and len(fanout) == layers:
            graph = task.graph.with_features(None)
            return replace(
                work_on(drawn_batch(recipe, model, task, graph, int(seeds))), steps=steps
            )
    return outward(task.graph, seeds, fanout, steps)


def outward(graph: Graph, seeds: float, fanout: list[int], steps: float) -> Work:
    """Rows and edges layer by layer outward from seeds; a row that is drawn twice counts once."""
    nodes, degree = graph.num_nodes, graph.num_edges / max(1, graph.num_nodes)
    sources: list[float] = []
    targets: list[float] = []
    edges: list[float] = []
    rows = min(seeds, nodes)
    for number in reversed(fanout):
        drawn = rows * (degree if number == ALL else min(degree, number))
        # Expected new nodes: each of the others is missed with probability (1 − 1/N)^drawn.
        more = (nodes - rows) * (1 - (1 - 1 / nodes) ** drawn)
        sources.insert(0, rows + more)
        targets.insert(0, rows)
        edges.insert(0, drawn)
        rows += more
    return Work(tuple(sources), tuple(targets), tuple(edges), steps)


def features_per_row(task: Task) -> float:
    """Numbers per node that store its features."""
    x = task.graph.x
    if x is None:
        return 0.0
    if isinstance(x, SparseFeatures):
        return 2 * x.value.numel() / max(1, task.graph.num_nodes)
    return float(x.shape[1])


def propagated_columns(model: NodeModel) -> int:
    """Numbers per node that store propagated labels, if they are inputs."""
    labels = getattr(model, "propagated_labels", None)
    if labels is None:
        return 0
    stored: int = len(STEPS) * (labels.classes + labels.masses)
    return stored + (int(labels.linear.in_features) if labels.masses > 1 else 0)


def hidden_width(recipe: Recipe) -> int:
    """The width of a hidden layer."""
    return recipe.model.heads * recipe.model.width


def in_width(recipe: Recipe, model: NodeModel) -> int:
    """The width of the first layer's input; models without their own width encode features."""
    return int(getattr(model, "in_width", hidden_width(recipe)))


def operations(recipe: Recipe, model: NodeModel, task: Task, work: Work) -> float:
    """Multiplications of a forward pass: in matrix products, and for messages along edges."""
    width, total = hidden_width(recipe), 0.0
    before = in_width(recipe, model)
    first = work.sources[0] if work.sources else hidden_nodes(recipe, model, task)
    total += first * features_per_row(task) * before
    for sources, targets, edges in zip(work.sources, work.targets, work.edges, strict=True):
        total += before * width * 2 * (sources + targets)
        # A message is read from memory, while a matrix product finds its numbers in a cache.
        total += 40 * width * edges
        before = width
    return total


def work_on(batch: Batch) -> Work:
    """The size of a batch."""
    return Work(
        tuple(float(hop.num_sources) for hop in batch.hops),
        tuple(float(hop.num_targets) for hop in batch.hops),
        tuple(float(hop.num_edges) for hop in batch.hops),
    )


def drawn_batch(
    recipe: Recipe,
    model: NodeModel,
    task: Task,
    graph: Graph,
    seeds: int,
    fanout: list[int] | None = None,
) -> Batch:
    """A batch around some hidden nodes of a random mask; fanout: None for that of the recipe."""
    generator = torch.Generator().manual_seed(0)
    known = mask_of(task.split.train, len(task.labels))
    rate = recipe.mask.label_rate if model.learns_from_labels else 0.0
    mask = mask_labels(known, rate, generator=generator)
    pool = torch.nonzero(mask.hidden).squeeze(1)
    pool = pool[torch.randperm(pool.numel(), generator=generator)[:seeds]]
    per_layer = fanout_per_layer(fanout or recipe.batch.fanout, model.num_layers)
    batch = sampled_batch(graph, task.labels, mask, pool, per_layer, seed=0, prefetch=True)
    if not model.takes_propagated_labels:
        return batch
    x = model.features(graph, mask.reveal(task.labels))
    return replace(batch, x=None if x is None else rows_of(x, batch.nodes))
