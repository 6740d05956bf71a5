"""The residual step on GPU, in Triton: one pass in each direction; see `ops/residual.py`.

Each program computes partial sums over rows, and torch adds them, so every run gives the same bits.
"""
# ruff: noqa: N803
# mypy: disable-error-code="import-untyped, no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from unimp.ops.fused import exact_dtype
from unimp.ops.residual import Residual, RowStats, Sums, empty_forward
from unimp.ops.triton.launch import launch, parts_of, power_of_two
from unimp.ops.triton.rows import load_row, load_rows

PROGRAMS = 512
"""The largest number of programs of the backward pass, each with its own partial sums."""


def residual_forward(message: Tensor, kept: Tensor, residual: Residual) -> tuple[Tensor, RowStats]:
    """Run the forward pass; rows of `kept` may have a stride."""
    out, row_stats = empty_forward(message, residual)
    if len(message):
        shape = _shape(message, 2048)
        with torch.cuda.device_of(message):
            launch(
                forward_rows,
                (parts_of(len(message), shape["ROWS"]),),
                message,
                kept,
                *_vectors(residual),
                residual.gate_bias,
                out,
                *row_stats,
                len(message),
                MESSAGE_STRIDE=message.stride(0),
                KEPT_STRIDE=kept.stride(0),
                EPS=residual.eps,
                RELU=residual.relu,
                **shape,
            )
    return out, row_stats


def residual_backward(
    grad: Tensor,
    message: Tensor,
    kept: Tensor,
    residual: Residual,
    row_stats: RowStats,
    grad_kept: Tensor,
    log_sum: Tensor | None = None,
    terms: Tensor | None = None,
) -> tuple[Tensor, Sums]:
    """Run the backward pass; dr is written to `grad_kept`.

    If `terms` [T, H, 2] is given, with `log_sum` [T, H] of attention, L and dm·m of each head are
    written to it, as `attention.backward` needs them. `can_find_terms` states the sizes.
    """
    grad = grad if grad.stride(1) == 1 else grad.contiguous()
    exact = exact_dtype(message.dtype)
    width = message.shape[1]
    grad_message = message.new_empty(message.shape)
    shape = _shape(message, 1024)  # half as many numbers: four sums need registers too
    programs = min(parts_of(len(message), shape["ROWS"]), PROGRAMS)
    # Four vectors and one number per program in one row, so that one sum adds all of them.
    parts = message.new_zeros((max(programs, 1), 4 * width + 1), dtype=exact)
    if programs:
        with torch.cuda.device_of(message):
            launch(
                backward_rows,
                (programs,),
                grad,
                message,
                kept,
                *_vectors(residual),
                *row_stats,
                grad_message,
                grad_kept,
                parts,
                log_sum,
                terms,
                len(message),
                GRAD_STRIDE=grad.stride(0),
                MESSAGE_STRIDE=message.stride(0),
                KEPT_STRIDE=kept.stride(0),
                GRAD_KEPT_STRIDE=grad_kept.stride(0),
                RELU=residual.relu,
                HEADS=1 if terms is None else terms.shape[1],
                **shape,
            )
    total = parts.sum(0)
    return grad_message, Sums(total[-1:], *total[:-1].view(4, width))


def can_find_terms(heads: int, width: int) -> bool:
    """Whether heads of this width fill a tile exactly, so that each head is an equal part of it."""
    return heads * width == power_of_two(heads * width) and heads & (heads - 1) == 0


def _vectors(residual: Residual) -> list[Tensor | None]:
    vectors = (residual.on_kept, residual.on_message, residual.weight, residual.bias)
    return [None if t is None else t.contiguous() for t in vectors]


