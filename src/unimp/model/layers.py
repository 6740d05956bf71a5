"""The graph transformer layer (equations 3 to 5 of the paper) and the encoders of its inputs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unimp.config.choices import Backend, Norm
from unimp.graph.features import SparseFeatures
from unimp.graph.hop import Hop
from unimp.ops.attention import attention_weights, graph_attention
from unimp.ops.dropout import dropout
from unimp.ops.layer import (
    Weights,
    attention_layer,
    attention_of_rows,
    can_fuse,
    can_store_projections,
    project_rows,
)
from unimp.ops.pieces import AttentionInPieces
from unimp.ops.products import linear
from unimp.ops.projection import Shape
from unimp.ops.residual import Residual, gate_vectors, mix
from unimp.ops.weighted_sum import sparse_product


class BatchNorm(nn.BatchNorm1d):
    """The norm of columns over the rows of a batch; in evaluation, a fixed affine map of each row.

    One row has no variance, so a training batch of one row uses the running statistics too.
    """

    def forward(self, rows: Tensor) -> Tensor:
        if self.training and len(rows) > 1:
            return super().forward(rows)
        mean, variance = self.running_mean, self.running_var
        return F.batch_norm(rows, mean, variance, self.weight, self.bias, eps=self.eps)


NORMS: dict[Norm, Callable[[int], nn.Module]] = {
    "layer": nn.LayerNorm,
    "batch": BatchNorm,
    "none": nn.Identity,
}
"""How a norm of hidden rows is created for a width."""

FusedNorm = nn.LayerNorm | nn.Identity
"""Norms that a layer may compute together with its residual and the ReLU."""


class MessageLayer(nn.Module):
    """One round of messages and a residual connection.

    ĥ_i is the message that node i receives over its in-edges. Heads are concatenated, or averaged
    if not `concat`. With r_i = W_r h_i + b_r, the residual is one of

        none     h'_i = ĥ_i
        simple   h'_i = ĥ_i + r_i
        gated    h'_i = (1 − β_i) ĥ_i + β_i r_i,  β_i = sigmoid( w_g·[r_i ; ĥ_i ; ĥ_i − r_i] + b_g )

    Norm, ReLU and dropout belong to the model, which omits them after the last layer.
    """

    skip: nn.Linear | None
    gate: nn.Linear | None

    def __init__(self, width: int, *, heads: int, concat: bool) -> None:
        super().__init__()
        self.width, self.heads, self.concat = width, heads, concat
        self.out_width = heads * width if concat else width

    def _add_residual(self, in_width: int, residual: str, gate_bias: bool) -> None:
        """Create the weights of the residual; last, so that other initial weights do not change."""
        self.skip = nn.Linear(in_width, self.out_width) if residual != "none" else None
        self.gate = (
            nn.Linear(3 * self.out_width, 1, bias=gate_bias) if residual == "gated" else None
        )

    def messages(self, h: Tensor, hop: Hop) -> Tensor:
        """Compute the messages of all heads: h [num_sources, in_width] → [num_targets, H, D]."""
        raise NotImplementedError

    def forward(self, h: Tensor, hop: Hop, norm: FusedNorm | None = None) -> Tensor:
        """Run the layer: h [num_sources, in_width] → [num_targets, out_width].

        With `norm`, the norm and a ReLU follow.
        """
        return self.after_messages(self.messages(h, hop), h[: hop.num_targets], norm)

    def after_messages(self, message: Tensor, h: Tensor, norm: FusedNorm | None = None) -> Tensor:
        """Compute the output from messages [T, H, D] and the rows h [T, in_width] of targets."""
        message = message.flatten(1) if self.concat else message.mean(1)
        if self.skip is None:
            return message if norm is None else F.relu(norm(message))
        return mix(message, self.skip(h), self._residual(norm))

    def _residual(self, norm: FusedNorm | None) -> Residual:
        """The step that follows the message."""
        step = Residual()
        if self.gate is not None:
            step = Residual(*gate_vectors(self.gate.weight), self.gate.bias)
        if isinstance(norm, nn.LayerNorm):
            step = step._replace(weight=norm.weight, bias=norm.bias, eps=norm.eps)
        return step._replace(relu=norm is not None)

    def _by_head(self, rows: Tensor) -> Tensor:
        return rows.view(-1, self.heads, self.width)


class GraphTransformerLayer(MessageLayer):
    """Messages weighted by dot-product attention.

    For each head c, an edge from j to i, and encoded edge features W_e e_ij + b_e:

        q_i = W_q h_i + b_q    k_j = W_k h_j + b_k    v_j = W_v h_j + b_v
        α_ij = softmax_j( q_i·(k_j + W_e e_ij + b_e) / √D )
        ĥ_i = ‖_c Σ_j α_ij (v_j + W_e e_ij + b_e)        (the mean over heads if not `concat`)
    """

    def __init__(
        self,
        in_width: int,
        width: int,
        *,
        heads: int,
        concat: bool = True,
        residual: str = "simple",
        gate_bias: bool = True,
        edge_encoder: EdgeEncoder | None = None,
        attention_dropout: float = 0.0,
        backend: Backend = "auto",
    ) -> None:
        super().__init__(width, heads=heads, concat=concat)
        self.attention_dropout, self.backend = attention_dropout, backend
        self.query = attention_linear(in_width, heads * width)
        self.key = attention_linear(in_width, heads * width)
        self.value = attention_linear(in_width, heads * width)
        self._add_residual(in_width, residual, gate_bias)
        self.edge_encoder = edge_encoder

    def forward(self, h: Tensor, hop: Hop, norm: FusedNorm | None = None) -> Tensor:
        """Run the layer as `MessageLayer.forward` does.

        If a fused kernel is available, the whole layer is one autograd function with equal results.
        """
        if self.skip is not None and can_fuse(h, hop, self.backend):
            return self._fused(self.skip, h, hop, norm)
        return super().forward(h, hop, norm)

    def _fused(self, skip: nn.Linear, h: Tensor, hop: Hop, norm: FusedNorm | None) -> Tensor:
        weights, shape = self._weights(skip, norm), self._shape(norm)
        return attention_layer(h, hop, weights, shape, seed=self._seed(h), backend=self.backend)

    def _weights(self, skip: nn.Linear, norm: FusedNorm | None) -> Weights:
        projections = (self.query, skip, self.key, self.value)
        further = (self.edge_encoder, self.gate, norm)
        return Weights._make(
            [
                *(linear.weight for linear in projections),
                *(linear.bias for linear in projections),
                *(part for module in further for part in _weight_and_bias(module)),
            ]
        )

    def _shape(self, norm: FusedNorm | None) -> Shape:
        eps = norm.eps if isinstance(norm, nn.LayerNorm) else 0.0
        return Shape(
            self.heads, self.width, self.concat, self._dropout(), eps, relu=norm is not None
        )

    def project(self, h: Tensor) -> Tensor | None:
        """Compute the rows [q|r|k|v] of h for `of_projected`; None without the native kernel."""
        if self.skip is None or not can_store_projections(h, self.backend):
            return None
        return project_rows(h, self._weights(self.skip, None))

    def of_projected(
        self, rows: Tensor, targets: Tensor, hop: Hop, norm: FusedNorm | None = None
    ) -> Tensor:
        """Run the layer without gradients on projected rows of all sources of the hop."""
        assert self.skip is not None
        return attention_of_rows(
            rows, targets, hop, self._weights(self.skip, norm), self._shape(norm)
        )

    def messages(self, h: Tensor, hop: Hop) -> Tensor:
        encoder = self.edge_encoder
        return graph_attention(
            self._by_head(self.query(h[: hop.num_targets])),
            self._by_head(self.key(h)),
            self._by_head(self.value(h)),
            hop,
            edge_weight=self._edge_weight(),
            edge_bias=None if encoder is None else encoder.bias.view(self.heads, self.width),
            dropout=self._dropout(),
            seed=self._seed(h),
            backend=self.backend,
        )

    def in_pieces(self, h: Tensor, norm: nn.Module | None) -> TransformerInPieces | None:
        """Start the layer for targets with rows h; None without the native kernel."""
        can_run = can_store_projections(h, self.backend)
        return TransformerInPieces(self, h, norm) if can_run else None

    def _dropout(self) -> float:
        return self.attention_dropout if self.training else 0.0

    def _seed(self, h: Tensor) -> Tensor | int:
        return torch.randint(2**31, (), device=h.device) if self._dropout() else 0

    def attention_weights(self, h: Tensor, hop: Hop) -> Tensor:
        """Compute the attention weights of this layer: [E, H]."""
        query, key = self.query(h[: hop.num_targets]), self.key(h)
        return attention_weights(
            self._by_head(query), self._by_head(key), hop, edge_weight=self._edge_weight()
        )

    def _edge_weight(self) -> Tensor | None:
        encoder = self.edge_encoder
        return None if encoder is None else encoder.weight.view(self.heads, self.width, -1)


class TransformerInPieces:
    """A graph transformer layer for some targets whose in-edges are given in pieces."""

    @torch.no_grad()
    def __init__(self, layer: GraphTransformerLayer, h: Tensor, norm: nn.Module | None) -> None:
        self._layer, self._h, self._norm = layer, h, norm
        query = layer.query(h).view(len(h), layer.heads, layer.width)
        by_head = (layer.heads, layer.width, -1)
        encoder = layer.edge_encoder
        self._attention = AttentionInPieces(
            query,
            layer.key.weight.view(by_head),
            None if encoder is None else encoder.weight.view(by_head),
        )

    @property
    def bytes_per_target(self) -> int:
        return self._attention.bytes_per_target + self._h.element_size() * self._h.shape[1]

    def add(self, h: Tensor, hop: Hop) -> None:
        self._attention.add(h, hop)

    @torch.no_grad()
    def finish(self) -> Tensor:
        layer, norm, by_head = self._layer, self._norm, (self._layer.heads, self._layer.width)
        encoder, bias = layer.edge_encoder, layer.value.bias.view(by_head)
        edge_weight = None
        if encoder is not None:
            edge_weight, bias = encoder.weight.view(*by_head, -1), bias + encoder.bias.view(by_head)
        message = self._attention.finish(layer.value.weight.view(*by_head, -1), bias, edge_weight)
        if norm is None or isinstance(norm, FusedNorm):
            return layer.after_messages(message, self._h, norm)
        return F.relu(norm(layer.after_messages(message, self._h)))


def _weight_and_bias(module: nn.Module | None) -> tuple[Tensor | None, Tensor | None]:
    return getattr(module, "weight", None), getattr(module, "bias", None)


class EdgeEncoder(nn.Linear):
    """A linear map of edge features to the width of keys and values, per layer or shared.

    It is never applied to an edge: attention uses its weights directly (see `graph_attention`).
    """


class FeatureEncoder(nn.Module):
    """A linear map and a norm from wide or sparse node features to the width of the model.

    Sparse features are a weighted sum of rows of the weight matrix; they never become dense.
    """

    def __init__(self, in_width: int, width: int, norm: Norm = "layer") -> None:
        super().__init__()
        self.linear = nn.Linear(in_width, width)
        self.norm = NORMS[norm](width)

    def forward(self, x: Tensor | SparseFeatures) -> Tensor:
        rows = project(x, self.linear.weight, self.linear.bias)
        return self.norm(rows)  # type: ignore[no-any-return]


def project(
    x: Tensor | SparseFeatures, weight: Tensor, bias: Tensor | None = None, *, drop: float = 0.0
) -> Tensor:
    """Compute dropout(x) Wᵀ + b from dense or sparse features: [N, F] → [N, width].

    `drop` is the rate of the dropout on the entries of x.
    """
    if not isinstance(x, SparseFeatures):
        return linear(dropout(x, drop, training=True), weight, bias)
    value = dropout(x.value, drop, training=True, entries=(x.indptr, x.column))
    rows = sparse_product(x.indptr, x.column, value, weight.t().contiguous())
    return rows if bias is None else rows + bias


class LabelTable(nn.Module):
    """One learned vector per class; a node whose label is not observed gets zeros."""

    def __init__(self, num_classes: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(num_classes, width)  # starts from N(0, 1), as the authors' does

    def forward(self, observed: Tensor) -> Tensor:
        """Embed labels: observed [N], UNLABELED where not observed → [N, width]."""
        seen = observed >= 0
        rows: Tensor = self.table(observed.clamp(min=0))
        return rows * seen[:, None]


class LabelEncoder(nn.Module):
    """A linear map and a LayerNorm of binary labels; a row without observed entries gets zeros.

    A missing entry of an observed row counts as 0. An observed row of zeros still gets the bias,
    because it carries information that a hidden row does not.
    """

    def __init__(self, num_tasks: int, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(num_tasks, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, observed: Tensor) -> Tensor:
        """Embed labels: observed [N, T] → [N, width]."""
        seen = (observed >= 0).any(1)
        rows = self.linear(observed.clamp(min=0).to(self.linear.weight.dtype))
        return self.norm(rows) * seen[:, None]  # type: ignore[no-any-return]


def attention_linear(in_width: int, out_width: int, *, bias: bool = True) -> nn.Linear:
    """Create a linear map with Xavier-uniform weights and zero bias.

    The authors initialize q, k and v this way, and results depend on it.
    """
    linear = nn.Linear(in_width, out_width, bias=bias)
    nn.init.xavier_uniform_(linear.weight)
    if bias:
        nn.init.zeros_(linear.bias)
    return linear
