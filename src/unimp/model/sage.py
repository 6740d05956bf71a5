"""The layer of GraphSAGE: the mean of the in-neighbors."""

from __future__ import annotations

from torch import Tensor

from unimp.graph.hop import Hop
from unimp.model.layers import MessageLayer
from unimp.ops.products import Linear, linear
from unimp.ops.weighted_sum import weighted_mean


class SAGELayer(MessageLayer):
    """The mean of the in-neighbors after a linear map, as in PyG's SAGEConv.

        ĥ_i = W mean_j h_j + b

    A node's own row is added by the residual `simple`. The mean of sampled in-neighbors is an
    unbiased estimate of that of all.
    """

    def __init__(
        self, in_width: int, width: int, *, residual: str = "simple", gate_bias: bool = True
    ) -> None:
        super().__init__(width, heads=1, concat=True)
        self.linear = Linear(in_width, width)
        self._add_residual(in_width, residual, gate_bias)

    def messages(self, h: Tensor, hop: Hop) -> Tensor:
        # Average rows of the smaller width. The bias follows, as some nodes have no in-neighbors.
        if self.linear.in_features < self.width:
            return self._by_head(self.linear(weighted_mean(h, hop)))
        rows = weighted_mean(linear(h, self.linear.weight), hop)
        return self._by_head(rows + self.linear.bias)
