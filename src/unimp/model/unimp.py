"""UniMP: features and observed labels are added and propagated together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unimp.config.arguments import Share, Size, checked
from unimp.config.choices import Backend, Norm, Residual
from unimp.errors import ModelError
from unimp.graph.features import Features, SparseFeatures, split_features
from unimp.graph.graph import Graph
from unimp.graph.hop import Hop
from unimp.model.gat import GATLayer
from unimp.model.gcn import GCNLayer, with_convolution_weights
from unimp.model.layers import (
    NORMS,
    EdgeEncoder,
    FeatureEncoder,
    FusedNorm,
    GraphTransformerLayer,
    LabelEncoder,
    LabelTable,
    MessageLayer,
)
from unimp.model.node_model import LayerInPieces, NodeModel
from unimp.model.propagated_labels import LabelSums, PropagatedLabels
from unimp.model.sage import SAGELayer
from unimp.ops.dropout import dropout
from unimp.ops.embedding import is_large, normed_inputs
from unimp.ops.products import Linear
from unimp.tasks.task import Sizes

LayerKind = Literal["transformer", "gat", "gcn", "sage"]
LAYERS: dict[LayerKind, Callable[..., MessageLayer]] = {
    "transformer": GraphTransformerLayer,
    "gat": GATLayer,
    "gcn": GCNLayer,
    "sage": SAGELayer,
}
WITHOUT_HEADS: tuple[LayerKind, ...] = ("gcn", "sage")
"""Layers that have no heads, and the width of all heads together."""


class UniMP(NodeModel):
    """A graph transformer over h⁰ = X + embed(Y_observed).

        h⁰ = dropout( LayerNorm( x + embed(observed) ) )            (norm if `input_norm`)
        h⁰ = dropout( LayerNorm( x + embed(observed) + W propagated + b ) )
                                                                    (if `propagated_labels`)
        hˡ⁺¹ = dropout( ReLU( norm( layer(hˡ) ) ) )
        logits = layer(hᴸ⁻¹), heads averaged           (head = average)
        logits = W hᴸ + b                               (head = linear)

    Each layer runs on its own hop, so a full batch, a part and sampled neighbors use the same code.
    Masked label prediction does not depend on the kind of layer: `layer` may also be that of a
    graph attention network (gat), a graph convolution (gcn) or GraphSAGE (sage), which use no edge
    features. `norm` is a LayerNorm, a batch norm or nothing.
    """

    @checked
    def __init__(
        self,
        sizes: Sizes,
        *,
        layers: Size = 3,
        width: Size = 128,
        heads: Size = 2,
        dropout: Share = 0.3,
        input_dropout: Share | None = None,
        attention_dropout: Share = 0.0,
        residual: Residual = "gated",
        gate: Literal["none", "last", "all"] = "last",
        gate_bias: bool = True,
        norm: Norm = "layer",
        input_norm: bool = True,
        head: Literal["average", "linear"] = "average",
        feature_encoder: bool = False,
        edge_encoder: Literal["per-layer", "shared"] = "per-layer",
        use_features: bool = True,
        use_labels: bool = True,
        use_edge_features: bool = True,
        label_width: Size = 128,
        backend: Backend = "auto",
        layer: LayerKind = "transformer",
        propagated_labels: bool = False,
    ) -> None:
        super().__init__()
        if layer in WITHOUT_HEADS:
            width, heads = heads * width, 1
        use_features = use_features and sizes.features > 0
        if not (use_features or use_labels):
            raise ModelError(
                "the model would receive neither features nor labels; use labels as inputs, or "
                "node features if the task has some"
            )
        if propagated_labels and not use_labels:
            raise ModelError(
                "propagated labels are inputs, but labels are not; use labels as inputs, or omit "
                "propagated_labels"
            )
        if sizes.sparse and use_features and not feature_encoder:
            raise ModelError(
                "the node features are sparse; use a feature encoder, which projects them without "
                "making them dense"
            )
        if edge_encoder == "shared" and head == "average":
            raise ModelError(
                "layers of different width cannot share one edge encoder, and the last layer of "
                "an averaged head has the width of the classes; use an edge encoder per layer, or "
                "a linear head"
            )
        hidden = heads * width
        self.dropout = dropout
        self.input_dropout = dropout if input_dropout is None else input_dropout
        self.layer, self.attends = layer, layer == "transformer"
        self.weighs_by_degree, self.adds_self_loops = layer == "gcn", layer in ("gcn", "gat")
        with_edges = use_edge_features and sizes.edge_features > 0
        self.takes_edge_features = layer == "transformer" and with_edges
        self.mixes_rows = norm == "batch"
        self.takes_labels = use_labels
        self.takes_features = use_features
        self.num_layers = layers

        if not use_features:
            in_width = hidden if feature_encoder else label_width
        else:
            in_width = hidden if feature_encoder else sizes.features
        self.in_width = in_width
        self.feature_encoder = (
            FeatureEncoder(sizes.features, in_width) if use_features and feature_encoder else None
        )
        self.label_embedding: LabelTable | LabelEncoder | None = None
        if use_labels:
            embedding = LabelEncoder if sizes.multilabel else LabelTable
            self.label_embedding = embedding(sizes.classes, in_width)
        self.input_norm = nn.LayerNorm(in_width) if input_norm else None

        self.edge_encoder = (
            EdgeEncoder(sizes.edge_features, hidden)
            if self.takes_edge_features and edge_encoder == "shared"
            else None
        )
        self.layers = nn.ModuleList()
        self.norms = nn.ModuleList()
        for index in range(layers):
            last = index == layers - 1
            averaged = last and head == "average"
            layer_width = sizes.classes if averaged else width
            own_encoder = self.edge_encoder
            if self.takes_edge_features and own_encoder is None:
                own_encoder = EdgeEncoder(sizes.edge_features, heads * layer_width)
            gated = residual == "gated" and (gate == "all" or (gate == "last" and last))
            own: dict[str, Any] = {
                "residual": "gated" if gated else ("none" if residual == "none" else "simple"),
                "gate_bias": gate_bias,
            }
            if layer not in WITHOUT_HEADS:
                own |= {"heads": heads, "concat": not averaged}
                own["attention_dropout"] = attention_dropout
            if layer == "transformer":
                own |= {"edge_encoder": own_encoder, "backend": backend}
            first_width = in_width if index == 0 else hidden
            self.layers.append(LAYERS[layer](first_width, layer_width, **own))
            if not averaged:
                self.norms.append(NORMS[norm](hidden))
        self.head = Linear(hidden, sizes.classes) if head == "linear" else None
        self.takes_propagated_labels = propagated_labels
        # Last, so that the other initial weights do not depend on it.
        self.propagated_labels = PropagatedLabels(sizes, in_width) if propagated_labels else None

    def prepare(self, graph: Graph) -> Graph:
        if self.layer == "gcn":
            return with_convolution_weights(graph)
        if self.layer == "gat":
            return graph.without_edge_attr().with_self_loops()
        return super().prepare(graph)

    def propagated(self, graph: Graph, observed: Tensor, recent: LabelSums | None = None) -> Tensor:
        assert self.propagated_labels is not None
        return self.propagated_labels.of(graph, observed, recent)

    def embed(self, x: Features | None, observed: Tensor) -> Tensor:
        x, propagated = split_features(x)
        if self._is_large(x):
            assert isinstance(x, Tensor)
            assert isinstance(self.label_embedding, LabelTable)
            assert isinstance(self.input_norm, nn.LayerNorm)
            table = self.label_embedding.table.weight
            drop = self.input_dropout if self.training else 0.0
            return normed_inputs(x, observed, table, self.input_norm, drop=drop)
        h: Tensor | None = None
        if self.takes_features:
            if self.feature_encoder is not None:
                h = self.feature_encoder(x)
            elif isinstance(x, Tensor):
                h = x
        if self.label_embedding is not None:
            labels = self.label_embedding(observed)
            h = labels if h is None else h + labels
        if self.propagated_labels is not None:
            assert h is not None
            h = h + self.propagated_labels(propagated)
        assert h is not None  # `__init__` refuses a model without inputs
        if self.input_norm is not None:
            h = self.input_norm(h)
        return dropout(h, self.input_dropout, self.training)

    def _is_large(self, x: Tensor | SparseFeatures | None) -> bool:
        """Whether features and label rows are added and normalized in pieces, to save memory."""
        return (
            self.takes_features
            and self.feature_encoder is None
            and self.propagated_labels is None
            and isinstance(self.label_embedding, LabelTable)
            and isinstance(x, Tensor)
            and x.dtype == self.label_embedding.table.weight.dtype
            and is_large(x, self.input_norm)
        )

    def propagate(self, h: Tensor, hop: Hop, index: int) -> Tensor:
        if index == len(self.norms):  # the last layer computes logits
            return self.layers[index](h, hop)  # type: ignore[no-any-return]
        norm = self.norms[index]
        if isinstance(norm, FusedNorm):
            rows = self.layers[index](h, hop, norm)
        else:
            rows = F.relu(norm(self.layers[index](h, hop)))
        return dropout(rows, self.dropout, self.training)

    def project(self, h: Tensor, index: int) -> Tensor | None:
        layer = self.layers[index]
        return layer.project(h) if isinstance(layer, GraphTransformerLayer) else None

    def propagate_projected(self, rows: Tensor, targets: Tensor, hop: Hop, index: int) -> Tensor:
        layer = self.layers[index]
        assert isinstance(layer, GraphTransformerLayer)
        if index == len(self.norms):
            return layer.of_projected(rows, targets, hop)
        norm = self.norms[index]
        if isinstance(norm, FusedNorm):
            return layer.of_projected(rows, targets, hop, norm)
        return F.relu(norm(layer.of_projected(rows, targets, hop)))

    def in_pieces(self, h: Tensor, index: int) -> LayerInPieces | None:
        layer = self.layers[index]
        if not isinstance(layer, GraphTransformerLayer):
            return None
        return layer.in_pieces(h, None if index == len(self.norms) else self.norms[index])

    def read_out(self, h: Tensor) -> Tensor:
        return h if self.head is None else self.head(h)

    @torch.no_grad()
    def attention_weights(
        self, x: Features | None, observed: Tensor, hops: Sequence[Hop]
    ) -> list[Tensor]:
        """Compute the attention weights [E, H] of each layer, in the order of the hop's edges."""
        h, weights = self.embed(x, observed), []
        for index, hop in enumerate(hops):
            layer = self.layers[index]
            assert isinstance(layer, GraphTransformerLayer | GATLayer)
            weights.append(layer.attention_weights(h, hop))
            h = self.propagate(h, hop, index)
        return weights
