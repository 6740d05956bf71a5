"""The projections of a graph transformer layer: queries, keys, values and the residual as one."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from unimp.ops.absorbed import BySources


class Shape(NamedTuple):
    """The properties of a layer apart from its weights."""

    heads: int
    width: int  # per head
    concat: bool  # whether heads are concatenated; if not, they are averaged
    dropout: float = 0.0
    eps: float = 1e-5  # of the norm
    relu: bool = False


class Projection:
    """The columns [q|r] of the targets and [k|v] of the sources, or their gradients.

    For a square hop they are columns of one tensor. If the weights of the sources are absorbed,
    [k|v] does not exist.
    """

    def __init__(
        self,
        h: Tensor,
        weight: Tensor,
        bias: Tensor,
        num_targets: int,
        shape: Shape,
        *,
        targets_only: bool,
    ) -> None:
        cut = len(weight) - 2 * shape.heads * shape.width
        if num_targets == len(h):
            whole = torch.addmm(bias, h, weight.t())
            self._set(whole[:, :cut], whole[:, cut:], shape)
            return
        of_targets = torch.addmm(bias[:cut], h[:num_targets], weight[:cut].t())
        of_sources = None if targets_only else torch.addmm(bias[cut:], h, weight[cut:].t())
        self._set(of_targets, of_sources, shape)

    @classmethod
    def of(cls, of_targets: Tensor, of_sources: Tensor | None, shape: Shape) -> Projection:
        made = cls.__new__(cls)
        made._set(of_targets, of_sources, shape)
        return made

    def _set(self, of_targets: Tensor, of_sources: Tensor | None, shape: Shape) -> None:
        self.of_targets, self.of_sources, self.shape = of_targets, of_sources, shape
        inner = shape.heads * shape.width
        self.query, self.kept = of_targets[:, :inner], of_targets[:, inner:]

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
        if self.of_sources is None:
            return self.of(torch.empty_like(self.of_targets), None, self.shape)
        cut, width = self.of_targets.shape[1], self.of_sources.shape[1]
        if self.is_square:
            whole = self.of_targets.new_empty(len(self.of_targets), cut + width)
            return self.of(whole[:, :cut], whole[:, cut:], self.shape)
        return self.of(
            torch.empty_like(self.of_targets), torch.empty_like(self.of_sources), self.shape
        )

    def project_back(
        self, h: Tensor, weight: Tensor, wants_h: bool, by_sources: BySources | None
    ) -> tuple[Tensor | None, Tensor, Tensor]:
        """Compute the gradients of h, the weight and the bias from those of the projection.

        `by_sources` contains the gradients through the sources if k and v were not computed.
        """
        cut = self.of_targets.shape[1]
        d_weight, d_bias = torch.empty_like(weight), weight.new_empty(len(weight))
        if self.is_square:
            # Both are columns of one tensor, which is multiplied by the weights once.
            whole = self.of_targets.as_strided(
                (len(h), len(weight)), (len(weight), 1), self.of_targets.storage_offset()
            )
            _project_back_weight(whole, h, d_weight, d_bias)
            return (whole @ weight if wants_h else None), d_weight, d_bias
        d_h = None
        if by_sources is not None:
            d_weight[cut:], d_bias[cut:] = by_sources.weight, by_sources.bias
            d_h = by_sources.h if wants_h else None
        elif self.of_sources is not None:
            _project_back_weight(self.of_sources, h, d_weight[cut:], d_bias[cut:])
            d_h = self.of_sources @ weight[cut:] if wants_h else None
        targets = h[: len(self.of_targets)]
        _project_back_weight(self.of_targets, targets, d_weight[:cut], d_bias[:cut])
        if d_h is not None:
            d_h[: len(targets)].addmm_(self.of_targets, weight[:cut])
        return d_h, d_weight, d_bias


def _project_back_weight(grad: Tensor, rows: Tensor, d_weight: Tensor, d_bias: Tensor) -> None:
    """Compute the gradients of the weight and bias of a projection of `rows`."""
    torch.mm(grad.t(), rows, out=d_weight)
    torch.mv(grad.t(), rows.new_ones(len(rows)), out=d_bias)
