"""How Triton programs read and write rows: of WIDTH numbers, in blocks of a power of two."""
# ruff: noqa: N803
# mypy: disable-error-code="import-untyped, no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_piece(pieces):
    """Row, begin, end and place of this program's piece."""
    piece = pieces + tl.program_id(0).to(tl.int64) * 4
    row = tl.load(piece).to(tl.int64)
    place = tl.load(piece + 3).to(tl.int64)
    return row, tl.load(piece + 1), tl.load(piece + 2), place


@triton.jit
def load_row(row, WIDTH: tl.constexpr, BLOCK: tl.constexpr, EXACT: tl.constexpr):
    """WIDTH numbers, then zeros: [BLOCK]."""
    column = tl.arange(0, BLOCK)
    return tl.load(row + column, mask=column < WIDTH, other=0.0).to(EXACT)


@triton.jit
def load_rows(
    tensor,
    at,
    there,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    EXACT: tl.constexpr,
    LAST: tl.constexpr = False,
):
    """The WIDTH numbers from each `at` on, then zeros; zeros where it is not there: [n, BLOCK]."""
    column = tl.arange(0, BLOCK)[None, :]
    mask = there[:, None] & (column < WIDTH)
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
    """What was found for a whole row to its result, and for a piece of a hub to where it waits.

    STRIDE is the distance between rows of the result, which may be slices of wider ones.
    """
    column = tl.arange(0, BLOCK)
    if place < 0:
        tl.store(whole + row * STRIDE + head * WIDTH + column, numbers, mask=column < WIDTH)
    elif parts is not None:
        tl.store(parts + (place * HEADS + head) * WIDTH + column, numbers, mask=column < WIDTH)