def _shape(message: Tensor, numbers: int) -> dict[str, Any]:
    """A tile of rows with this many numbers, on four warps, or more if one row is wider."""
    width = message.shape[1]
    block = power_of_two(width)
    return {
        "WIDTH": width,
        "BLOCK": block,
        "EXACT": tl.float64 if message.dtype == torch.float64 else tl.float32,
        "ROWS": max(1, numbers // block),
        "num_warps": min(max(4, 4 * block // numbers), 16),
    }


@triton.jit(do_not_specialize=["num_rows"])
def forward_rows(
    message,
    kept,
    on_kept,
    on_message,
    weight,
    bias,
    gate_bias,
    out,
    beta,
    mean,
    rstd,
    num_rows,
    MESSAGE_STRIDE: tl.constexpr,
    KEPT_STRIDE: tl.constexpr,
    EPS: tl.constexpr,
    RELU: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    EXACT: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Compute `out` and the saved numbers of ROWS rows."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    valid = row < num_rows
    column = tl.arange(0, BLOCK)
    m = load_rows(message, row * MESSAGE_STRIDE, valid, WIDTH, BLOCK, EXACT)
    r = load_rows(kept, row * KEPT_STRIDE, valid, WIDTH, BLOCK, EXACT)
    if on_kept is not None:
        a = load_row(on_kept, WIDTH, BLOCK, EXACT)
        b = load_row(on_message, WIDTH, BLOCK, EXACT)
        z = tl.sum(r * a[None, :] + m * b[None, :], axis=1)
        if gate_bias is not None:
            z += tl.load(gate_bias).to(EXACT)
        share = tl.sigmoid(z)
        tl.store(beta + row, share, mask=valid)
        y = m + share[:, None] * (r - m)
    else:
        y = m + r
    if weight is not None:
        center = tl.sum(y, axis=1) / WIDTH
        y = tl.where((column < WIDTH)[None, :], y - center[:, None], 0.0)
        scale = tl.rsqrt(tl.sum(y * y, axis=1) / WIDTH + EPS)
        tl.store(mean + row, center, mask=valid)
        tl.store(rstd + row, scale, mask=valid)
        w = load_row(weight, WIDTH, BLOCK, EXACT)
        y = y * scale[:, None] * w[None, :] + load_row(bias, WIDTH, BLOCK, EXACT)[None, :]
    if RELU:
        y = tl.where(y <= 0.0, 0.0, y)  # NaN stays NaN
    mask = valid[:, None] & (column < WIDTH)[None, :]
    tl.store(out + row[:, None] * WIDTH + column[None, :], y, mask=mask)


@triton.jit(do_not_specialize=["num_rows"])
def backward_rows(
    grad,
    message,
    kept,
    on_kept,
    on_message,
    weight,
    bias,
    beta,
    mean,
    rstd,
    grad_message,
    grad_kept,
    parts,
    log_sum,
    terms,
    num_rows,
    GRAD_STRIDE: tl.constexpr,
    MESSAGE_STRIDE: tl.constexpr,
    KEPT_STRIDE: tl.constexpr,
    GRAD_KEPT_STRIDE: tl.constexpr,
    RELU: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    EXACT: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Compute dm and dr of some rows, ROWS at a time, and the partial sums of this program."""
    column = tl.arange(0, BLOCK)
    if on_kept is not None:
        a = load_row(on_kept, WIDTH, BLOCK, EXACT)
        b = load_row(on_message, WIDTH, BLOCK, EXACT)
        # Rows of a tile have separate sums, which are added once at the end.
        da = tl.zeros([ROWS, BLOCK], EXACT)
        db = tl.zeros([ROWS, BLOCK], EXACT)
        dc = tl.zeros([ROWS], EXACT)
    if weight is not None:
        w = load_row(weight, WIDTH, BLOCK, EXACT)
        d = load_row(bias, WIDTH, BLOCK, EXACT)
        dw = tl.zeros([ROWS, BLOCK], EXACT)
        dd = tl.zeros([ROWS, BLOCK], EXACT)

    for start in range(tl.program_id(0) * ROWS, num_rows, tl.num_programs(0) * ROWS):
        row = tl.cast(start, tl.int64) + tl.arange(0, ROWS)
        valid = row < num_rows
        g = load_rows(grad, row * GRAD_STRIDE, valid, WIDTH, BLOCK, EXACT)
        m = load_rows(message, row * MESSAGE_STRIDE, valid, WIDTH, BLOCK, EXACT)
        r = load_rows(kept, row * KEPT_STRIDE, valid, WIDTH, BLOCK, EXACT)
        if on_kept is not None:
            share = tl.load(beta + row, mask=valid, other=0.0)
            y = m + share[:, None] * (r - m)
        else:
            y = m + r
        if weight is not None:
            scale = tl.load(rstd + row, mask=valid, other=0.0)
            x = (y - tl.load(mean + row, mask=valid, other=0.0)[:, None]) * scale[:, None]
            x = tl.where((column < WIDTH)[None, :], x, 0.0)
            if RELU:
                g = tl.where(x * w[None, :] + d[None, :] > 0.0, g, 0.0)
            dw += g * x
            dd += g
            g = g * w[None, :]
            g_mean = tl.sum(g, axis=1) / WIDTH
            gx_mean = tl.sum(g * x, axis=1) / WIDTH
            g = (g - g_mean[:, None] - x * gx_mean[:, None]) * scale[:, None]
            g = tl.where((column < WIDTH)[None, :], g, 0.0)
        elif RELU:
            g = tl.where(y > 0.0, g, 0.0)
        dm = g
        dr = g
        if on_kept is not None:
            dz = tl.sum(g * (r - m), axis=1) * share * (1.0 - share)
            dm = g * (1.0 - share)[:, None] + dz[:, None] * b[None, :]
            dr = g * share[:, None] + dz[:, None] * a[None, :]
            da += dz[:, None] * r
            db += dz[:, None] * m
            dc += dz
        mask = valid[:, None] & (column < WIDTH)[None, :]
        tl.store(grad_message + row[:, None] * WIDTH + column[None, :], dm, mask=mask)
        tl.store(grad_kept + row[:, None] * GRAD_KEPT_STRIDE + column[None, :], dr, mask=mask)
        if terms is not None:
            # Attention reads dm as it is stored, so the products use the rounded numbers.
            rounded = dm.to(grad_message.dtype.element_ty).to(EXACT)
            by_head = tl.reshape(rounded * m, [ROWS, HEADS, BLOCK // HEADS])
            cell = row[:, None] * HEADS + tl.arange(0, HEADS)[None, :]
            logs = tl.load(log_sum + cell, mask=valid[:, None], other=0.0)
            tl.store(terms + cell * 2, logs, mask=valid[:, None])
            tl.store(terms + cell * 2 + 1, tl.sum(by_head, axis=2), mask=valid[:, None])

    part = parts + tl.program_id(0) * (4 * WIDTH + 1)
    to = part + column
    if on_kept is not None:
        tl.store(to, tl.sum(da, axis=0), mask=column < WIDTH)
        tl.store(to + WIDTH, tl.sum(db, axis=0), mask=column < WIDTH)
        tl.store(part + 4 * WIDTH, tl.sum(dc, axis=0))
    if weight is not None:
        tl.store(to + 2 * WIDTH, tl.sum(dw, axis=0), mask=column < WIDTH)
        tl.store(to + 3 * WIDTH, tl.sum(dd, axis=0), mask=column < WIDTH)
