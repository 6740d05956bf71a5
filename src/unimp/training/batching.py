"""The three regimes as one shape: a batch is seeds, what surrounds them, and hops."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from unimp.config.choices import ALL, Redraw
from unimp.errors import RecipeError
from unimp.graph.features import SparseFeatures
from unimp.graph.graph import Graph
from unimp.graph.hop import Hop, lies_on
from unimp.ops.memory import available_memory
from unimp.ops.sampling import induced_hop, sample_hops
from unimp.tasks.labels import LabelMask, mask_labels

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Batch:
    """What one step of the model sees: nodes, seeds first, and one hop a layer.

    The model's logits belong to nodes[:num_seeds]. `observed` holds labels as the model may see
    them, UNLABELED elsewhere; `hidden` says which seeds are to be predicted. It holds their numbers
    rather than a mask: how many there are is then known without asking a GPU.
    """

    nodes: Tensor  # [n] node numbers
    num_seeds: int
    x: Tensor | SparseFeatures | None  # [n, F]
    observed: Tensor  # [n] or [n, T]
    hidden: Tensor  # rows among the seeds
    hops: tuple[Hop, ...]

    @property
    def seeds(self) -> Tensor:
        return self.nodes[: self.num_seeds]

    def to(self, device: torch.device | str) -> Batch:
        if lies_on(self.nodes, device):
            return self
        # Layers may share one hop, and with it one transpose; moving must not pull them apart.
        moved = {id(hop): hop.to(device) for hop in self.hops}
        return Batch(
            self.nodes.to(device),
            self.num_seeds,
            None if self.x is None else self.x.to(device),
            self.observed.to(device),
            self.hidden.to(device),
            tuple(moved[id(hop)] for hop in self.hops),
        )


class Masks:
    """The label masks of a run: which mask is in force is a function of (seed, epoch, step).

    With `groups`, each group of nodes is hidden or observed as one.
    """

    def __init__(
        self,
        known: Tensor,
        label_rate: float,
        *,
        redraw: Redraw,
        seed: int,
        groups: Tensor | None = None,
    ) -> None:
        self.known, self.label_rate, self.redraw, self.seed = known, label_rate, redraw, seed
        self.groups = groups
        self._last: tuple[tuple[int, int], LabelMask] | None = None

    def at(self, epoch: int, step: int) -> LabelMask:
        moment = {"run": (0, 0), "epoch": (epoch, 0), "step": (epoch, step)}[self.redraw]
        last = self._last
        if last is None or last[0] != moment:  # steps of an epoch ask for the same one
            last = self._last = moment, self._drawn(moment)
        return last[1]

    def _drawn(self, moment: tuple[int, int]) -> LabelMask:
        generator = torch.Generator().manual_seed(_derived_seed(self.seed, "mask", *moment))
        return mask_labels(self.known, self.label_rate, generator=generator, groups=self.groups)


class Batches(Protocol):
    """A regime: the batches of one epoch, from the one numbered `begin` on."""

    def epoch(self, epoch: int, begin: int = 0) -> Iterator[Batch]: ...


@dataclass(frozen=True)
class FullBatch:
    """One batch an epoch, with every edge of the graph.

    Every node is a seed and every layer runs on the whole graph. With `prune`, the hidden nodes
    are the seeds and each layer computes only what they can be reached from: the same loss and
    gradients for less work where few nodes are hidden. The graph may lie on a GPU already, so that
    it does not travel once an epoch; it is not pruned then, and the next mask is drawn while the
    GPU works.
    """

    graph: Graph
    labels: Tensor
    masks: Masks
    num_layers: int
    prune: bool = False
    _drawn: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False)

    def epoch(self, epoch: int, begin: int = 0) -> Iterator[Batch]:
        if begin:
            return
        if self.prune and self.graph.device.type == "cpu":
            mask = self.masks.at(epoch, 0)
            seeds = torch.nonzero(mask.hidden).squeeze(1)
            everyone = (ALL,) * self.num_layers
            yield sampled_batch(self.graph, self.labels, mask, seeds, everyone, seed=0)
            return
        _ = self.graph.hop.transpose  # found once, and not within a model that may be compiled
        device = self.graph.device
        drawn = self._drawn.pop(epoch) if epoch in self._drawn else self._draw(epoch)
        observed, hidden = drawn
        yield Batch(
            nodes=torch.arange(self.graph.num_nodes, device=device),
            num_seeds=self.graph.num_nodes,
            x=self.graph.x,
            observed=observed.to(device, non_blocking=True),
            hidden=hidden.to(device, non_blocking=True),
            hops=(self.graph.hop,) * self.num_layers,
        )
        if device.type == "cuda":  # which has been told what to do, and is at it
            self._drawn[epoch + 1] = self._draw(epoch + 1)

    def _draw(self, epoch: int) -> tuple[Tensor, Tensor]:
        """What may be seen in an epoch, and which rows are hidden."""
        mask = self.masks.at(epoch, 0)
        drawn = mask.reveal(self.labels), torch.nonzero(mask.hidden).squeeze(1)
        if self.graph.device.type != "cuda":
            return drawn
        observed, hidden = (rows.pin_memory() for rows in drawn)
        return observed, hidden


@dataclass(frozen=True)
class RandomPartition:
    """The nodes in `parts` random parts, drawn anew each epoch; a part sees its own edges alone.

    The graph may lie on a GPU, which then cuts the parts, many times as quickly.
    """

    graph: Graph
    labels: Tensor
    masks: Masks
    num_layers: int
    parts: int
    workers: int = 1
    for_gpu: bool = False

    def epoch(self, epoch: int, begin: int = 0) -> Iterator[Batch]:
        rng = _generator(self.masks.seed, "partition", epoch)
        parts = random_parts(self.graph.num_nodes, self.parts, rng=rng)
        jobs = (self._job(parts[step], epoch, step) for step in range(begin, len(parts)))
        return in_background(jobs, workers=_workers(self.graph, self.workers))

    def _job(self, nodes: Tensor, epoch: int, step: int) -> Callable[[], Batch]:
        def make() -> Batch:
            mask = self.masks.at(epoch, step)
            there = nodes.to(self.graph.device)
            hop = induced_hop(self.graph, there)
            _derive(hop, self.for_gpu)
            return Batch(
                nodes=there,
                num_seeds=nodes.numel(),
                x=None if self.graph.x is None else self.graph.x[there],
                observed=_revealed(mask, self.labels, there),
                hidden=torch.nonzero(mask.hidden[nodes]).squeeze(1).to(there.device),
                hops=(hop,) * self.num_layers,
            )

        return make


@dataclass(frozen=True)
class NeighborSampling:
    """Batches of hidden nodes, each with sampled in-neighbors, layer by layer outward.

    A batch depends on (seed, epoch, step) and not on how many workers prepare batches ahead, nor on
    whether the graph lies on a GPU, which then samples.
    """

    graph: Graph
    labels: Tensor
    masks: Masks
    fanout: tuple[int, ...]  # of each layer, the layer next to the seeds last
    batch_size: int
    workers: int = 1
    for_gpu: bool = False

    def epoch(self, epoch: int, begin: int = 0) -> Iterator[Batch]:
        hidden = int(self.masks.at(epoch, 0).hidden.sum())
        steps = math.ceil(hidden / self.batch_size)
        jobs = (self._job(epoch, step) for step in range(begin, steps))
        return in_background(jobs, workers=_workers(self.graph, self.workers))

    def _job(self, epoch: int, step: int) -> Callable[[], Batch]:
        def make() -> Batch:
            mask = self.masks.at(epoch, step)
            pool = torch.nonzero(mask.hidden).squeeze(1)
            # A mask that lasts the epoch is walked through once, in an order of the epoch's own;
            # a mask drawn for this step gives its seeds alone.
            fresh = self.masks.redraw == "step"
            order = _generator(self.masks.seed, "order", epoch, step if fresh else 0)
            begin = 0 if fresh else step * self.batch_size
            chosen = order.permutation(pool.numel())[begin : begin + self.batch_size]
            seeds = pool[torch.from_numpy(chosen)]
            seed = _derived_seed(self.masks.seed, "neighbors", epoch, step)
            return sampled_batch(
                self.graph, self.labels, mask, seeds, self.fanout, seed=seed, for_gpu=self.for_gpu
            )

        return make


@dataclass(frozen=True)
class Gathered:
    """Batches whose features are gathered on the GPU, where all of them lie.

    What is cut on CPU then travels as node numbers and edges alone.
    """

    batches: Batches
    x: Tensor | SparseFeatures  # of all nodes, on the GPU

    def epoch(self, epoch: int, begin: int = 0) -> Iterator[Batch]:
        for batch in self.batches.epoch(epoch, begin):
            there = batch.to(self.x.device)
            yield replace(there, x=self.x[there.nodes])


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
    """A batch for hidden `seeds`, with (some of) their in-neighbors."""
    nodes, hops = sample_hops(graph, seeds.to(graph.device), fanout, seed=seed)
    for hop in hops:
        _derive(hop, for_gpu)
    return Batch(
        nodes=nodes,
        num_seeds=seeds.numel(),
        x=None if graph.x is None else graph.x[nodes],
        observed=_revealed(mask, labels, nodes),
        hidden=torch.arange(seeds.numel(), device=nodes.device),
        hops=tuple(hops),
    )


def _revealed(mask: LabelMask, labels: Tensor, nodes: Tensor) -> Tensor:
    """Labels of some nodes as the model may see them; `labels` lie where the nodes do."""
    of_nodes = LabelMask(*(rows.to(nodes.device)[nodes] for rows in (mask.observed, mask.hidden)))
    return of_nodes.reveal(labels[nodes])


def _workers(graph: Graph, workers: int) -> int:
    # A GPU does one thing after the other: who cuts ahead on it keeps it from training.
    return workers if graph.device.type == "cpu" else 0


def _derive(hop: Hop, for_gpu: bool) -> None:
    """Find here, beside training, what kernels need of a hop, rather than in its way."""
    _ = hop.transpose
    if for_gpu:
        _ = hop.schedule, hop.transpose.schedule


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
) -> Batches:
    """The batches of a regime, for a model of `num_layers` layers on a device."""
    if regime == "full":
        return FullBatch(graph, labels, masks, num_layers, prune)
    for_gpu = torch.device(device).type == "cuda"
    if for_gpu and fits_gpu(graph.nbytes, device):
        graph = graph.to(device)  # which cuts and samples many times as quickly
    labels = labels.to(graph.device)
    travels = graph.x if for_gpu and graph.device.type == "cpu" else None
    x = travels if travels is not None and fits_gpu(travels.nbytes, device) else None
    cut = graph if x is None else graph.with_features(None)
    batches: Batches
    if regime == "partition":
        batches = RandomPartition(cut, labels, masks, num_layers, parts, workers, for_gpu)
    else:
        # A model without graph layers has nothing to sample; one number serves all layers.
        per_layer = tuple(fanout) * (num_layers if len(fanout) == 1 else 1) if num_layers else ()
        if len(per_layer) != num_layers:
            raise RecipeError(
                f"batch.fanout names {len(fanout)} layers and the model has {num_layers}; give one "
                "number a layer, or one for all"
            )
        batches = NeighborSampling(cut, labels, masks, per_layer, batch_size, workers, for_gpu)
    return batches if x is None else Gathered(batches, x.to(device))


def fits_gpu(size: int, device: torch.device | str) -> bool:
    """Whether so many bytes leave most of a GPU's free memory to training."""
    return 4 * size <= available_memory(str(device))


def random_parts(num_nodes: int, parts: int, *, rng: np.random.Generator) -> list[Tensor]:
    """Every node in exactly one of `parts` random parts of nearly equal size."""
    if not 1 <= parts <= num_nodes:
        raise RecipeError(f"cannot divide {num_nodes} nodes into {parts} parts")
    order = rng.permutation(num_nodes)
    return [torch.from_numpy(np.sort(part)) for part in np.array_split(order, parts)]


def in_background(jobs: Iterable[Callable[[], T]], *, workers: int) -> Iterator[T]:
    """Run jobs ahead of whoever consumes their results, in threads; results keep their order.

    At most workers + 1 results wait, so that memory is bounded. workers = 0 runs them in place.
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


def _derived_seed(seed: int, purpose: str, *counters: int) -> int:
    """One seed for each purpose and moment, so that no draw depends on another having happened."""
    key = [seed, *purpose.encode(), *counters]
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> 1)


def _generator(seed: int, purpose: str, *counters: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(_derived_seed(seed, purpose, *counters)))
