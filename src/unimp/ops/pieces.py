"""Attention over in-edges that are given in pieces; the result is that of all in-edges at once.

As in flash attention, each target and head stores a mean over the pieces so far and the logarithm
of the sum of their weights. A piece P is computed by itself and then merged:

    L_P = log Σ_{j∈P} exp s_ij     x̄_P = Σ_{j∈P} exp(s_ij − L_P) h_j     w = sigmoid(L_P − L)
    x̄ ← x̄ + w (x̄_P − x̄)           L ← log(exp L + exp L_P)

The weights of keys and values are applied to the targets, as in `ops/absorbed.py`. The rows of
sources are therefore read as they are stored, and no piece has to project them again.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unimp.graph.hop import Hop
from unimp.ops import native
from unimp.ops.absorbed import multiply_by_head
from unimp.ops.fused import Operands, edges_of


class AttentionInPieces:
    """The attention of some targets, on the native core and without gradients.

    query: [T, H, D]; key: W_k [H, D, F]; edge_weight: W_e [H, D, d_e] or None.
    """

    def __init__(self, query: Tensor, key: Tensor, edge_weight: Tensor | None) -> None:
        self._scale = query.shape[2] ** -0.5
        self._query = multiply_by_head(query, key)
        self._edge_query = None if edge_weight is None else multiply_by_head(query, edge_weight)
        self._mean = self._edge_mean = query.new_empty(0)
        self._log_sum: Tensor | None = None  # [T, H] float64; −∞ where there is no in-edge yet

    @property
    def bytes_per_target(self) -> int:
        """The memory of queries and means, while pieces are added."""
        _, heads, width = self._query.shape
        edge_width = 0 if self._edge_query is None else self._edge_query.shape[2]
        return heads * (2 * self._query.element_size() * (width + edge_width) + 8)

    @torch.no_grad()
    def add(self, h: Tensor, hop: Hop) -> None:
        """Add the in-edges of a hop whose sources have the rows h [S, F]."""
        if not hop.num_edges:
            return
        edge_attr = None
        if self._edge_query is not None:
            assert hop.edge_attr is not None
            edge_attr = hop.edge_attr.to(h.dtype)
        edges, seed = edges_of(hop, "native", backward=False), torch.zeros((), dtype=torch.int64)
        given = Operands(self._query, h, h, self._edge_query, edge_attr, edges, 0.0, seed)
        found = native.forward(given, self._scale)
        empty = (hop.indptr[1:] == hop.indptr[:-1])[:, None]
        log_sum = found.log_sum.masked_fill_(empty, -torch.inf)
        if self._log_sum is None:
            self._mean, self._edge_mean, self._log_sum = found.out, found.edge_mean, log_sum
            return
        # Two times −∞ would be NaN: the target has no in-edge in any piece so far.
        share = torch.sigmoid(log_sum - self._log_sum).nan_to_num_(0.0).to(h.dtype)[..., None]
        self._mean.lerp_(found.out, share)
        if edge_attr is not None:
            self._edge_mean.lerp_(found.edge_mean, share)
        self._log_sum = torch.logaddexp(self._log_sum, log_sum)

    @torch.no_grad()
    def finish(self, value: Tensor, bias: Tensor, edge_weight: Tensor | None) -> Tensor:
        """Compute the messages [T, H, D]; value: W_v [H, D, F]; bias: [H, D], of values and edges.

        The message of a target without in-edges is 0.
        """
        if self._log_sum is None:
            return self._query.new_zeros(len(self._query), *bias.shape)
        message = multiply_by_head(self._mean, value.transpose(1, 2))
        if edge_weight is not None:
            message += multiply_by_head(self._edge_mean, edge_weight.transpose(1, 2))
        reached = (self._log_sum > -torch.inf).to(message.dtype)
        return message.addcmul_(reached[..., None], bias)
