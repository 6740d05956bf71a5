"""Batches for the three regimes, in one shape: seeds, the nodes around them, and hops."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from unimp.config.choices import ALL
from unimp.errors import TrainingError
from unimp.graph.features import (
    Features,
    FeaturesWithLabels,
    SparseFeatures,
    rows_of,
    split_features,
    without_rows,
)
from unimp.graph.graph import Graph
from unimp.graph.hop import Hop, is_on
from unimp.ops.placement import place_for_batches
from unimp.ops.sampling import induced_hop, sample_hops
from unimp.tasks.labels import LabelMask
from unimp.training.masks import Masks, derived_seed, generator_for

T = TypeVar("T")

Propagate = Callable[[Graph, Tensor], Tensor]
"""A function that propagates observed labels over a graph: one row per node."""


@dataclass(frozen=True, eq=False)
class Batch:
    """The input of one step: nodes, seeds first, and one hop per layer.

    The model's logits belong to nodes[:num_seeds]. `observed` contains the labels that the model
    may see, and UNLABELED elsewhere. `hidden` contains the rows of the seeds to predict. It is a
    list of rows instead of a mask, so that its length is known without waiting for a GPU.
    """

    nodes: Tensor  # [n] node numbers
    num_seeds: int
    x: Features | None  # [n, F]
    observed: Tensor  # [n] or [n, T]
    hidden: Tensor  # rows among the seeds
    hops: tuple[Hop, ...]

    @property
    def seeds(self) -> Tensor:
        return self.nodes[: self.num_seeds]

    def to(self, device: torch.device | str) -> Batch:
        if is_on(self.nodes, device):
            return self
        # Layers that share one hop, and its transpose, must still share it after the move.
        moved = {id(hop): hop.to(device) for hop in self.hops}
        return Batch(
            self.nodes.to(device),
            self.num_seeds,
            None if self.x is None else self.x.to(device),
            self.observed.to(device),
            self.hidden.to(device),
            tuple(moved[id(hop)] for hop in self.hops),
        )


class Batches(Protocol):
    """A regime: a way to divide the nodes of each epoch into batches."""

    def epoch(self, epoch: int, begin: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, starting with batch number `begin`."""
        ...


@dataclass(frozen=True)
class FullBatch:
    """One batch per epoch, with every edge of the graph.

    Every node is a seed and every layer runs on the whole graph. With `prune`, only the hidden
    nodes are seeds and each layer computes only nodes from which a seed can be reached. The loss
    and gradients are the same, with less work where few nodes are hidden. If the graph is on a GPU,
    it is not pruned, it is not copied in each epoch, and the next mask is drawn while the GPU
    works.
    """

    graph: Graph
    labels: Tensor
    masks: Masks
    num_layers: int
    prune: bool = False
    _next: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False)

    def epoch(self, epoch: int, begin: int = 0) -> Iterator[Batch]:
        if begin:
            return
        if self.prune and self.graph.device.type == "cpu":
            mask = self.masks.at(epoch, 0)
            seeds = torch.nonzero(mask.hidden).squeeze(1)
            everyone = (ALL,) * self.num_layers
            labels = self.masks.shown(self.labels, epoch, 0)
            yield sampled_batch(self.graph, labels, mask, seeds, everyone, seed=0)
            return
        _ = self.graph.hop.transpose  # computed once, outside a model that may be compiled
        device = self.graph.device
        observed, hidden = self._next.pop(epoch) if epoch in self._next else self._draw(epoch)
        yield Batch(
            nodes=torch.arange(self.graph.num_nodes, device=device),
            num_seeds=self.graph.num_nodes,
            x=self.graph.x,
            observed=observed.to(device, non_blocking=True),
            hidden=hidden.to(device, non_blocking=True),
            hops=(self.graph.hop,) * self.num_layers,
        )
        if device.type == "cuda":  # it still works on this epoch
            self._next[epoch + 1] = self._draw(epoch + 1)

    def _draw(self, epoch: int) -> tuple[Tensor, Tensor]:
        """The observed labels of an epoch, and the rows that are hidden."""
        mask = self.masks.at(epoch, 0)
        labels = self.masks.shown(self.labels, epoch, 0)
        drawn = mask.reveal(labels), torch.nonzero(mask.hidden).squeeze(1)
        if self.graph.device.type != "cuda":
            return drawn
        observed, hidden = (rows.pin_memory() for rows in drawn)
        return observed, hidden


