"""The graph convolution of Kipf and Welling, and the graph it runs on."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from unimp.graph.graph import Graph
from unimp.graph.hop import Hop
from unimp.model.layers import MessageLayer
from unimp.ops.weighted_sum import weighted_sum


class GCNLayer(MessageLayer):
    """Messages weighted by degrees: the symmetric normalization of the graph with self-loops.

        ĥ_i = W Σ_j h_j / √(d_i d_j) + b

    On sampled in-neighbors it is the mean of √(d_i/d_j) W h_j, with degrees of the whole graph: the
    same sum where all are there, and its unbiased estimate where some are. (In a random part it is
    not quite that: a node's own loop is always there, its neighbors now and then.) The weights are
    the edge features of a graph that `with_convolution_weights` made.
    """

    def __init__(
        self, in_width: int, width: int, *, residual: str = "none", gate_bias: bool = True
    ) -> None:
        super().__init__(width, heads=1, concat=True)
        self.linear = nn.Linear(in_width, width, bias=False)
        nn.init.xavier_uniform_(self.linear.weight)
        self.bias = nn.Parameter(torch.zeros(width))
        self._keep(in_width, residual, gate_bias)

    def messages(self, h: Tensor, hop: Hop) -> Tensor:
        # The narrower side is summed.
        if self.linear.in_features < self.width:
            rows = convolve(h, hop)
            return self._by_head(self.linear(rows) + self.bias)
        return self._by_head(convolve(self.linear(h), hop) + self.bias)


def convolve(rows: Tensor, hop: Hop) -> Tensor:
    """Σ_j √(d_i/d_j) rows_j / s_i, s_i the number of in-edges here: [S, C] → [T, C]."""
    assert hop.edge_attr is not None  # `with_convolution_weights` gave each edge its weight
    count = hop.indptr.diff().clamp(min=1).index_select(0, hop.target)[:, None]
    weight = hop.edge_attr / count  # in their own precision, whatever that of the rows
    exact = torch.promote_types(weight.dtype, rows.dtype)
    return weighted_sum(weight.to(exact), rows.to(exact)[:, None], hop).squeeze(1).to(rows.dtype)


def with_convolution_weights(graph: Graph) -> Graph:
    """The graph with self-loops, and √(d_i/d_j) as the one edge feature of an edge from j to i.

    d_i counts the in-edges of i, and d_j the out-edges of j, which is the same number where every
    edge has its reverse.
    """
    graph = graph.without_edge_attr().with_self_loops()
    out_degree = torch.bincount(graph.source.long(), minlength=graph.num_nodes)
    weight = convolution_weight(
        graph.in_degree[graph.target.long()], out_degree[graph.source.long()]
    )
    own = torch.arange(graph.num_edges, dtype=graph.edge_id.dtype, device=graph.device)
    return replace(graph, edge_id=own, edge_attr=weight)


def convolution_weight(in_degree: Tensor, out_degree: Tensor) -> Tensor:
    """√(d_i/d_j) of edges whose target has d_i in-edges and whose source d_j out-edges: [E, 1]."""
    return (in_degree / out_degree).float().sqrt()[:, None]
