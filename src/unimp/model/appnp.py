"""APPNP: a multilayer perceptron whose predictions are propagated over the graph."""

from __future__ import annotations

import torch
from torch import Tensor

from unimp.config.choices import Norm
from unimp.errors import ModelError
from unimp.graph.features import Features
from unimp.graph.graph import Graph
from unimp.graph.hop import Hop
from unimp.model.gcn import convolve, with_convolution_weights
from unimp.model.mlp import MLP
from unimp.model.node_model import NodeModel
from unimp.tasks.task import Sizes


class APPNP(NodeModel):
    """The logits of a multilayer perceptron, propagated by personalized PageRank.

        z⁰ = MLP(x)        zˡ⁺¹_i = (1 − teleport) Σ_j zˡ_j / √(d_i d_j) + teleport z⁰_i

    Between hops, a row is [zˡ | z⁰], because each step needs both.
    """

    takes_labels = False
    takes_edge_features = False
    weighs_by_degree = adds_self_loops = True

    def __init__(
        self,
        sizes: Sizes,
        *,
        layers: int = 2,
        width: int = 256,
        dropout: float = 0.3,
        norm: Norm = "layer",
        steps: int = 10,
        teleport: float = 0.1,
    ) -> None:
        super().__init__()
        if sizes.features == 0:
            raise ModelError("APPNP needs node features, but the task has none")
        self.mlp = MLP(sizes, layers=layers, width=width, dropout=dropout, norm=norm)
        self.num_layers, self.teleport = steps, teleport
        self.mixes_rows = self.mlp.mixes_rows

    def prepare(self, graph: Graph) -> Graph:
        return with_convolution_weights(graph)

    def embed(self, x: Features | None, observed: Tensor) -> Tensor:
        start = self.mlp.read_out(self.mlp.embed(x, observed))
        return torch.cat((start, start), 1)

    def propagate(self, h: Tensor, hop: Hop, index: int) -> Tensor:
        now, start = h.chunk(2, 1)
        start = start[: hop.num_targets]
        now = (1.0 - self.teleport) * convolve(now.contiguous(), hop) + self.teleport * start
        return torch.cat((now, start), 1)

    def read_out(self, h: Tensor) -> Tensor:
        return h.chunk(2, 1)[0]
