"""The residual step in the native core; see ops/residual.py for the equations."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from unimp.ops.fused import exact_dtype
from unimp.ops.native import Arguments, ResidualArguments, library
from unimp.ops.residual import Residual, RowStats, Sums, empty_forward

CHUNK = 2048  # rows per partial sum: kChunk in residual.cpp


def residual_forward(message: Tensor, kept: Tensor, residual: Residual) -> tuple[Tensor, RowStats]:
    """Run the forward pass."""
    out, row_stats = empty_forward(message, residual)
    call = _call(message, kept, residual, row_stats)
    call.point(out=out)
    library().unimp_residual_forward(ctypes.byref(call.structure))
    return out, row_stats


def residual_backward(
    grad: Tensor,
    message: Tensor,
    kept: Tensor,
    residual: Residual,
    row_stats: RowStats,
    grad_kept: Tensor,
) -> tuple[Tensor, Sums]:
    """Run the backward pass; dr is written to `grad_kept`."""
    grad = grad if grad.stride(1) == 1 else grad.contiguous()
    grad_message = torch.empty_like(message, memory_format=torch.contiguous_format)
    rows, width = message.shape
    chunks = (rows + CHUNK - 1) // CHUNK
    parts = message.new_zeros(chunks, 4 * width + 1, dtype=exact_dtype(message.dtype))
    call = _call(message, kept, residual, row_stats)
    call.structure.grad_stride = grad.stride(0)
    call.structure.grad_kept_stride = grad_kept.stride(0)
    call.point(grad=grad, grad_message=grad_message, grad_kept=grad_kept)
    call.point_exact(parts=parts)
    library().unimp_residual_backward(ctypes.byref(call.structure))
    sums = parts.sum(0)
    return grad_message, Sums(sums[-1:], *sums[:-1].view(4, width))


def _call(message: Tensor, kept: Tensor, residual: Residual, row_stats: RowStats) -> Arguments:
    call = Arguments(
        ResidualArguments(
            rows=message.shape[0],
            width=message.shape[1],
            message_stride=message.stride(0),
            kept_stride=kept.stride(0),
            is_double=message.dtype == torch.float64,
            is_bf16=message.dtype == torch.bfloat16,
            relu=residual.relu,
            threads=torch.get_num_threads(),
            eps=residual.eps,
        ),
        message.dtype,
    )
    call.point(message=message, kept=kept)
    call.point_exact(**row_stats._asdict())
    weights = residual._asdict()
    del weights["eps"], weights["relu"]
    exact = exact_dtype(message.dtype)
    call.point_exact(
        **{k: None if v is None else v.to(exact).contiguous() for k, v in weights.items()}
    )
    return call
