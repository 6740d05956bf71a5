"""Memory and time of a run, before it starts, and the regime that follows from them.

Memory is computed from sizes: the rows of each layer that training stores for the backward pass,
the copies in a batch, the parameters with gradient, moments and copies, and the rows that scoring
all nodes needs. The memory that the process already uses, which includes the task, is added. Pages
of a mapped store do not count, because the system can drop them. Time is measured: a few steps on
small batches of the same graph, scaled by the work of an epoch, which consists of matrix products
and messages along edges. If neighbors are sampled, a batch of the size in the recipe is drawn and
measured instead. `benchmarks/estimate.py` and `proofs/large_training.py` compare both estimates
with measured runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from unimp.config.choices import Placement, Regime
from unimp.config.recipe import Recipe
from unimp.data.memory import (
    anonymous_memory,
    available_memory,
    gib,
    peak_memory,
    resident_memory,
    shortage,
)
from unimp.data.store.task import StoredTask
from unimp.errors import RecipeError
from unimp.inference.row_files import memory_limit
from unimp.model.node_model import NodeModel, count_parameters
from unimp.model.solved_model import SolvedModel
from unimp.ops import native
from unimp.ops.absorbed import pays
from unimp.ops.attention import backend_in_words
from unimp.ops.embedding import LARGE
from unimp.ops.pinned import pinned_bytes
from unimp.ops.placement import choose_placement, fits_one_chunk
from unimp.runs.context import Experiment
from unimp.runs.pace import pace_of_run
from unimp.runs.preparation import what_to_reduce
from unimp.runs.work import (
    Work,
    features_per_row,
    hidden_nodes,
    hidden_width,
    in_width,
    propagated_columns,
    work_of,
)
from unimp.tasks.task import Task

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
WIDTHS_PER_TARGET = 16
"""Widths per target and layer if the weights of the sources are absorbed (ops/absorbed.py)."""
WIDTHS_PER_INPUT, WIDTHS_PER_LARGE_INPUT = 4, 2.5
"""Widths per row of the inputs; fewer if the inputs are computed in pieces (ops/embedding.py)."""
BYTES_PER_NODE = 21
"""Bytes per node of the graph that do not depend on the batch: masks, revealed labels, and the
number of each node in a batch."""
PLACES: dict[Placement, str] = {
    "gpu": "edges and features on the GPU",
    "pinned": "edges on the GPU, features in pinned main memory",
    "features": "features on the GPU, edges in main memory",
    "memory": "edges and features in main memory",
    "disk": "edges and features mapped from the store",
}
"""The places of a graph in words."""


@dataclass(frozen=True)
class Estimate:
    """The memory and time that a run is expected to take."""

    regime: Regime
    reason: str
    where: str  # device and backend
    memory: int  # bytes: the peak of the process, or on the GPU
    available: int  # bytes in total
    placement: Placement | None = None  # of the graph from which batches are cut
    seconds_per_epoch: float | None = None  # None: not measured
    seconds: float | None = None  # of all epochs, if training does not stop early

    def in_words(self) -> str:
        """The estimate as one line."""
        batches = {"full": "full batch", "partition": "random parts"}
        text = batches.get(self.regime, f"batches of {self.regime}")
        text = f"estimate: {text} on {self.where}, {self.reason}; "
        if self.placement is not None:
            text += f"{PLACES[self.placement]} (batch.placement={self.placement}); "
        text += f"about {gib(self.memory)} of {gib(self.available)}"
        if self.seconds_per_epoch is not None and self.seconds is not None:
            epoch, total = _time(self.seconds_per_epoch), _time(self.seconds)
            text += f"; {epoch} per epoch, at most {total} in total"
        return text


def estimate(
    recipe: Recipe,
    model: NodeModel,
    task: Task,
    device: str,
    *,
    timed: bool = True,
    ranks: int = 1,
) -> Estimate:
    """The memory and time of a run, in the regime of its recipe, or in the one that fits.

    ranks: the processes that train together; memory is that of one of them.
    """
    on_gpu = device.startswith("cuda")
    is_mapped = isinstance(task, StoredTask)
    already = 0 if on_gpu else anonymous_memory() if is_mapped else resident_memory()
    available = available_memory(device) + already
    hidden = hidden_nodes(recipe, model, task)
    works: dict[Regime, Work] = {}

    def work_in(regime: Regime) -> Work:
        if regime not in works:
            works[regime] = work_of(recipe, model, task, regime, hidden, on_gpu, ranks)
        return works[regime]

    def needs(regime: Regime) -> tuple[int, Placement | None]:
        step = training_bytes(recipe, model, task, work_in(regime), on_gpu=on_gpu)
        placement = placement_of(recipe, task, device, regime, step)
        more = max(step, scoring_bytes(recipe, model, task))
        more += (gpu_bytes if on_gpu else copied_bytes)(task, placement)
        if on_gpu or (is_mapped and regime != "full"):
            return already + more, placement
        return max(already + more, peak_memory()), placement

    regime, reason = recipe.batch.regime, "as the recipe states"
    if regime == "auto":
        full, _ = needs("full")
        fits = full <= SHARE * available or not model.by_layer
        regime = "full" if fits else "neighbors"
        reason = "which fits" if fits else f"because the full batch needs about {gib(full)}"
    where = device
    if model.attends:
        where += f" ({backend_in_words(recipe.model.backend, device)})"
    memory, placement = needs(regime)
    found = Estimate(regime, reason, where, memory, available, placement)
    if not timed:
        return found
    options = recipe.train
    pace = pace_of_run(recipe, model, task, work_in(regime), regime, device, placement)
    scorings = max(0, options.epochs - options.eval_from) // options.eval_every + 1
    total = options.epochs * pace.epoch + scorings * pace.scoring + 3 * pace.exact_scoring
    if options.time_limit:
        total = min(total, options.time_limit)
    return replace(found, seconds_per_epoch=pace.epoch, seconds=total)


def placement_of(
    recipe: Recipe, task: Task, device: str, regime: Regime, step: int | None = None
) -> Placement | None:
    """The place of the graph from which batches are cut: that of the recipe, or one that fits.

    step: bytes that a step of training needs; None: not known. A full batch is not cut: None.
    """
    if regime == "full":
        return None
    asked, is_mapped = recipe.batch.placement, isinstance(task, StoredTask)
    if asked == "auto":
        step = None if step is None else int(ERROR * step)
        return choose_placement(task.graph, device, step=step, is_mapped=is_mapped)
    if asked in ("gpu", "pinned", "features") and not device.startswith("cuda"):
        raise RecipeError(
            f"batch.placement is {asked!r}, but training runs on {device}; use auto, memory or "
            "disk, or train on a GPU"
        )
    if asked == "disk" and not is_mapped:
        raise RecipeError(
            "batch.placement is 'disk', but the task is not a store; use auto or memory, or build "
            "a store with unimp data build"
        )
    if asked in ("pinned", "features") and task.graph.x is None:
        raise RecipeError(f"batch.placement is {asked!r}, but nodes have no features; use auto")
    if asked == "pinned" and not isinstance(task.graph.x, Tensor):
        raise RecipeError(
            "batch.placement is 'pinned', but the features are sparse; use batch.placement=features"
        )
    if lacking := shortage(copied_bytes(task, asked)):
        raise RecipeError(f"batch.placement is {asked!r}, but {lacking}; use auto")
    return asked


def gpu_bytes(task: Task, placement: Placement | None) -> int:
    """The memory of the graph on the GPU; placement: None for the full batch."""
    if placement is None:
        return task_bytes(task)
    whole = task.graph.nbytes
    features = 0 if task.graph.x is None else task.graph.x.nbytes
    sizes: dict[Placement, int] = {"gpu": whole, "pinned": whole - features, "features": features}
    return sizes.get(placement, 0)


def copied_bytes(task: Task, placement: Placement | None) -> int:
    """The main memory of what is copied: a store, or features that are pinned."""
    x = task.graph.x
    if placement == "pinned" and isinstance(x, Tensor):
        return pinned_bytes(x)
    return task.graph.nbytes if placement == "memory" and isinstance(task, StoredTask) else 0


def choose_regime(experiment: Experiment, model: NodeModel, task: Task) -> Experiment:
    """The experiment in the regime that its recipe names or that fits; shows the estimate.

    Refuses a run that would need more memory than there is, and names the option to reduce.
    """
    recipe = experiment.recipe
    if not model.learns or isinstance(model, SolvedModel):
        return experiment
    if experiment.own_model is not None:  # the memory of its layers is not known
        regime: Regime = "full" if recipe.batch.regime == "auto" else recipe.batch.regime
        return in_regime(experiment, task, regime)
    expected = estimate(
        recipe,
        model,
        task,
        experiment.device,
        timed=experiment.progress.is_visible,
        ranks=experiment.ranks.size,
    )
    experiment.progress.note(expected.in_words())
    if expected.memory > ERROR * expected.available:
        raise RecipeError(
            f"training needs about {gib(expected.memory)} of memory, but only "
            f"{gib(expected.available)} are available; {what_to_reduce(recipe)}"
        )
    return replace(
        experiment, recipe=recipe.with_regime(expected.regime), placement=expected.placement
    )


def in_regime(experiment: Experiment, task: Task, regime: Regime) -> Experiment:
    """The experiment in a regime whose memory was not estimated."""
    recipe = experiment.recipe
    placement = placement_of(recipe, task, experiment.device, regime)
    return replace(experiment, recipe=recipe.with_regime(regime), placement=placement)


def training_bytes(
    recipe: Recipe, model: NodeModel, task: Task, work: Work, *, on_gpu: bool = False
) -> int:
    """The memory of a step in addition to the task: rows, edges and parameters."""
    graph, width = task.graph, hidden_width(recipe)
    first = work.sources[0] if work.sources else hidden_nodes(recipe, model, task)
    numbers = float(NUMBERS_PER_PARAMETER * count_parameters(model))
    numbers += first * features_per_row(task)
    before = in_width(recipe, model)
    is_large = not on_gpu and model.attends and first * before >= LARGE
    rows = first * before * (WIDTHS_PER_LARGE_INPUT if is_large else WIDTHS_PER_INPUT)
    absorbs = not on_gpu and model.attends and not graph.num_edge_features and native.available()
    for sources, targets, edges in zip(work.sources, work.targets, work.edges, strict=True):
        if absorbs and pays(sources, targets, edges, before, recipe.model.width):
            rows += WIDTHS_PER_TARGET * width * targets
        else:
            rows += width * (WIDTHS_PER_ROW / 2) * (sources + targets)
        before = width
    rows += 3 * task.num_classes * (work.targets[-1] if work.targets else first)
    numbers += (first + 2 * graph.num_nodes) * propagated_columns(model)
    numbers += rows * recipe.train.samples  # the backward pass needs the rows of every forward pass
    # A hop and its transpose, of a batch or of the whole graph.
    distinct = set(zip(work.sources, work.edges, strict=True))
    ahead = (
        1 if len(distinct) <= 1 and work.steps == 1 else 1 + min(recipe.batch.workers, work.steps)
    )
    if on_gpu and work.steps > 1:  # a GPU that cuts batches holds the last, this and the next one
        ahead = max(ahead, 3)
    numbers += (
        sum((5 + graph.num_edge_features) * edges + 3 * rows for rows, edges in distinct) * ahead
    )
    if recipe.train.draws == "node" and recipe.model.attention_dropout:
        # An int64 per edge, layer and forward pass is kept for the backward pass.
        numbers += 2 * sum(work.edges) * recipe.train.samples
    if work.steps > 1 or ahead > 1:  # batches that are prepared ahead also have features
        numbers += (ahead - 1) * first * features_per_row(task)
    return int(4 * numbers + BYTES_PER_NODE * graph.num_nodes)


def scoring_bytes(recipe: Recipe, model: NodeModel, task: Task) -> int:
    """The memory of predicting all nodes: rows of two layers, and the projections of a chunk.

    Exact inference stores what exceeds its limit in files.
    """
    nodes, width = task.graph.num_nodes, hidden_width(recipe)
    chunk = min(nodes, recipe.inference.chunk_edges)
    numbers = nodes * (2 * max(width, in_width(recipe, model)) + 2 * task.num_classes)
    numbers += 2 * nodes * propagated_columns(model)
    numbers += chunk * 5 * width + 3 * min(task.graph.num_edges, recipe.inference.chunk_edges)
    needed = int(4 * (numbers + NUMBERS_PER_PARAMETER * count_parameters(model)))
    exact = recipe.inference.regime == "exact" and model.by_layer
    if exact and not fits_one_chunk(task.graph, recipe.inference.chunk_edges):
        return min(needed, memory_limit(recipe.inference.memory))
    return needed


def task_bytes(task: Task) -> int:
    """The memory of the graph, its features and its transpose on a GPU."""
    graph = task.graph
    numbers = graph.num_edges * (4 + graph.num_edge_features) + 3 * graph.num_nodes
    return int(4 * (numbers + graph.num_nodes * features_per_row(task)))


def _time(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.2g} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"