@dataclass(frozen=True)
class RandomPartition:
    """The nodes in `parts` random parts, drawn again in each epoch; a part has only its own edges.

    If the graph is on a GPU, the GPU cuts the parts.
    """

    graph: Graph
    labels: Tensor
    masks: Masks
    num_layers: int
    parts: int
    workers: int = 1
    for_gpu: bool = False

    def epoch(self, epoch: int, begin: int = 0) -> Iterator[Batch]:
        rng = generator_for(self.masks.seed, "partition", epoch)
        parts = random_parts(self.graph.num_nodes, self.parts, rng=rng)
        jobs = (partial(self._batch, parts[k], epoch, k) for k in range(begin, len(parts)))
        return in_background(jobs, workers=_workers(self.graph, self.workers))

    def _batch(self, nodes: Tensor, epoch: int, step: int) -> Batch:
        mask = self.masks.at(epoch, step)
        placed = nodes.to(self.graph.device)
        hop = induced_hop(self.graph, placed)
        _derive(hop, self.for_gpu)
        return Batch(
            nodes=placed,
            num_seeds=nodes.numel(),
            x=None if self.graph.x is None else rows_of(self.graph.x, placed),
            observed=_reveal(mask, self.masks.shown(self.labels, epoch, step), placed),
            hidden=torch.nonzero(mask.hidden[nodes]).squeeze(1).to(placed.device),
            hops=(hop,) * self.num_layers,
        )


@dataclass(frozen=True)
class NeighborSampling:
    """Batches of hidden nodes, each with sampled in-neighbors for every layer.

    With `others`, a batch also has about as many of these nodes as seeds, drawn for the step.
    A batch depends only on (seed, epoch, step). It does not depend on the number of workers that
    prepare batches, nor on whether the graph is on a GPU.
    """

    graph: Graph
    labels: Tensor
    masks: Masks
    fanout: tuple[int, ...]  # per layer; the last is that of the layer next to the seeds
    batch_size: int
    workers: int = 1
    for_gpu: bool = False
    others: Tensor | None = None  # numbers of nodes that are never hidden

    def epoch(self, epoch: int, begin: int = 0) -> Iterator[Batch]:
        hidden = int(self.masks.at(epoch, 0).hidden.sum())
        steps = math.ceil(hidden / self.batch_size)
        jobs = (partial(self._batch, epoch, step) for step in range(begin, steps))
        return in_background(jobs, workers=_workers(self.graph, self.workers))

    def _batch(self, epoch: int, step: int) -> Batch:
        mask = self.masks.at(epoch, step)
        pool = torch.nonzero(mask.hidden).squeeze(1)
        # A mask that lasts for an epoch is traversed once, in an order drawn for the epoch. A mask
        # that is drawn for one step provides only the seeds of this step.
        fresh = self.masks.redraw == "step"
        order = generator_for(self.masks.seed, "order", epoch, step if fresh else 0)
        begin = 0 if fresh else step * self.batch_size
        chosen = order.permutation(pool.numel())[begin : begin + self.batch_size]
        seeds = pool[torch.from_numpy(chosen)]
        if self.others is not None:
            rng = generator_for(self.masks.seed, "other seeds", epoch, step)
            drawn = rng.permutation(self.others.numel())[: seeds.numel()]
            seeds = torch.cat((seeds, self.others[torch.from_numpy(drawn)]))
        seed = derived_seed(self.masks.seed, "neighbors", epoch, step)
        labels = self.masks.shown(self.labels, epoch, step)
        return sampled_batch(
            self.graph, labels, mask, seeds, self.fanout, seed=seed, for_gpu=self.for_gpu
        )


