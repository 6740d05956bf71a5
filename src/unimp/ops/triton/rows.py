"""Functions with which Triton programs read and write rows of WIDTH numbers in BLOCK lanes."""
# ruff: noqa: N803
# mypy: disable-error-code="import-untyped, no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_piece(pieces):
    """Load row, begin, end and place of the piece of this program."""
    piece = pieces + tl.program_id(0).to(tl.int64) * 4
    row = tl.load(piece).to(tl.int64)
    place = tl.load(piece + 3).to(tl.int64)
    return row, tl.load(piece + 1), tl.load(piece + 2), place


@triton.jit
def load_row(row, WIDTH: tl.constexpr, BLOCK: tl.constexpr, EXACT: tl.constexpr):
    """Load WIDTH numbers, followed by zeros: [BLOCK]."""
    column = tl.arange(0, BLOCK)
    return tl.load(row + column, mask=column < WIDTH, other=0.0).to(EXACT)


@triton.jit
def load_rows(
    tensor,
    at,
    valid,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    EXACT: tl.constexpr,
    LAST: tl.constexpr = False,
):
    """Load WIDTH numbers from each offset, followed by zeros; invalid rows are 0: [n, BLOCK]."""
    column = tl.arange(0, BLOCK)[None, :]
    mask = valid[:, None] & (column < WIDTH)
    policy: tl.constexpr = "evict_first" if LAST else ""
    row = tensor + at[:, None] + column
    return tl.load(row, mask=mask, other=0.0, eviction_policy=policy).to(EXACT)


@triton.jit
def store_row(
    whole,
    parts,
    numbers,
    row,
    place,
    head,
    STRIDE: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Store a whole row in the result, or a piece of a hub in `parts`.

    STRIDE is the distance between rows of the result, which may be slices of a wider tensor.
    """
    column = tl.arange(0, BLOCK)
    if place < 0:
        tl.store(whole + row * STRIDE + head * WIDTH + column, numbers, mask=column < WIDTH)
    elif parts is not None:
        tl.store(parts + (place * HEADS + head) * WIDTH + column, numbers, mask=column < WIDTH)
