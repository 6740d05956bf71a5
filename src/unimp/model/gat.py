"""The layer of graph attention networks (GAT): scores are sums instead of products."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unimp.graph.hop import Hop
from unimp.model.layers import MessageLayer, attention_linear
from unimp.ops.dropout import dropout_of_edges
from unimp.ops.weighted_sum import edge_softmax, weighted_sum

SLOPE = 0.2
"""The negative slope of the leaky ReLU, as in the paper on graph attention networks."""


class GATLayer(MessageLayer):
    """Messages weighted by additive attention, as in PyG's GATConv.

    For each head c, with learned vectors a and b of width D:

        v_j = W h_j      α_ij = softmax_j( LeakyReLU( a·v_i + b·v_j ) )
        ĥ_i = ‖_c Σ_j α_ij v_j + bias        (the mean over heads instead of ‖_c if not `concat`)

    The bias has the width of ĥ: H·D, or D for averaged heads.
    """

    def __init__(
        self,
        in_width: int,
        width: int,
        *,
        heads: int,
        concat: bool = True,
        residual: str = "none",
        gate_bias: bool = True,
        attention_dropout: float = 0.0,
    ) -> None:
        super().__init__(width, heads=heads, concat=concat)
        self.attention_dropout = attention_dropout
        self.value = attention_linear(in_width, heads * width, bias=False)
        self.of_target = nn.Parameter(torch.empty(heads, width))
        self.of_source = nn.Parameter(torch.empty(heads, width))
        for vectors in (self.of_target, self.of_source):
            nn.init.xavier_uniform_(vectors)
        self.bias = nn.Parameter(torch.zeros(self.out_width))
        self._add_residual(in_width, residual, gate_bias)

    def messages(self, h: Tensor, hop: Hop) -> Tensor:
        value = self._by_head(self.value(h))
        weight = self._weigh(value, hop)
        weight = dropout_of_edges(weight, self.attention_dropout, self.training, hop)
        # [H, D], or [1, D], which the mean over heads leaves as it is.
        return weighted_sum(weight, value, hop) + self.bias.view(-1, self.width)

    def _weigh(self, value: Tensor, hop: Hop) -> Tensor:
        at_target = (value[: hop.num_targets] * self.of_target).sum(-1)  # [T, H]
        at_source = (value * self.of_source).sum(-1)  # [S, H]
        score = at_target.index_select(0, hop.target) + at_source.index_select(0, hop.source)
        return edge_softmax(F.leaky_relu(score, SLOPE), hop)

    @torch.no_grad()
    def attention_weights(self, h: Tensor, hop: Hop) -> Tensor:
        """The attention weights of this layer: [E, H]."""
        return self._weigh(self._by_head(self.value(h)), hop)
