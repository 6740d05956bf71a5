"""Memory and time of a run, before it starts, and the regime that follows from them.

Memory is computed from sizes: the rows of each layer that training stores for the backward pass,
the copies in a batch, the parameters with gradient, moments and copies, and the rows that scoring
all nodes needs. The memory that the process uses already, which includes the task, is added. Time
is measured: a few steps on small batches of the same graph, scaled by the work of an epoch, which
consists of matrix products and messages along edges. `benchmarks/estimate.py` compares both
estimates with measured runs.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch

from unimp.config.choices import ALL, Regime
from unimp.config.recipe import Recipe
from unimp.data.memory import available_memory, gib, peak_memory, resident_memory
from unimp.errors import RecipeError
from unimp.graph.features import SparseFeatures
from unimp.graph.graph import Graph
from unimp.model.node_model import NodeModel, count_parameters
from unimp.model.solved_model import SolvedModel
from unimp.ops.attention import backend_in_words
from unimp.runs.context import Experiment
from unimp.runs.preparation import consistency_of, graph_for, prunes, what_to_reduce
from unimp.tasks.labels import mask_labels, mask_of
from unimp.tasks.task import Task
from unimp.training.batch import Batch
from unimp.training.batching import sampled_batch
from unimp.training.step import Step

ERROR = 1.5
"""The factor by which an estimate of memory may be wrong."""
SHARE = 0.8
"""The part of the free memory that training may use."""
NUMBERS_PER_PARAMETER = 13
"""Numbers per parameter: itself, its gradient, two moments and the best state; a checkpoint has
four of them twice."""
WIDTHS_PER_ROW = 8
"""Widths per row and layer that training stores: four projections, the attended values, the
residual, dropout and intermediate gradients."""
SAMPLES, FANOUT = (500, 5000), 10
"""Nodes of the two batches on which time is measured, and their neighbors per node."""
MEASURED = 0.2
"""After this many seconds a step is not measured again."""


@dataclass(frozen=True)
class Work:
    """The size of one pass: the rows of sources and targets and the edges of each layer."""

    sources: tuple[float, ...]
    targets: tuple[float, ...]
    edges: tuple[float, ...]
    steps: float = 1.0  # of this size per epoch


@dataclass(frozen=True)
class Estimate:
    """The memory and time that a run is expected to take."""

    regime: Regime
    reason: str
    where: str  # device and backend
    memory: int  # bytes: the peak of the process, or on the GPU
    available: int  # bytes in total
    seconds_per_epoch: float | None = None  # None: not measured
    seconds: float | None = None  # of all epochs, if training does not stop early

    def in_words(self) -> str:
        """The estimate as one line."""
        batches = {"full": "full batch", "partition": "random parts"}
        text = batches.get(self.regime, f"batches of {self.regime}")
        text = f"estimate: {text} on {self.where}, {self.reason}; "
        text += f"about {gib(self.memory)} of {gib(self.available)}"
        if self.seconds_per_epoch is not None and self.seconds is not None:
            epoch, total = _time(self.seconds_per_epoch), _time(self.seconds)
            text += f"; {epoch} per epoch, at most {total} in total"
        return text


def estimate(
    recipe: Recipe, model: NodeModel, task: Task, device: str, *, timed: bool = True
) -> Estimate:
    """The memory and time of a run, in the regime of its recipe, or in the one that fits."""
    on_gpu = device.startswith("cuda")
    already = 0 if on_gpu else resident_memory()
    available = available_memory(device) + already
    hidden = hidden_nodes(recipe, model, task)

    def needs(regime: Regime) -> int:
        more = training_bytes(
            recipe, model, task, work_of(recipe, model, task, regime, hidden, on_gpu)
        )
        more = max(more, scoring_bytes(recipe, model, task)) + (task_bytes(task) if on_gpu else 0)
        return already + more if on_gpu else max(already + more, peak_memory())

    regime, reason = recipe.batch.regime, "as the recipe states"
    if regime == "auto":
        full = needs("full")
        fits = full <= SHARE * available or not model.by_layer
        regime = "full" if fits else "neighbors"
        reason = "which fits" if fits else f"because the full batch needs about {gib(full)}"
    where = device
    if model.attends:
        where += f" ({backend_in_words(recipe.model.backend, device)})"
    found = Estimate(regime, reason, where, needs(regime), available)
    if not timed:
        return found
    work = work_of(recipe, model, task, regime, hidden, on_gpu)
    epoch, scoring = seconds_of_passes(recipe, model, task, work, device)
    options = recipe.train
    scorings = max(0, options.epochs - options.eval_from) // options.eval_every + 1
    total = options.epochs * epoch + (scorings + 3) * scoring
    if options.time_limit:
        total = min(total, options.time_limit)
    return replace(found, seconds_per_epoch=epoch, seconds=total)


def choose_regime(experiment: Experiment, model: NodeModel, task: Task) -> Experiment:
    """The experiment in the regime that its recipe names or that fits; shows the estimate.

    Refuses a run that would need more memory than there is, and names the option to reduce.
    """
    recipe = experiment.recipe
    if not model.learns or isinstance(model, SolvedModel):
        return experiment
    if experiment.own_model is not None:  # the memory of its layers is not known
        regime: Regime = "full" if recipe.batch.regime == "auto" else recipe.batch.regime
        return replace(experiment, recipe=recipe.with_regime(regime))
    expected = estimate(
        recipe, model, task, experiment.device, timed=experiment.progress.is_visible
    )
    experiment.progress.note(expected.in_words())
    if expected.memory > ERROR * expected.available:
        raise RecipeError(
            f"training needs about {gib(expected.memory)} of memory, but only "
            f"{gib(expected.available)} are available; {what_to_reduce(recipe)}"
        )
    return replace(experiment, recipe=recipe.with_regime(expected.regime))


def hidden_nodes(recipe: Recipe, model: NodeModel, task: Task) -> float:
    """The number of known labels that are hidden and predicted in an epoch."""
    fixed = model.learns_from_labels and recipe.mask.rate == "fixed"
    rate = recipe.mask.label_rate if fixed else 0.0  # a drawn rate may be 0
    return max(1.0, (1 - rate) * task.split.train.numel())


def work_of(
    recipe: Recipe, model: NodeModel, task: Task, regime: Regime, hidden: float, on_gpu: bool
) -> Work:
    """The size of a step of a regime, computed as if every node had the same number of edges."""
    nodes, edges, layers = task.graph.num_nodes, task.graph.num_edges, model.num_layers
    batch = recipe.batch
    pruned = regime == "full" and prunes(recipe, model) and not on_gpu
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
        seeds *= 2 if recipe.train.teacher else 1  # as many nodes that the teacher answers
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


def training_bytes(recipe: Recipe, model: NodeModel, task: Task, work: Work) -> int:
    """The memory of a step in addition to the task: rows, edges and parameters."""
    graph, width = task.graph, hidden_width(recipe)
    first = work.sources[0] if work.sources else hidden_nodes(recipe, model, task)
    numbers = float(NUMBERS_PER_PARAMETER * count_parameters(model))
    numbers += first * features_per_row(task)
    rows = first * 4 * in_width(recipe, model)
    for sources, targets in zip(work.sources, work.targets, strict=True):
        rows += width * (WIDTHS_PER_ROW / 2) * (sources + targets)
    rows += 3 * task.num_classes * (work.targets[-1] if work.targets else first)
    numbers += (first + 2 * graph.num_nodes) * propagated_columns(model)
    numbers += rows * recipe.train.samples  # the backward pass needs the rows of every forward pass
    # A hop and its transpose, of a batch or of the whole graph.
    distinct = set(zip(work.sources, work.edges, strict=True))
    ahead = (
        1 if len(distinct) <= 1 and work.steps == 1 else 1 + min(recipe.batch.workers, work.steps)
    )
    numbers += (
        sum((5 + graph.num_edge_features) * edges + 3 * rows for rows, edges in distinct) * ahead
    )
    return int(4 * numbers)


def scoring_bytes(recipe: Recipe, model: NodeModel, task: Task) -> int:
    """The memory of predicting all nodes: rows of two layers, and the projections of a chunk."""
    nodes, width = task.graph.num_nodes, hidden_width(recipe)
    chunk = min(nodes, recipe.inference.chunk_edges)
    numbers = nodes * (2 * max(width, in_width(recipe, model)) + 2 * task.num_classes)
    numbers += 2 * nodes * propagated_columns(model)
    numbers += chunk * 5 * width + 3 * min(task.graph.num_edges, recipe.inference.chunk_edges)
    return int(4 * (numbers + NUMBERS_PER_PARAMETER * count_parameters(model)))


def task_bytes(task: Task) -> int:
    """The memory of the graph, its features and its transpose on a GPU."""
    graph = task.graph
    numbers = graph.num_edges * (4 + graph.num_edge_features) + 3 * graph.num_nodes
    return int(4 * (numbers + graph.num_nodes * features_per_row(task)))


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
    return 0 if labels is None else int(labels.linear.in_features)


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


def seconds_of_passes(
    recipe: Recipe, model: NodeModel, task: Task, work: Work, device: str
) -> tuple[float, float]:
    """Seconds per epoch and per scoring, from the pace of a few steps on small batches."""
    fixed, pace = pace_of_steps(recipe, model, task, device)
    nodes, edges, layers = task.graph.num_nodes, task.graph.num_edges, model.num_layers
    everything = Work((nodes,) * layers, (nodes,) * layers, (edges,) * layers)
    epoch = work.steps * (fixed + pace * operations(recipe, model, task, work))
    scoring = pace * operations(recipe, model, task, everything) / 3
    # Labels are propagated once per mask; a number costs about 25 operations along an edge.
    propagation = pace * 25 * edges * propagated_columns(model)
    masks = work.steps if recipe.mask.redraw == "step" else 1
    return epoch + masks * propagation, scoring + propagation


def pace_of_steps(recipe: Recipe, model: NodeModel, task: Task, device: str) -> tuple[float, float]:
    """Fixed seconds per training step, and seconds per operation.

    Both describe a line through two measured points: a step on a small batch and one on a larger
    batch around known nodes. The model and torch's random state stay unchanged.
    """
    graph = graph_for(recipe, model, task, "cpu")
    small, large = (_sample(recipe, model, task, graph, nodes) for nodes in SAMPLES)
    weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
    cuda = [device] if device.startswith("cuda") else []
    with torch.random.fork_rng(devices=cuda):
        step = Step(
            model,
            torch.optim.Adam(model.parameters(), lr=0.0),
            task.labels.to(device),
            recipe.train.precision,
            consistency_of(recipe),
        )
        model.train()
        seconds, counts = [], []
        for batch in (small, large):
            moved = batch.to(device)
            if batch is small:
                _seconds(step, moved)  # the first step also sets things up
            measured = [_seconds(step, moved)]
            while len(measured) < 3 and sum(measured) < MEASURED:
                measured.append(_seconds(step, moved))
            seconds.append(min(measured))
            counts.append(operations(recipe, model, task, _work_on(batch)))
    model.zero_grad(set_to_none=True)
    model.load_state_dict(weights)
    if counts[1] < 1.5 * counts[0]:  # the graph has no larger batch
        return 0.0, seconds[1] / counts[1]
    pace = max(seconds[1] - seconds[0], 0.1 * seconds[1]) / (counts[1] - counts[0])
    return max(0.0, seconds[0] - pace * counts[0]), pace


def _seconds(step: Step, batch: Batch) -> float:
    before = time.perf_counter()
    step(batch).item()
    return time.perf_counter() - before


def _work_on(batch: Batch) -> Work:
    return Work(
        tuple(float(hop.num_sources) for hop in batch.hops),
        tuple(float(hop.num_targets) for hop in batch.hops),
        tuple(float(hop.num_edges) for hop in batch.hops),
    )


def _sample(recipe: Recipe, model: NodeModel, task: Task, graph: Graph, nodes: int) -> Batch:
    """A batch of at least `nodes` nodes around hidden ones, or of all that are reachable."""
    generator = torch.Generator().manual_seed(0)
    known = mask_of(task.split.train, len(task.labels))
    rate = recipe.mask.label_rate if model.learns_from_labels else 0.0
    mask = mask_labels(known, rate, generator=generator)
    pool = torch.nonzero(mask.hidden).squeeze(1)
    pool = pool[torch.randperm(pool.numel(), generator=generator)]
    seeds = 8
    while True:
        batch = sampled_batch(
            graph, task.labels, mask, pool[:seeds], [FANOUT] * model.num_layers, seed=0
        )
        if batch.nodes.numel() >= nodes or seeds >= pool.numel():
            break
        seeds *= 2
    x = model.features(graph, mask.reveal(task.labels))
    return replace(batch, x=None if x is None else x[batch.nodes])


def _time(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.2g} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"
