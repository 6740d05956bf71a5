"""The graph convolution of Kipf and Welling (GCN), and the edge weights that it needs."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from unimp.graph.graph import Graph
from unimp.graph.hop import Hop
from unimp.model.layers import MessageLayer
from unimp.ops.products import Linear
from unimp.ops.weighted_sum import weighted_mean


class GCNLayer(MessageLayer):
    """Messages weighted by degrees: the symmetric normalization of the graph with self-loops.

        ĥ_i = W Σ_j h_j / √(d_i d_j) + b

    On sampled in-neighbors, the layer computes the mean of √(d_i/d_j) W h_j with the degrees of the
    whole graph. This equals the sum if all in-neighbors are present, and is an unbiased estimate of
    it otherwise. (In a random part the estimate has a bias: a self-loop is always present, a
    neighbor only sometimes.) The weights are the edge features that `with_convolution_weights`
    creates.
    """

    def __init__(
        self, in_width: int, width: int, *, residual: str = "none", gate_bias: bool = True
    ) -> None:
        super().__init__(width, heads=1, concat=True)
        self.linear = Linear(in_width, width, bias=False)
        nn.init.xavier_uniform_(self.linear.weight)
        self.bias = nn.Parameter(torch.zeros(width))
        self._add_residual(in_width, residual, gate_bias)

    def messages(self, h: Tensor, hop: Hop) -> Tensor:
        # Sum rows of the smaller width.
        if self.linear.in_features < self.width:
            rows = convolve(h, hop)
            return self._by_head(self.linear(rows) + self.bias)
        return self._by_head(convolve(self.linear(h), hop) + self.bias)


def convolve(rows: Tensor, hop: Hop) -> Tensor:
    """Compute Σ_j √(d_i/d_j) rows_j / s_i; s_i counts the in-edges in the hop: [S, C] → [T, C]."""
    assert hop.edge_attr is not None  # created by `with_convolution_weights`
    return weighted_mean(rows, hop, hop.edge_attr)


def with_convolution_weights(graph: Graph) -> Graph:
    """Add self-loops, and store √(d_i/d_j) as the only edge feature of an edge from j to i.

    d_i counts the in-edges of i and d_j the out-edges of j. The two degrees of a node are equal if
    every edge has a reverse edge.
    """
    graph = graph.without_edge_attr().with_self_loops()
    out_degree = torch.bincount(graph.source.long(), minlength=graph.num_nodes)
    weight = convolution_weight(
        graph.in_degree[graph.target.long()], out_degree[graph.source.long()]
    )
    return replace(graph, edge_id=None, edge_attr=weight)


def convolution_weight(in_degree: Tensor, out_degree: Tensor) -> Tensor:
    """Compute √(d_i/d_j) from in-degrees d_i of targets and out-degrees d_j of sources: [E, 1]."""
    return (in_degree / out_degree).float().sqrt()[:, None]
