"""The base class of all models: embed, propagate once per hop, read out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from unimp.graph.features import Features, FeaturesWithLabels
from unimp.graph.graph import Graph
from unimp.graph.hop import Hop

if TYPE_CHECKING:
    from unimp.model.propagated_labels import LabelSums


class LayerInPieces(Protocol):
    """One layer for some targets whose in-edges are given in pieces, without gradients."""

    @property
    def bytes_per_target(self) -> int:
        """The memory that is used until the layer is finished."""

    def add(self, h: Tensor, hop: Hop) -> None:
        """Add some in-edges; h has one row per source of the hop, and targets are not sources."""

    def finish(self) -> Tensor:
        """Compute the result of `propagate` for the targets: [targets, …]."""


class NodeModel(nn.Module):
    """A model that computes logits of nodes from features and *observed* labels, one hop per layer.

    The three steps are separate, so that inference can run layer by layer on a graph of any size.
    `forward` receives observed labels, never all labels, so hidden labels cannot reach it.

    Apart from its hops, a model processes rows independently: the result for a node does not depend
    on other nodes of the batch, which may be padding. A model that does not in training, for
    example because of a batch norm, sets `mixes_rows`. A model that never does sets `by_layer` to
    False.
    """

    takes_labels: bool
    takes_edge_features: bool
    takes_propagated_labels = False  # whether labels propagated over the whole graph are inputs
    num_layers: int  # number of hops; 0: the model uses no edges
    by_layer = True  # whether inference may run layer by layer
    mixes_rows = False  # whether in training a row depends on the other rows of its batch
    attends = False  # whether it uses `graph_attention`, which has several backends
    weighs_by_degree = False  # whether its graph comes from `with_convolution_weights`
    adds_self_loops = False  # whether `prepare` adds a self-loop to each node without one
    learns = True  # whether it has parameters that training changes
    regularizer_weight = 0.0  # weight of `regularizer` in the loss; 0: no regularizer
    recent: LabelSums | None = None  # the last propagation, reused by `features`; None: not stored

    @property
    def learns_from_labels(self) -> bool:
        """Whether training uses observed labels; if not, all known labels are hidden."""
        return self.learns and (self.takes_labels or self.regularizer_weight > 0)

    def prepare(self, graph: Graph) -> Graph:
        """Return the graph on which this model runs, without edge features that it does not use."""
        return graph if self.takes_edge_features else graph.without_edge_attr()

    def propagated(self, graph: Graph, observed: Tensor, recent: LabelSums | None = None) -> Tensor:
        """Propagate the observed labels of all nodes over the graph that `prepare` returned.

        recent: an object that remembers the previous propagation, to save time.
        """
        raise NotImplementedError

    def features(self, graph: Graph, observed: Tensor, *, remember: bool = True) -> Features | None:
        """Return x of `embed` for all nodes, given their observed labels.

        remember: whether a propagation may be stored in `recent`.
        """
        if not self.takes_propagated_labels:
            return graph.x
        recent = self.recent if remember else None
        return FeaturesWithLabels(graph.x, self.propagated(graph, observed, recent))

    def regularizer(self, x: Features | None, observed: Tensor, hops: Sequence[Hop]) -> Tensor:
        """Compute further logits that must predict the hidden labels, only in training."""
        raise NotImplementedError

    @abstractmethod
    def embed(self, x: Features | None, observed: Tensor) -> Tensor:
        """Compute h⁰ [N, …] from each node's own row of features and observed label."""

    @abstractmethod
    def propagate(self, h: Tensor, hop: Hop, index: int) -> Tensor:
        """Run layer `index` with its norm and activation: [num_sources, …] → [num_targets, …]."""

    def project(self, h: Tensor, index: int) -> Tensor | None:
        """Compute what layer `index` needs of each row of h, [n, …] → [n, …], so that it can be
        stored; None if this layer has no such projection, here or on this device."""
        return None

    def propagate_projected(self, rows: Tensor, targets: Tensor, hop: Hop, index: int) -> Tensor:
        """Run layer `index` without gradients on stored rows of `project`, one per source.

        targets: [T] the sources that are the targets of the hop, which need not come first.
        """
        raise NotImplementedError

    def in_pieces(self, h: Tensor, index: int) -> LayerInPieces | None:
        """Start layer `index` for targets with rows h; None if it needs all in-edges at once."""
        return None

    @abstractmethod
    def read_out(self, h: Tensor) -> Tensor:
        """Compute logits from the output of the last layer."""

    def forward(self, x: Features | None, observed: Tensor, hops: Sequence[Hop]) -> Tensor:
        """Compute the logits of the targets of the last hop: [num_targets, classes].

        x [N, F] or None, and observed [N] or [N, T], belong to the sources of hops[0].
        """
        h = self.embed(x, observed)
        for index, hop in enumerate(hops):
            h = self.propagate(h, hop, index)
        return self.read_out(h)

    def to_probabilities(
        self, outputs: Tensor, *, multilabel: bool, temperature: float = 1.0
    ) -> Tensor:
        """Probabilities from outputs [N, classes]: softmax, or a sigmoid per binary task."""
        logits = outputs / temperature
        return torch.sigmoid(logits) if multilabel else torch.softmax(logits, 1)


def count_parameters(model: nn.Module) -> int:
    """Count the learned numbers of a model."""
    return sum(p.numel() for p in model.parameters())
