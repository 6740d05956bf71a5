"""The three regimes: ways to divide the nodes of each epoch into batches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unimp.config.choices import ALL
from unimp.config.options import BatchOptions
from unimp.errors import TrainingError
from unimp.graph.csr import index_dtype
from unimp.graph.features import rows_of
from unimp.graph.graph import Graph
from unimp.graph.hop import Hop
from unimp.ops.placement import choose_placement, place_for_batches
from unimp.ops.sampling import induced_hop, prefetch_rows, sample_hops
from unimp.tasks.labels import LabelMask
from unimp.training.ahead import ahead
from unimp.training.batch import Batch, Batches
from unimp.training.changed_batches import (
    DrawnPerNode,
    Gathered,
    Propagate,
    WithoutFeatures,
    WithPropagatedLabels,
)
from unimp.training.masks import Masks, derived_seed, generator_for
from unimp.training.ranks import ALONE, Ranks


@dataclass(frozen=True)
class FullBatch:
    """One batch per epoch, with every edge of the graph.

    Every node is a seed and every layer runs on the whole graph. With `prune`, only the hidden
    nodes are seeds and each layer computes only nodes from which a seed can be reached. The loss
    and gradients are the same, with less work where few nodes are hidden. If the graph is on a GPU,
    it is not pruned, it is not copied in each epoch, and the next mask is drawn while the GPU
    works. Several processes divide the hidden nodes; each prunes its batch.
    """

    graph: Graph
    labels: Tensor
    masks: Masks
    num_layers: int
    prune: bool = False
    ranks: Ranks = ALONE
    _next: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False)

    def epoch(self, epoch: int, begin: int = 0) -> Iterator[Batch]:
        if begin:
            return
        if self.ranks.size > 1 or (self.prune and self.graph.device.type == "cpu"):
            mask = self.masks.at(epoch, 0)
            hidden = torch.nonzero(mask.hidden).squeeze(1)
            seeds, everyone = self.ranks.deal(hidden), (ALL,) * self.num_layers
            labels = self.masks.shown(self.labels, epoch, 0).to(self.graph.device)
            batch = sampled_batch(self.graph, labels, mask, seeds, everyone, seed=0)
            yield replace(batch, hidden_of_all=hidden.numel())
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

    A step trains on `parts_per_step` parts, which several processes divide among them. If the graph
    is on a GPU, the GPU cuts the parts.
    """

    graph: Graph
    labels: Tensor
    masks: Masks
    num_layers: int
    parts: int
    workers: int = 1
    for_gpu: bool = False
    parts_per_step: int = 1
    ranks: Ranks = ALONE

    def epoch(self, epoch: int, begin: int = 0) -> Iterator[Batch]:
        rng = generator_for(self.masks.seed, "partition", epoch)
        parts, each = random_parts(self.graph.num_nodes, self.parts, rng=rng), self.parts_per_step
        steps = [parts[first : first + each] for first in range(0, len(parts), each)]
        jobs = (partial(self._batch, steps[k], epoch, k) for k in range(begin, len(steps)))
        return ahead(jobs, self.graph.device, workers=self.workers)

    def _batch(self, of_all: Sequence[Tensor], epoch: int, step: int) -> Batch:
        mask = self.masks.at(epoch, step)
        parts = of_all[self.ranks.rank :: self.ranks.size]
        nodes = torch.cat((*parts, torch.empty(0, dtype=torch.int64)))
        placed = nodes.to(self.graph.device)
        own = [
            induced_hop(self.graph, part) for part in torch.split(placed, [len(p) for p in parts])
        ]
        hop = own[0] if len(own) == 1 else side_by_side(self.graph, own)
        _derive(hop, self.for_gpu)
        return Batch(
            nodes=placed,
            num_seeds=nodes.numel(),
            x=None if self.graph.x is None else rows_of(self.graph.x, placed),
            observed=_reveal(
                self.masks.placed(epoch, step, placed.device),
                self.masks.shown(self.labels, epoch, step),
                placed,
            ),
            hidden=torch.nonzero(mask.hidden[nodes]).squeeze(1).to(placed.device),
            hops=(hop,) * self.num_layers,
            hidden_of_all=sum(int(mask.hidden[part].sum()) for part in of_all),
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
    ranks: Ranks = ALONE
    prefetch: bool = True  # rows of a mapped graph
    _pools: dict[tuple[int, int], Tensor] = field(default_factory=dict, repr=False)

    def epoch(self, epoch: int, begin: int = 0) -> Iterator[Batch]:
        hidden = int(self.masks.at(epoch, 0).hidden.sum())
        steps = math.ceil(hidden / self.batch_size)
        jobs = (partial(self._batch, epoch, step) for step in range(begin, steps))
        return ahead(jobs, self.graph.device, workers=self.workers)

    def _batch(self, epoch: int, step: int) -> Batch:
        mask = self.masks.at(epoch, step)
        # A mask that lasts for an epoch is traversed once, in an order drawn for the epoch. A mask
        # that is drawn for one step provides only the seeds of this step.
        fresh = self.masks.redraw == "step"
        begin = 0 if fresh else step * self.batch_size
        pool = self._pool(mask, (epoch, step if fresh else 0))
        seeds = pool[begin : begin + self.batch_size]
        if self.others is not None:
            rng = generator_for(self.masks.seed, "other seeds", epoch, step)
            drawn = rng.permutation(self.others.numel())[: seeds.numel()]
            seeds = torch.cat((seeds, self.others[torch.from_numpy(drawn)]))
        seed = derived_seed(self.masks.seed, "neighbors", epoch, step)
        labels, own = self.masks.shown(self.labels, epoch, step), self.ranks.deal(seeds)
        batch = sampled_batch(
            self.graph,
            labels,
            mask,
            own,
            self.fanout,
            seed=seed,
            placed=self.masks.placed(epoch, step, self.graph.device),
            for_gpu=self.for_gpu,
            prefetch=self.prefetch,
        )
        return replace(batch, hidden_of_all=int(mask.hidden[seeds].sum()))

    def _pool(self, mask: LabelMask, moment: tuple[int, int]) -> Tensor:
        """The hidden nodes in a random order, which is drawn once per epoch or step."""
        pool = self._pools.get(moment)
        if pool is None:
            hidden = torch.nonzero(mask.hidden).squeeze(1)
            order = generator_for(self.masks.seed, "order", *moment)
            pool = hidden[torch.from_numpy(order.permutation(hidden.numel()))]
            self._pools.clear()
            self._pools[moment] = pool
        return pool


def sampled_batch(
    graph: Graph,
    labels: Tensor,
    mask: LabelMask,
    seeds: Tensor,
    fanout: Sequence[int],
    *,
    seed: int,
    placed: LabelMask | None = None,
    for_gpu: bool = False,
    prefetch: bool = False,
) -> Batch:
    """Create a batch for `seeds` with their in-neighbors, or a sample of them.

    placed: the mask on the device of the graph; None: it is copied.
    prefetch: ask the system for all rows of a mapped graph that the batch needs before it reads
    them one by one.
    """
    nodes, hops = sample_hops(graph, seeds, fanout, seed=seed, prefetch=prefetch)
    if prefetch and isinstance(graph.x, Tensor):
        prefetch_rows(graph.x, nodes)
    for hop in hops:
        _derive(hop, for_gpu)
    return Batch(
        nodes=nodes,
        num_seeds=seeds.numel(),
        x=None if graph.x is None else rows_of(graph.x, nodes),
        observed=_reveal(placed or mask, labels, nodes),
        hidden=torch.nonzero(mask.hidden[seeds]).squeeze(1).to(nodes.device),
        hops=tuple(hops),
    )


def side_by_side(graph: Graph, hops: Sequence[Hop]) -> Hop:
    """Join square hops into one, without edges between them."""
    dtype = index_dtype(sum(hop.num_edges for hop in hops))
    pointers, sources, edges, rows = [torch.zeros(1, dtype=dtype)], [], 0, 0
    for hop in hops:
        pointers.append(hop.indptr[1:].to(dtype) + edges)
        sources.append(hop.source.to(dtype) + rows)
        edges, rows = edges + hop.num_edges, rows + hop.num_sources
    none = torch.empty(0, dtype=dtype)
    device = graph.device
    attr = [hop.edge_attr for hop in hops if hop.edge_attr is not None]
    if not hops and graph.edge_attr is not None:
        attr = [graph.edge_attr[:0]]
    return Hop(
        torch.cat([rows.to(device) for rows in pointers]),
        torch.cat([none.to(device), *sources]),
        rows,
        torch.cat(attr) if attr else None,
    )


def _reveal(mask: LabelMask, labels: Tensor, nodes: Tensor) -> Tensor:
    """Labels of some nodes as the model may see them; labels and nodes are on one device."""
    of_nodes = LabelMask(*(rows.to(nodes.device)[nodes] for rows in (mask.observed, mask.hidden)))
    return of_nodes.reveal(labels[nodes])


def _derive(hop: Hop, for_gpu: bool) -> None:
    """Compute what kernels need of a hop while the batch is prepared, in parallel to training."""
    _ = hop.transpose
    if for_gpu:
        _ = hop.schedule, hop.source_schedule


@dataclass(frozen=True)
class BatchChanges:
    """Changes to batches that apply in every regime.

    feature_drop: the share of the hidden nodes whose features are set to 0.
    propagate: `NodeModel.propagated` of a model that takes propagated labels; None otherwise.
    drawn_per_node: whether dropout is drawn per node, so that it does not depend on the
    number of processes.
    """

    feature_drop: float = 0.0
    propagate: Propagate | None = None
    drawn_per_node: bool = False


UNCHANGED = BatchChanges()


def make_batches(
    graph: Graph,
    labels: Tensor,
    masks: Masks,
    options: BatchOptions,
    *,
    num_layers: int,
    device: torch.device | str = "cpu",
    changes: BatchChanges = UNCHANGED,
    others: Tensor | None = None,
    ranks: Ranks = ALONE,
) -> Batches:
    """Create the batches of a regime for a model of `num_layers` layers on a device.

    options: the section `batch` of a recipe. The regime `auto` is treated as `full` here.
    others: nodes outside the known ones that batches of neighbors also have as seeds; the other
    regimes have every node as a seed, unless they are pruned.
    ranks: the processes that divide each batch among them.
    """
    if options.regime in ("auto", "full"):
        batches: Batches = FullBatch(graph, labels, masks, num_layers, options.prune, ranks)
    else:
        asked, for_gpu = options.placement, torch.device(device).type == "cuda"
        place = choose_placement(graph, device) if asked == "auto" else asked
        graph, x = place_for_batches(graph, device, place)
        common: dict[str, Any] = {
            "graph": graph,
            "labels": labels.to(graph.device),
            "masks": masks,
            "workers": options.workers,
            "for_gpu": for_gpu,
            "ranks": ranks,
        }
        if options.regime == "partition":
            batches = RandomPartition(
                num_layers=num_layers,
                parts=options.parts,
                parts_per_step=options.parts_per_step,
                **common,
            )
        else:
            batches = NeighborSampling(
                fanout=fanout_per_layer(options.fanout, num_layers),
                batch_size=options.batch_size,
                others=others,
                prefetch=options.prefetch,
                **common,
            )
        if x is not None:
            batches = Gathered(batches, x)
    if changes.drawn_per_node:
        batches = DrawnPerNode(batches, masks.seed)
    if changes.feature_drop:
        batches = WithoutFeatures(batches, masks, changes.feature_drop)
    if changes.propagate is None:
        return batches
    return WithPropagatedLabels(batches, graph, labels, masks, changes.propagate)


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
