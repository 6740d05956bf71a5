"""Steps of Triton programs: read and write rows of WIDTH numbers in BLOCK lanes, and dropout."""
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


@triton.jit
def drop(
    p,
    number,
    head,
    salt,
    HEADS: tl.constexpr,
    THRESHOLD: tl.constexpr,
    FACTOR: tl.constexpr,
    LONG: tl.constexpr,
):
    """Compute a_ij = p_ij m_ij, m as in `reference.dropout_factors`; LONG: 64-bit counters."""
    if FACTOR == 1.0:
        return p
    else:
        counter = number.to(tl.int64) * HEADS + head
        bits = counter.to(tl.uint32) ^ salt
        if LONG:
            bits = bits ^ mix((counter >> 32).to(tl.uint32))
        return tl.where(mix(bits) >= THRESHOLD, p * FACTOR, 0.0)


@triton.jit
def mix(bits):
    """Hash 32-bit words as `reference._mix` does."""
    bits = ((bits >> 16) ^ bits) * 0x7FEB352D
    bits = ((bits >> 15) ^ bits) * 0x846CA68B
    return (bits >> 16) ^ bits
