"""Attention in the native core over rows that all heads share; see ops/absorbed.py."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from unimp.ops.fused import Edges, Forward
from unimp.ops.native import Arguments, attention_call, library


def forward(
    query: Tensor, rows: Tensor, edges: Edges, scale: float, dropout: float, seed: Tensor
) -> Forward:
    """Map query [T, H, F] and rows [S, F] to x̄ [T, H, F], A and L."""
    heads = query.shape[:2]
    result = Forward(
        torch.empty_like(query),
        query.new_empty(0),
        query.new_empty(heads),
        query.new_empty(heads, dtype=torch.float64),
    )
    call = _call(query, rows, result, edges, scale, dropout, seed)
    library().unimp_attention_forward(ctypes.byref(call.structure))
    return result


def backward(
    grad: Tensor,
    grad_mass: Tensor,
    query: Tensor,
    rows: Tensor,
    result: Forward,
    edges: Edges,
    scale: float,
    dropout: float,
    seed: Tensor,
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of query and rows from those of x̄ and A."""
    d_query, d_rows = torch.empty_like(query), torch.empty_like(rows)
    targets, heads, _ = query.shape
    call = _call(query, rows, result, edges, scale, dropout, seed)
    call.structure.grad_out_stride = grad.stride(0)
    call.structure.grad_query_stride = d_query.stride(0)
    call.structure.grad_key_stride = d_rows.stride(0)
    call.point(
        grad_out=grad,
        grad_mass=grad_mass,
        grad_query=d_query,
        grad_key=d_rows,
        by_target=query.new_empty(targets, 4 * heads),
        score_grad=query.new_empty(edges.source.numel(), heads),
    )
    library().unimp_attention_backward(ctypes.byref(call.structure))
    return d_query, d_rows


def _call(
    query: Tensor,
    rows: Tensor,
    result: Forward,
    edges: Edges,
    scale: float,
    dropout: float,
    seed: Tensor,
) -> Arguments:
    call = attention_call(query, rows, rows, None, None, result, edges, dropout, seed)
    call.structure.is_shared = True
    call.structure.scale = scale  # from the width of a head, not of a row
    return call
