"""Gather rows from two places: the memory of the GPU, and pinned main memory."""
# ruff: noqa: N803
# mypy: disable-error-code="import-untyped, no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from unimp.ops.triton.launch import launch, parts_of, power_of_two

PROGRAMS = 128
"""Programs that wait for main memory occupy a part of the GPU. So few of them suffice to keep the
bus busy, and leave the rest to the kernels of training, which run at the same time."""
ENTRIES = 4096
"""The numbers that a program reads at a time."""


def gather(nodes: Tensor, place: Tensor, hot: Tensor, x: Tensor) -> Tensor:
    """Return hot[place[i]] for each node i with place[i] ≥ 0, and x[i] for the others, as float32.

    nodes: [n] int64; place: [N] int32; hot: [H, F] on the GPU; x: [N, F] in pinned memory. Rows are
    read in the order of their addresses: in a random order, the bus is a third as fast.
    """
    width = x.shape[1]
    out = torch.empty(len(nodes), width, device=nodes.device)
    nodes, order = nodes.sort()
    block = power_of_two(width)
    rows = max(1, ENTRIES // block)
    programs = min(PROGRAMS, parts_of(len(nodes), rows))
    if out.numel():
        launch(
            gather_kernel,
            (programs,),
            *(out, nodes, order, place, hot, x, len(nodes)),
            PROGRAMS=programs,
            ROWS=rows,
            WIDTH=width,
            BLOCK=block,
        )
    return out


@triton.jit
def gather_kernel(
    out,
    nodes,
    order,
    place,
    hot,
    x,
    count,
    PROGRAMS: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Copy every PROGRAMS-th group of ROWS rows."""
    column = tl.arange(0, BLOCK)[None, :]
    for first in range(tl.program_id(0) * ROWS, count, PROGRAMS * ROWS):
        row = (first + tl.arange(0, ROWS)).to(tl.int64)
        valid = row < count
        node = tl.load(nodes + row, mask=valid, other=0)
        at = tl.load(place + node, mask=valid, other=-1).to(tl.int64)
        mask = valid[:, None] & (column < WIDTH)
        is_hot = (at >= 0)[:, None]
        near = tl.load(hot + at[:, None] * WIDTH + column, mask=mask & is_hot, other=0.0)
        far = tl.load(x + node[:, None] * WIDTH + column, mask=mask & (at < 0)[:, None], other=0.0)
        rows = tl.where(is_hot, near, far).to(tl.float32)
        to = tl.load(order + row, mask=valid, other=0)
        tl.store(out + to[:, None] * WIDTH + column, rows, mask=mask)
