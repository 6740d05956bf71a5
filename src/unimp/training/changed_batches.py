"""Batches that are changed before the model sees them: features, labels, edges and draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from torch import Tensor

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
from unimp.training.ahead import on_another_stream
from unimp.training.batch import Batch, Batches
from unimp.training.masks import Masks, derived_seed

Propagate = Callable[[Graph, Tensor], Tensor]
"""A function that propagates observed labels over a graph: one row per node."""


@dataclass(frozen=True)
class DrawnPerNode:
    """Batches whose dropout is a function of (seed, epoch, step, node).

    Sampled neighbors and left-out edges are always drawn per node. Attention dropout is not.
    """

    batches: Batches
    seed: int

    def epoch(self, epoch: int, begin: int = 0) -> Iterator[Batch]:
        for step, batch in enumerate(self.batches.epoch(epoch, begin), begin):
            yield replace(batch, draws=derived_seed(self.seed, "dropout", epoch, step))


@dataclass(frozen=True)
class Gathered:
    """Batches whose features are gathered by the GPU, which stores or reads those of all nodes.

    The features of the next batch are gathered while the GPU trains on this one.
    """

    batches: Batches
    x: Tensor | SparseFeatures | PinnedRows  # of all nodes

    def epoch(self, epoch: int, begin: int = 0) -> Iterator[Batch]:
        moved = (batch.to(self.x.device) for batch in self.batches.epoch(epoch, begin))
        gathered = (replace(batch, x=self._rows(batch.nodes)) for batch in moved)
        return on_another_stream(gathered, self.x.device, "features")

    def _rows(self, nodes: Tensor) -> Tensor | SparseFeatures:
        return self.x[nodes] if isinstance(self.x, PinnedRows) else rows_of(self.x, nodes)


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

    Layers that share one hop still share it afterward. The edge of a node to itself stays. Whether
    another edge stays is a function of (seed, epoch, step, source, target), in all layers.
    """

    batches: Batches
    share: float
    seed: int

    def epoch(self, epoch: int, begin: int = 0) -> Iterator[Batch]:
        for step, batch in enumerate(self.batches.epoch(epoch, begin), begin):
            fewer: dict[int, Hop] = {}
            seed = derived_seed(self.seed, "edges", epoch, step)
            for hop in batch.hops:
                if id(hop) not in fewer:
                    fewer[id(hop)] = self._of(hop, batch.nodes, seed)
            yield replace(batch, hops=tuple(fewer[id(hop)] for hop in batch.hops))

    def _of(self, hop: Hop, nodes: Tensor, seed: int) -> Hop:
        of_source = hashed(nodes + signed(seed))[hop.source.long()]
        drawn = shifted(hashed(of_source + nodes[hop.target.long()]), 32)
        return hop.only((drawn >= round(self.share * 2**32)) | (hop.source == hop.target))