@dataclass(frozen=True)
class Gathered:
    """Batches whose features are gathered on the GPU, which holds the features of all nodes.

    Batches that are cut on CPU are then copied to the GPU without features.
    """

    batches: Batches
    x: Tensor | SparseFeatures  # of all nodes, on the GPU

    def epoch(self, epoch: int, begin: int = 0) -> Iterator[Batch]:
        for batch in self.batches.epoch(epoch, begin):
            moved = batch.to(self.x.device)
            yield replace(moved, x=rows_of(self.x, moved.nodes))


@dataclass(frozen=True)
class WithoutFeatures:
    """Batches in which a share of the hidden nodes have features of 0, so that labels must help."""

    batches: Batches
    masks: Masks
    share: float

    def epoch(self, epoch: int, begin: int = 0) -> Iterator[Batch]:
        for step, batch in enumerate(self.batches.epoch(epoch, begin), begin):
            dropped = self.masks.dropped(self.share, epoch, step).to(batch.nodes.device)
            x, _ = split_features(batch.x)
            yield batch if x is None else replace(batch, x=without_rows(x, dropped[batch.nodes]))


class WithPropagatedLabels:
    """Batches with observed labels that were propagated over the whole graph beside the features.

    Labels are propagated once per mask, on the device of the graph.
    """

    def __init__(
        self, batches: Batches, graph: Graph, labels: Tensor, masks: Masks, propagate: Propagate
    ) -> None:
        self.batches, self.graph, self.labels = batches, graph, labels
        self.masks, self.propagate = masks, propagate
        self._last: tuple[tuple[int, int], Tensor] | None = None

    def epoch(self, epoch: int, begin: int = 0) -> Iterator[Batch]:
        for step, batch in enumerate(self.batches.epoch(epoch, begin), begin):
            rows = self._at(epoch, step)
            own = rows[batch.nodes.to(rows.device)].to(batch.nodes.device)
            yield replace(batch, x=FeaturesWithLabels(split_features(batch.x)[0], own))

    def _at(self, epoch: int, step: int) -> Tensor:
        """The propagated labels of a step: [N, …]."""
        moment = self.masks.moment(epoch, step)
        last = self._last
        if last is None or last[0] != moment:
            labels = self.masks.shown(self.labels, epoch, step)
            observed = self.masks.at(epoch, step).reveal(labels)
            last = self._last = moment, self.propagate(self.graph, observed)
        return last[1]


@dataclass(frozen=True)
class FewerEdges:
    """Batches from which each step leaves out a random share of the edges.

    Layers that run on the same edges still do. The edge of a node to itself stays. The draw is a
    function of (seed, epoch, step, layer).
    """

    batches: Batches
    share: float
    seed: int

    def epoch(self, epoch: int, begin: int = 0) -> Iterator[Batch]:
        for step, batch in enumerate(self.batches.epoch(epoch, begin), begin):
            fewer: dict[int, Hop] = {}
            for layer, hop in enumerate(batch.hops):
                if id(hop) not in fewer:
                    seed = derived_seed(self.seed, "edges", epoch, step, layer)
                    fewer[id(hop)] = self._of(hop, seed)
            yield replace(batch, hops=tuple(fewer[id(hop)] for hop in batch.hops))

    def _of(self, hop: Hop, seed: int) -> Hop:
        device = hop.source.device
        generator = torch.Generator(device).manual_seed(seed)
        kept = torch.rand(hop.num_edges, generator=generator, device=device) >= self.share
        return hop.only(kept | (hop.source == hop.target))


def sampled_batch(
    graph: Graph,
    labels: Tensor,
    mask: LabelMask,
    seeds: Tensor,
    fanout: Sequence[int],
    *,
    seed: int,
    for_gpu: bool = False,
) -> Batch:
    """Create a batch for `seeds` with their in-neighbors, or a sample of them."""
    nodes, hops = sample_hops(graph, seeds.to(graph.device), fanout, seed=seed)
    for hop in hops:
        _derive(hop, for_gpu)
    return Batch(
        nodes=nodes,
        num_seeds=seeds.numel(),
        x=None if graph.x is None else rows_of(graph.x, nodes),
        observed=_reveal(mask, labels, nodes),
        hidden=torch.nonzero(mask.hidden[seeds]).squeeze(1).to(nodes.device),
        hops=tuple(hops),
    )


