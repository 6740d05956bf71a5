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
"""The number of Triton programs. They occupy a part of the GPU while they wait for main memory.
This number is enough to keep the bus busy, and leaves most of the GPU to training, which runs at
the same time."""
ENTRIES = 4096
"""The numbers that a program reads at a time."""


def gather(nodes: Tensor, place: Tensor, hot: Tensor, x: Tensor) -> Tensor:
    """Return hot[place[i]] for each node i with place[i] ≥ 0, and x[i] for the others, as float32.

    nodes: [n] int64; place: [N] int32; hot: [H, F] on the GPU; x: [N, F] in pinned memory. Rows are
    read in the order of their addresses, because a random order takes about three times as long.
    """
    width = x.shape[1]
    out = torch.empty(len(nodes), width, device=nodes.device)
    nodes, order = nodes.sort()
    block = power_of_two(width)
    rows = max(1, ENTRIES // block)
    if out.numel():
        launch(
            gather_kernel,
            (min(PROGRAMS, parts_of(len(nodes), rows)),),
            *(out, nodes, order, place, hot, x, len(nodes)),
            ROWS=rows,
            WIDTH=width,
            BLOCK=block,
        )
    return out


@triton.jit(do_not_specialize=["count"])
def gather_kernel(
    out,
    nodes,
    order,
    place,
    hot,
    x,
    count,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Copy groups of ROWS rows; with p programs, every p-th group."""
    column = tl.arange(0, BLOCK)[None, :]
    for first in range(tl.program_id(0) * ROWS, count, tl.num_programs(0) * ROWS):
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
