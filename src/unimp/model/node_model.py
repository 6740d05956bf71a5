"""What every model here is: embed, propagate once a hop, read out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from unimp.graph.features import SparseFeatures
from unimp.graph.graph import Graph
from unimp.graph.hop import Hop


class NodeModel(nn.Module):
    """Logits for nodes, from features and *observed* labels, one hop a layer.

    The three steps are apart so that inference can run them layer by layer over a graph of any
    size. `forward` receives observed labels, never all labels: what is hidden cannot reach it.

    But for its hops a model takes rows apart: what it gives a node does not depend on which others
    are in a batch, some of which may be padding. One with a batch norm sets `by_layer` to False.
    """

    takes_labels: bool
    takes_edge_features: bool
    num_layers: int  # hops it runs over; 0: it looks at no neighbors
    by_layer = True  # whether it takes rows apart, so that inference may go layer by layer
    attends = False  # whether it computes by `graph_attention`, and so by a backend
    weighs_by_degree = False  # whether it runs on a graph `with_convolution_weights`
    learns = True  # whether it has parameters that training changes
    regularizer_weight = 0.0  # of `regularizer` in the loss; 0: there is none

    @property
    def learns_from_labels(self) -> bool:
        """Whether observed labels mean anything in training; if not, all known ones are hidden."""
        return self.learns and (self.takes_labels or self.regularizer_weight > 0)

    def prepare(self, graph: Graph) -> Graph:
        """The graph as this model runs on it; edge features that it does not take are left out."""
        return graph if self.takes_edge_features else graph.without_edge_attr()

    def regularizer(
        self, x: Tensor | SparseFeatures | None, observed: Tensor, hops: Sequence[Hop]
    ) -> Tensor:
        """Logits that are to predict the hidden labels too, in training alone."""
        raise NotImplementedError

    @abstractmethod
    def embed(self, x: Tensor | SparseFeatures | None, observed: Tensor) -> Tensor:
        """h⁰ [N, …] from each node's own features and observed label."""

    @abstractmethod
    def propagate(self, h: Tensor, hop: Hop, index: int) -> Tensor:
        """Layer `index` with what follows it: [num_sources, …] → [num_targets, …]."""

    @abstractmethod
    def read_out(self, h: Tensor) -> Tensor:
        """Logits from the last layer's output."""

    def forward(
        self, x: Tensor | SparseFeatures | None, observed: Tensor, hops: Sequence[Hop]
    ) -> Tensor:
        """Logits of the last hop's targets: [num_targets, classes].

        x [N, F] or None and observed [N] or [N, T] belong to the sources of hops[0].
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
    return sum(p.numel() for p in model.parameters())
