"""The time of training, from a few measured steps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from unimp.config.choices import ALL, Placement, Regime
from unimp.config.recipe import Recipe
from unimp.graph.graph import Graph
from unimp.model.node_model import NodeModel
from unimp.runs.preparation import consistency_of, cuts_validation, graph_for
from unimp.runs.work import (
    Work,
    drawn_batch,
    operations,
    outward,
    propagated_columns,
    work_on,
)
from unimp.tasks.task import Task
from unimp.training.batch import Batch
from unimp.training.step import Step

SAMPLES, FANOUT = (500, 5000), 10
"""Nodes of the two batches on which time is measured, and their neighbors per node."""
MEASURED = 0.2
"""After this many seconds a step is not measured again."""
GPU_EDGES_PER_SECOND = 120e6
"""In-edges that a GPU samples per second if the graph is on it; see benchmarks/sampler.py."""


@dataclass(frozen=True)
class Pace:
    """Seconds of the parts of a run."""

    epoch: float
    scoring: float  # after an epoch
    exact_scoring: float  # after training


def pace_of_run(
    recipe: Recipe,
    model: NodeModel,
    task: Task,
    work: Work,
    regime: Regime,
    device: str,
    placement: Placement | None,
) -> Pace:
    """Measure the pace of a run; work: that of its regime."""
    if regime == "neighbors":
        return pace_of_neighbors(recipe, model, task, work, device, placement)
    return pace_of_passes(recipe, model, task, work, device)


def pace_of_neighbors(
    recipe: Recipe,
    model: NodeModel,
    task: Task,
    work: Work,
    device: str,
    placement: Placement | None,
) -> Pace:
    """The pace of batches of neighbors, from steps on a batch of the same size as in training."""
    graph = graph_for(recipe, model, task, "cpu")
    seeds = int(work.targets[-1]) if work.targets else recipe.batch.batch_size
    for _ in range(2):  # the first time, rows may come from a disk
        before = time.perf_counter()
        batch = drawn_batch(recipe, model, task, graph, seeds)
        drawing = time.perf_counter() - before
    small = _sample(recipe, model, task, graph, SAMPLES[0])
    _, step = seconds_of_steps(recipe, model, task, (small, batch), device, repeated=True)
    workers = recipe.batch.workers
    if placement in ("gpu", "pinned"):
        drawing = sum(work.edges) / GPU_EDGES_PER_SECOND
        both = step + drawing
    elif device.startswith("cuda"):
        both = max(step, drawing / workers) if workers else step + drawing
    else:  # the threads that draw share the cores with those that train
        both = step + drawing / (torch.get_num_threads() if workers else 1)
    propagation, exact = _seconds_of_all(
        recipe, model, task, step / operations(recipe, model, task, work_on(batch))
    )
    masks = work.steps if recipe.mask.redraw == "step" else 1
    scoring, scored = exact, task.split.val.numel()
    scored += 0 if recipe.train.eval_nodes == "val" else task.split.test.numel()
    if recipe.train.eval_neighbors == "sampled":
        scoring = scored / max(1, recipe.batch.batch_size) * (step / 3 + drawing)
    return Pace(work.steps * both + masks * propagation, scoring, exact)


def _seconds_of_all(
    recipe: Recipe, model: NodeModel, task: Task, pace: float
) -> tuple[float, float]:
    """Seconds for propagating labels and for exact inference; pace: seconds per operation."""
    nodes, edges, layers = task.graph.num_nodes, task.graph.num_edges, model.num_layers
    everything = Work((nodes,) * layers, (nodes,) * layers, (edges,) * layers)
    # Propagating one number along an edge costs about 25 operations.
    propagation = pace * 25 * edges * propagated_columns(model)
    scoring = pace * operations(recipe, model, task, everything) / 3
    return propagation, scoring + propagation


def pace_of_passes(recipe: Recipe, model: NodeModel, task: Task, work: Work, device: str) -> Pace:
    """The pace of a regime other than neighbors, from a few steps on small batches."""
    fixed, pace = pace_of_steps(recipe, model, task, device)
    epoch = work.steps * (fixed + pace * operations(recipe, model, task, work))
    propagation, exact = _seconds_of_all(recipe, model, task, pace)
    masks = work.steps if recipe.mask.redraw == "step" else 1
    scoring = exact
    if cuts_validation(recipe, model, task.graph, device):
        val, every_neighbor = task.split.val.numel(), [ALL] * model.num_layers
        scoring = (
            pace
            * operations(recipe, model, task, outward(task.graph, val, every_neighbor, 1.0))
            / 3
        )
    return Pace(epoch + masks * propagation, scoring, exact)


def pace_of_steps(recipe: Recipe, model: NodeModel, task: Task, device: str) -> tuple[float, float]:
    """Fixed seconds per training step, and seconds per operation.

    Both describe a line through two measured points: a step on a small batch and one on a larger
    batch around known nodes. The model and torch's random state stay unchanged.
    """
    graph = graph_for(recipe, model, task, "cpu")
    batches = [_sample(recipe, model, task, graph, nodes) for nodes in SAMPLES]
    seconds = seconds_of_steps(recipe, model, task, batches, device)
    counts = [operations(recipe, model, task, work_on(batch)) for batch in batches]
    if counts[1] < 1.5 * counts[0]:  # the graph has no larger batch
        return 0.0, seconds[1] / counts[1]
    pace = max(seconds[1] - seconds[0], 0.1 * seconds[1]) / (counts[1] - counts[0])
    return max(0.0, seconds[0] - pace * counts[0]), pace


def seconds_of_steps(
    recipe: Recipe,
    model: NodeModel,
    task: Task,
    batches: Sequence[Batch],
    device: str,
    *,
    repeated: bool = False,
) -> list[float]:
    """Seconds of a training step on each batch; the model and torch's random state stay unchanged.

    The first step on the first batch is not measured, because it includes the setup. repeated: the
    first step on each other batch is not measured either, because it allocates memory that later
    steps use again.
    """
    weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
    cuda, seconds = [device] if device.startswith("cuda") else [], []
    with torch.random.fork_rng(devices=cuda):
        step = Step(
            model,
            torch.optim.Adam(model.parameters(), lr=0.0),
            task.labels.to(device),
            recipe.train.precision,
            consistency_of(recipe),
        )
        model.train()
        for batch in batches:
            moved = batch.to(device)
            if repeated or batch is batches[0]:
                _seconds(step, moved)
            measured = [_seconds(step, moved)]
            while len(measured) < 3 and sum(measured) < MEASURED:
                measured.append(_seconds(step, moved))
            seconds.append(min(measured))
    model.zero_grad(set_to_none=True)
    model.load_state_dict(weights)
    return seconds


def _seconds(step: Step, batch: Batch) -> float:
    before = time.perf_counter()
    step(batch).item()
    return time.perf_counter() - before


def _sample(recipe: Recipe, model: NodeModel, task: Task, graph: Graph, nodes: int) -> Batch:
    """A batch of at least `nodes` nodes around hidden ones, or of all that are reachable."""
    seeds = 8
    while True:
        batch = drawn_batch(recipe, model, task, graph, seeds, [FANOUT])
        if batch.nodes.numel() >= nodes or seeds >= task.split.train.numel():
            return batch
        seeds *= 2