def _reveal(mask: LabelMask, labels: Tensor, nodes: Tensor) -> Tensor:
    """Labels of some nodes as the model may see them; labels and nodes are on one device."""
    of_nodes = LabelMask(*(rows.to(nodes.device)[nodes] for rows in (mask.observed, mask.hidden)))
    return of_nodes.reveal(labels[nodes])


def _workers(graph: Graph, workers: int) -> int:
    # A GPU runs one task at a time: cutting batches ahead would delay training.
    return workers if graph.device.type == "cpu" else 0


def _derive(hop: Hop, for_gpu: bool) -> None:
    """Compute what kernels need of a hop while the batch is prepared, in parallel to training."""
    _ = hop.transpose
    if for_gpu:
        _ = hop.schedule, hop.source_schedule


def make_batches(
    graph: Graph,
    labels: Tensor,
    masks: Masks,
    *,
    regime: Literal["full", "partition", "neighbors"],
    num_layers: int,
    prune: bool = False,
    parts: int = 1,
    fanout: Sequence[int] = (),
    batch_size: int = 1024,
    workers: int = 1,
    device: torch.device | str = "cpu",
    feature_drop: float = 0.0,
    propagate: Propagate | None = None,
    others: Tensor | None = None,
) -> Batches:
    """Create the batches of a regime for a model of `num_layers` layers on a device.

    feature_drop: the share of the hidden nodes whose features are set to 0.
    propagate: `NodeModel.propagated` of a model that takes propagated labels; None otherwise.
    others: nodes outside the known ones that batches of neighbors also have as seeds; the other
    regimes have every node as a seed, unless they are pruned.
    """
    batches: Batches
    for_gpu = torch.device(device).type == "cuda"
    graph, x = (graph, None) if regime == "full" else place_for_batches(graph, device)
    placed = labels if regime == "full" else labels.to(graph.device)
    if regime == "full":
        batches = FullBatch(graph, placed, masks, num_layers, prune)
    elif regime == "partition":
        batches = RandomPartition(graph, placed, masks, num_layers, parts, workers, for_gpu)
    else:
        per_layer = fanout_per_layer(fanout, num_layers)
        batches = NeighborSampling(
            graph, placed, masks, per_layer, batch_size, workers, for_gpu, others
        )
    if x is not None:
        batches = Gathered(batches, x)
    if feature_drop:
        batches = WithoutFeatures(batches, masks, feature_drop)
    if propagate is None:
        return batches
    return WithPropagatedLabels(batches, graph, labels, masks, propagate)


def fanout_per_layer(fanout: Sequence[int], num_layers: int) -> tuple[int, ...]:
    """One fanout per layer; a single number applies to all layers."""
    if num_layers == 0:  # nothing is sampled
        return ()
    per_layer = tuple(fanout) * (num_layers if len(fanout) == 1 else 1)
    if len(per_layer) != num_layers:
        raise TrainingError(
            f"the fanout has {len(fanout)} numbers, but the model has {num_layers} layers; give "
            "one number per layer, or one number for all layers"
        )
    return per_layer


def random_parts(num_nodes: int, parts: int, *, rng: np.random.Generator) -> list[Tensor]:
    """Divide the nodes into `parts` random parts of nearly equal size; each node is in one part."""
    if not 1 <= parts <= num_nodes:
        raise TrainingError(
            f"{num_nodes} nodes cannot be divided into {parts} parts; choose 1 to {num_nodes} parts"
        )
    order = rng.permutation(num_nodes)
    return [torch.from_numpy(np.sort(part)) for part in np.array_split(order, parts)]


def in_background(jobs: Iterable[Callable[[], T]], *, workers: int) -> Iterator[T]:
    """Run jobs in threads, ahead of the consumer of their results; results keep their order.

    At most workers + 1 results wait, so memory is bounded. With workers = 0, jobs run in the
    calling thread.
    """
    if workers == 0:
        yield from (job() for job in jobs)
        return
    with ThreadPoolExecutor(workers, thread_name_prefix="batch") as pool:
        waiting: deque[Future[T]] = deque()
        try:
            for job in jobs:
                waiting.append(pool.submit(job))
                if len(waiting) > workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
