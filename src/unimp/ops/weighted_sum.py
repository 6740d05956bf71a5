"""Weighted sums over in-edges, and the functions that compute weights: dot products and softmax.

Layers other than the graph transformer use them. No tensor is larger than edges × heads.
`sparse_product` multiplies sparse features by a weight matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from unimp.graph.hop import Hop
from unimp.ops.attention import HALF, without_autocast
from unimp.ops.row_sums import is_native, sum_columns, sum_rows
from unimp.ops.sparse import Edges


def weighted_sum(
    weight: Tensor | None, value: Tensor, hop: Hop, *, factor: Tensor | None = None
) -> Tensor:
    """Compute o_i = f_i Σ_j w_ij v_j over the in-edges of i, for each head.

    weight w [E, H], value v [S, H, D] → [T, H, D]; factor f [T] without gradient. If the weight or
    the factor is None, it counts as 1. Rows in half precision are summed in single precision.
    """
    with without_autocast(value.device.type):
        return _sum(weight, value, hop, factor)  # type: ignore[no-any-return]


def weighted_mean(rows: Tensor, hop: Hop, weight: Tensor | None = None) -> Tensor:
    """Compute Σ_j w_ij rows_j / s_i; s_i counts the in-edges in the hop: [S, C] → [T, C].

    weight [E, 1]; without it, w_ij = 1. A target without in-edges gets zeros.
    """
    factor = hop.indptr.diff().clamp(min=1).reciprocal()
    return weighted_sum(weight, rows[:, None], hop, factor=factor).squeeze(1)


def sparse_product(indptr: Tensor, column: Tensor, value: Tensor, table: Tensor) -> Tensor:
    """Compute Σ_k x_k table[column_k] over the entries k of each row: [columns, D] → [rows, D].

    The values x [entries] and the columns of each row are those of `SparseFeatures`.
    """
    if is_native(table) and not value.requires_grad:
        return _product(indptr, column, value, table)  # type: ignore[no-any-return]
    return F.embedding_bag(
        column,
        table,
        indptr.to(column.dtype),
        mode="sum",
        per_sample_weights=value,
        include_last_offset=True,
    )


def edge_softmax(score: Tensor, hop: Hop) -> Tensor:
    """Compute w_ij = softmax_j s_ij over the in-edges of each target and head: [E, H] → [E, H]."""
    return _in_single_precision(_softmax, score, hop=hop)


def edge_dot(targets: Tensor, sources: Tensor, hop: Hop) -> Tensor:
    """Compute t_i·s_j for each edge from j to i: targets [T, D], sources [S, D] → [E]."""
    return _in_single_precision(_dot, targets, sources, hop=hop)


def _in_single_precision(call: Callable[..., Any], *operands: Tensor, hop: Hop) -> Tensor:
    """Compute in single precision if operands have half: torch.sparse hardly supports half."""
    out_dtype = operands[-1].dtype
    rows = (t.float() if t.dtype in HALF else t for t in operands)
    with without_autocast(operands[0].device.type):
        result: Tensor = call(*rows, hop)
    return result.to(out_dtype)


class _WeightedSum(torch.autograd.Function):
    """The gradients, with g that of o: dv_j = Σ_i f_i w_ij g_i and dw_ij = f_i g_i·v_j."""

    @staticmethod
    def forward(
        ctx: Any, weight: Tensor | None, value: Tensor, hop: Hop, factor: Tensor | None
    ) -> Tensor:
        ctx.hop = hop
        ctx.save_for_backward(weight, value, factor)
        return sum_rows(hop.indptr, hop.source, weight, value, row_factor=factor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        weight, value, factor = ctx.saved_tensors
        grad, d_weight, d_value = grads[0], None, None
        if ctx.needs_input_grad[0]:
            exact = torch.promote_types(value.dtype, torch.float32)
            scaled = grad.to(exact) if factor is None else grad * factor[:, None, None]
            edges, rows = Edges(ctx.hop), value.to(exact)
            dots = [
                edges.dot(scaled[:, h].to(exact).contiguous(), rows[:, h].contiguous())
                for h in range(value.shape[1])
            ]
            d_weight = torch.stack(dots, 1).to(weight.dtype)
        if ctx.needs_input_grad[1]:
            indptr, target, slot = ctx.hop.transpose
            d_value = sum_rows(indptr, target, weight, grad, slot=slot, column_factor=factor)
        return d_weight, d_value, None, None


class _SparseProduct(torch.autograd.Function):
    """The gradient, with g that of the product: d table_c = Σ_k x_k g_i over the entries k of
    column c, with i the row of k.
    """

    @staticmethod
    def forward(ctx: Any, indptr: Tensor, column: Tensor, value: Tensor, table: Tensor) -> Tensor:
        ctx.save_for_backward(indptr, column, value)
        ctx.columns = len(table)
        return sum_rows(indptr, column, value, table)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        indptr, column, value = ctx.saved_tensors
        return None, None, None, sum_columns(indptr, column, value, grads[0], ctx.columns)


class _EdgeDot(torch.autograd.Function):
    """The gradients, with g that of the product: dt_i = Σ_j g_ij s_j and ds_j = Σ_i g_ij t_i."""

    @staticmethod
    def forward(ctx: Any, targets: Tensor, sources: Tensor, hop: Hop) -> Tensor:
        ctx.hop = hop
        ctx.save_for_backward(targets, sources)
        return Edges(hop).dot(targets.contiguous(), sources.contiguous())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        targets, sources = ctx.saved_tensors
        edges, grad = Edges(ctx.hop), grads[0].contiguous()
        d_targets = edges.sum_sources(grad, sources.contiguous())
        return d_targets, edges.sum_targets(grad, targets.contiguous()), None


class _EdgeSoftmax(torch.autograd.Function):
    """The gradient, with g that of w: ds_ij = w_ij (g_ij − Σ_k w_ik g_ik)."""

    @staticmethod
    def forward(ctx: Any, score: Tensor, hop: Hop) -> Tensor:
        edges = Edges(hop)
        weight = score.new_empty(score.shape[1], len(score))
        for h, out in enumerate(weight):
            edges.softmax(score[:, h].contiguous(), out=out)
        weight = weight.t()
        ctx.hop = hop
        ctx.save_for_backward(weight)
        return weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        (weight,) = ctx.saved_tensors
        edges, through = Edges(ctx.hop), weight * grads[0]
        totals = [edges.total(through[:, h].contiguous()) for h in range(weight.shape[1])]
        total = torch.stack(totals, 1).index_select(0, ctx.hop.target)
        return through - weight * total, None


# torch leaves `apply` untyped.
_sum: Callable[..., Any] = _WeightedSum.apply
_product: Callable[..., Any] = _SparseProduct.apply
_dot: Callable[..., Any] = _EdgeDot.apply
_softmax: Callable[..., Any] = _EdgeSoftmax.apply
