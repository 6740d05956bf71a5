"""Batches that are changed before the model sees them: features, labels, edges and draws."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from unimp.data.memory import available_memory
from unimp.graph.features import (
    FeaturesWithLabels,
    SparseFeatures,
    rows_of,
    split_features,
    without_rows,
)
from unimp.graph.graph import Graph
from unimp.graph.hop import Hop
from unimp.ops.hashing import hashed, shifted, signed
from unimp.ops.pinned import PinnedRows
from unimp.ops.placement import GPU_HEADROOM
from unimp.training.ahead import close, on_another_stream
from unimp.training.batch import Batch, Batches
from unimp.training.masks import Masks, derived_seed

Propagate = Callable[[Graph, Tensor], Tensor]
"""A function that propagates observed labels over a graph: one row per node."""


def changed(
    batches: Iterable[Batch], begin: int, change: Callable[[int, Batch], Batch]
) -> Iterator[Batch]:
    """Change each batch; the first one has the number `begin`.

    No batch is kept while the next one is prepared. `enumerate` would keep it. If the consumer
    stops early, the generator of the batches is closed at once, because its end may have to wait
    for another stream of a GPU.
    """
    step = begin
    try:
        for batch in batches:
            batch = change(step, batch)
            yield batch
            del batch
            step += 1
    finally:
        close(batches)


@dataclass(frozen=True)
class DrawnPerNode:
    """Batches whose dropout is a function of (seed, epoch, step, node).

    Sampled neighbors and left-out edges are always drawn per node. Attention dropout is not.
    """

    batches: Batches
    seed: int

    def epoch(self, epoch: int, begin: int = 0) -> Iterator[Batch]:
        def drawn(step: int, batch: Batch) -> Batch:
            return replace(batch, draws=derived_seed(self.seed, "dropout", epoch, step))

        return changed(self.batches.epoch(epoch, begin), begin, drawn)


@dataclass(frozen=True)
class Gathered:
    """Batches whose features are gathered by the GPU, which stores or reads those of all nodes.

    The features of the next batch are gathered while the GPU trains on this one.
    """

    batches: Batches
    x: Tensor | SparseFeatures | PinnedRows  # of all nodes

    def epoch(self, epoch: int, begin: int = 0) -> Iterator[Batch]:
        def gathered(_: int, batch: Batch) -> Batch:
            batch = batch.to(self.x.device)
            return replace(batch, x=self._rows(batch.nodes))

        batches = changed(self.batches.epoch(epoch, begin), begin, gathered)
        yield from on_another_stream(batches, self.x.device, "features")
        if isinstance(self.x, PinnedRows):  # training has allocated what it needs by now
            self.x.add_hot_rows(available_memory(str(self.x.device)) // GPU_HEADROOM)

    def _rows(self, nodes: Tensor) -> Tensor | SparseFeatures:
        return self.x[nodes] if isinstance(self.x, PinnedRows) else rows_of(self.x, nodes)


@dataclass(frozen=True)
class WithoutFeatures:
    """Batches in which a share of the hidden nodes have features of 0, so that labels must help."""

    batches: Batches
    masks: Masks
    share: float

    def epoch(self, epoch: int, begin: int = 0) -> Iterator[Batch]:
        def without(step: int, batch: Batch) -> Batch:
            dropped = self.masks.dropped(self.share, epoch, step).to(batch.nodes.device)
            x, _ = split_features(batch.x)
            return batch if x is None else replace(batch, x=without_rows(x, dropped[batch.nodes]))

        return changed(self.batches.epoch(epoch, begin), begin, without)


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
        def with_labels(step: int, batch: Batch) -> Batch:
            rows = self._at(epoch, step)
            own = rows[batch.nodes.to(rows.device)].to(batch.nodes.device)
            return replace(batch, x=FeaturesWithLabels(split_features(batch.x)[0], own))

        return changed(self.batches.epoch(epoch, begin), begin, with_labels)

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

    Layers that share one hop still share it afterward. The edge of a node to itself stays. Whether
    another edge stays is a function of (seed, epoch, step, source, target), in all layers.
    """

    batches: Batches
    share: float
    seed: int

    def epoch(self, epoch: int, begin: int = 0) -> Iterator[Batch]:
        def with_fewer(step: int, batch: Batch) -> Batch:
            fewer: dict[int, Hop] = {}
            seed = derived_seed(self.seed, "edges", epoch, step)
            for hop in batch.hops:
                if id(hop) not in fewer:
                    fewer[id(hop)] = self._of(hop, batch.nodes, seed)
            return replace(batch, hops=tuple(fewer[id(hop)] for hop in batch.hops))

        return changed(self.batches.epoch(epoch, begin), begin, with_fewer)

    def _of(self, hop: Hop, nodes: Tensor, seed: int) -> Hop:
        of_source = hashed(nodes + signed(seed))[hop.source.long()]
        drawn = shifted(hashed(of_source + nodes[hop.target.long()]), 32)
        return hop.only((drawn >= round(self.share * 2**32)) | (hop.source == hop.target))
