"""The projections of a graph transformer layer: queries, keys, values and the residual as one."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from unimp.ops.products import linear, times_weight, weight_gradient


class Shape(NamedTuple):
    """The properties of a layer apart from its weights."""

    heads: int
    width: int  # per head
    concat: bool  # whether heads are concatenated; if not, they are averaged
    dropout: float = 0.0
    eps: float = 1e-5  # of the norm
    relu: bool = False
    kept_first: bool = True  # the order of the gate's weight; see `residual.gate_vectors`


class Projection(NamedTuple):
    """The columns [q|r] of the targets and [k|v] of the sources, or their gradients.

    For a square hop they are columns of one tensor. If the weights of the sources are absorbed,
    [k|v] does not exist.
    """

    of_targets: Tensor
    of_sources: Tensor | None
    shape: Shape

    @property
    def query(self) -> Tensor:
        return self.of_targets[:, : self.shape.heads * self.shape.width]

    @property
    def kept(self) -> Tensor:
        return self.of_targets[:, self.shape.heads * self.shape.width :]

    def by_head(self, rows: Tensor) -> Tensor:
        return rows.view(-1, self.shape.heads, self.shape.width)

    def queries_keys_values(self) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v by head."""
        assert self.of_sources is not None
        keys, values = self.of_sources.chunk(2, 1)
        return self.by_head(self.query), self.by_head(keys), self.by_head(values)

    @property
    def is_square(self) -> bool:
        return self.of_sources is not None and len(self.of_targets) == len(self.of_sources)

    def like(self) -> Projection:
        """Allocate a projection of the same shape."""
        targets, sources = self.of_targets, self.of_sources
        if sources is None:
            return Projection(torch.empty_like(targets), None, self.shape)
        if self.is_square:
            cut, columns = targets.shape[1], targets.shape[1] + sources.shape[1]
            whole = targets.new_empty(len(targets), columns)
            return Projection(whole[:, :cut], whole[:, cut:], self.shape)
        return Projection(torch.empty_like(targets), torch.empty_like(sources), self.shape)

    def project_back(
        self, h: Tensor, weight: Tensor, wants_h: bool, d_h: Tensor | None = None
    ) -> tuple[Tensor | None, Tensor, Tensor]:
        """Compute the gradients of h, the weight and the bias from those of the projection.

        `d_h` is the gradient through the sources if k and v were not computed; the weight is then
        that of the targets alone.
        """
        cut = self.of_targets.shape[1]
        d_weight, d_bias = torch.empty_like(weight), weight.new_empty(len(weight))
        if self.is_square:
            # Both are columns of one tensor, which is multiplied by the weights once.
            whole = whole_of(self.of_targets, len(weight))
            _project_back_weight(whole, h, d_weight, d_bias)
            return (times_weight(whole, weight) if wants_h else None), d_weight, d_bias
        if self.of_sources is not None:
            _project_back_weight(self.of_sources, h, d_weight[cut:], d_bias[cut:])
            d_h = times_weight(self.of_sources, weight[cut:]) if wants_h else None
        targets = h[: len(self.of_targets)]
        _project_back_weight(self.of_targets, targets, d_weight[:cut], d_bias[:cut])
        if not wants_h or d_h is None:
            return None, d_weight, d_bias
        times_weight(self.of_targets, weight[:cut], onto=d_h[: len(targets)])
        return d_h, d_weight, d_bias


def project(h: Tensor, weight: Tensor, bias: Tensor, num_targets: int, shape: Shape) -> Projection:
    """Compute the projection of h [S, F], of which the first rows are targets."""
    cut = len(weight) - 2 * shape.heads * shape.width
    if num_targets == len(h):
        whole = linear(h, weight, bias)
        return Projection(whole[:, :cut], whole[:, cut:], shape)
    of_targets = linear(h[:num_targets], weight[:cut], bias[:cut])
    return Projection(of_targets, linear(h, weight[cut:], bias[cut:]), shape)


def whole_of(of_targets: Tensor, columns: int) -> Tensor:
    """The tensor of a square hop whose first columns are the projection of the targets."""
    size = (len(of_targets), columns)
    return of_targets.as_strided(size, of_targets.stride(), of_targets.storage_offset())


def _project_back_weight(grad: Tensor, rows: Tensor, d_weight: Tensor, d_bias: Tensor) -> None:
    """Compute the gradients of the weight and bias of a projection of `rows`."""
    ones = rows.new_ones(len(rows))
    weight_gradient(grad, rows, out=d_weight)
    if grad.dtype == torch.bfloat16 and grad.is_cpu:
        d_bias.copy_((ones[None] @ grad)[0])  # faster than gradᵀ 1
    else:
        torch.mv(grad.t(), ones, out=d_bias)
