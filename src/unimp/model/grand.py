"""GRAND: a perceptron on features that are dropped by node and averaged over several hops."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unimp.config.choices import Norm, Propagated
from unimp.errors import ModelError
from unimp.graph.features import Features, SparseFeatures
from unimp.graph.graph import Graph
from unimp.graph.hop import Hop
from unimp.model.gcn import convolve, with_convolution_weights
from unimp.model.layers import NORMS, project
from unimp.model.node_model import NodeModel
from unimp.ops.dropout import dropout
from unimp.ops.products import Linear, linear
from unimp.tasks.task import Sizes


class GRAND(NodeModel):
    """Random propagation of node features, followed by a perceptron with one hidden layer.

        x̃_i = x_i δ_i / (1 − drop_node),  δ_i = 0 with probability drop_node, otherwise 1
        mean(r) = 1/(K+1) Σ_{k=0..K} Âᵏ r                    Â_ij = 1/√(d_i d_j), with self-loops

        propagated rows    h
        hidden             mean( dropout(x̃) W₁ ) + b₁
        features           dropout( norm( mean(x̃) ) ) W₁ + b₁

        logits = W₂ dropout( norm( ReLU(h) ) ) + b₂

    Nodes and entries are dropped in training only. Hidden rows have fewer columns, so that their
    propagation is faster. The authors propagate features: dropout then follows the propagation, is
    not averaged over neighbors, and regularizes more. Between hops, a row is [Σ_{k≤l} Âᵏ r | Âˡ r].
    GRAND is meant to be trained with a consistency loss, which makes the predictions of different
    draws of δ agree.
    """

    takes_labels = False
    takes_edge_features = False
    weighs_by_degree = adds_self_loops = True

    def __init__(
        self,
        sizes: Sizes,
        *,
        width: int = 64,
        steps: int = 8,
        drop_node: float = 0.5,
        input_dropout: float = 0.5,
        dropout: float = 0.5,
        norm: Norm = "none",
        propagated_rows: Propagated = "hidden",
    ) -> None:
        super().__init__()
        if sizes.features == 0:
            raise ModelError("GRAND needs node features, but the task has none")
        self.num_layers, self.drop_node = steps, drop_node
        self.input_dropout, self.dropout = input_dropout, dropout
        self.mixes_rows = norm == "batch"
        self.encoder = Linear(sizes.features, width)
        self.head = Linear(width, sizes.classes)
        for layer in (self.encoder, self.head):
            # As the authors do. Rows of a bag of words sum to 1, so that weights of the usual size
            # 1/√features would start with nearly equal predictions.
            bound = layer.out_features**-0.5
            nn.init.uniform_(layer.weight, -bound, bound)
            nn.init.uniform_(layer.bias, -bound, bound)
        self.norm = NORMS[norm](width)
        self.by_features = propagated_rows == "features"
        self.input_norm = NORMS[norm](sizes.features) if self.by_features else nn.Identity()

    def prepare(self, graph: Graph) -> Graph:
        if self.by_features and isinstance(graph.x, SparseFeatures):
            graph = graph.with_features(graph.x.to_dense())
        return with_convolution_weights(graph)

    def embed(self, x: Features | None, observed: Tensor) -> Tensor:
        assert isinstance(x, Tensor | SparseFeatures)  # `__init__` refuses a task without features
        device = x.device.type
        if self.by_features:
            assert isinstance(x, Tensor)  # made dense by `prepare`
            is_mixed = torch.is_autocast_enabled(device)  # hops then read half of the bytes
            rows = x.to(torch.get_autocast_dtype(device)) if is_mixed else x
        else:
            drop = self.input_dropout if self.training else 0.0
            rows = project(x, self.encoder.weight, drop=drop)
        # A node is dropped after the product, which has no bias: the result is the same.
        kept = dropout(torch.ones_like(rows[:, :1]), self.drop_node, self.training)
        rows = rows * kept
        return torch.cat((rows, rows), 1)

    def propagate(self, h: Tensor, hop: Hop, index: int) -> Tensor:
        total, now = h[: hop.num_targets].chunk(2, 1)
        new = convolve(h.chunk(2, 1)[1], hop)
        if not self.training or h.requires_grad:
            return torch.cat((total + new, new), 1)
        # Features take no gradient. Writing to the same rows is several times as fast.
        total.add_(new)
        now.copy_(new)
        return h[: hop.num_targets]

    def read_out(self, h: Tensor) -> Tensor:
        rows = h.chunk(2, 1)[0] / (self.num_layers + 1)
        if self.by_features:
            rows = dropout(self.input_norm(rows), self.input_dropout, self.training)
            rows = linear(rows, self.encoder.weight)
        hidden = self.norm(F.relu(rows + self.encoder.bias))
        return self.head(dropout(hidden, self.dropout, self.training))  # type: ignore[no-any-return]
