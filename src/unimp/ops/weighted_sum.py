"""Weighted sums over in-edges, and the functions that compute weights: dot products and softmax.

Layers other than the graph transformer use them. No tensor is larger than edges × heads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from unimp.graph.hop import Hop
from unimp.ops.attention import HALF, without_autocast
from unimp.ops.sparse import Edges


def weighted_sum(weight: Tensor, value: Tensor, hop: Hop) -> Tensor:
    """Compute o_i = Σ_j w_ij v_j over the in-edges of i, for each head.

    weight [E, H], value [S, H, D] → [T, H, D].
    """
    return _in_single_precision(_sum, weight, value, hop=hop)


def weighted_mean(rows: Tensor, hop: Hop, weight: Tensor | None = None) -> Tensor:
    """Compute Σ_j w_ij rows_j / s_i; s_i counts the in-edges in the hop: [S, C] → [T, C].

    weight [E, 1]; without it, w_ij = 1. A target without in-edges gets zeros.
    """
    count = hop.indptr.diff().clamp(min=1).index_select(0, hop.target)[:, None]
    # In bf16, shares would be rounded.
    exact = torch.promote_types(torch.float32 if weight is None else weight.dtype, rows.dtype)
    share = count.to(exact).reciprocal() if weight is None else (weight / count).to(exact)
    return weighted_sum(share, rows.to(exact)[:, None], hop).squeeze(1).to(rows.dtype)


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
    """The gradients, with g that of o: dv_j = Σ_i w_ij g_i and dw_ij = g_i·v_j."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, value: Tensor, hop: Hop) -> Tensor:
        edges = Edges(hop)
        ctx.hop = hop
        ctx.save_for_backward(weight, value)
        heads = value.shape[1]
        sums = [edges.sum_sources(*_head(weight, value, h)) for h in range(heads)]
        return torch.stack(sums, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        weight, value = ctx.saved_tensors
        edges, grad = Edges(ctx.hop), grads[0]
        d_weight = d_value = None
        heads = range(value.shape[1])
        if ctx.needs_input_grad[0]:
            dots = [edges.dot(grad[:, h].contiguous(), value[:, h].contiguous()) for h in heads]
            d_weight = torch.stack(dots, 1)
        if ctx.needs_input_grad[1]:
            d_value = torch.stack([edges.sum_targets(*_head(weight, grad, h)) for h in heads], 1)
        return d_weight, d_value, None


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


def _head(weight: Tensor, rows: Tensor, h: int) -> tuple[Tensor, Tensor]:
    return weight[:, h].contiguous(), rows[:, h].contiguous()


# torch leaves `apply` untyped.
_sum: Callable[..., Any] = _WeightedSum.apply
_dot: Callable[..., Any] = _EdgeDot.apply
_softmax: Callable[..., Any] = _EdgeSoftmax.apply
