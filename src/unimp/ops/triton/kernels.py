"""The device code of fused attention; `triton/attention.py` launches it.

A program processes one piece of a row (see `Schedule`) and one head, EDGES edges at a time. A tile
of gathered rows is [EDGES, BLOCK], where BLOCK is the width rounded up to a power of two. Row
numbers are multiplied in 64 bits.

Names in capitals are compile-time constants. Branches of a pointer that is None are not compiled.
Floating-point constants are compile-time constants because arguments would be rounded to single
precision; strides are because they determine how wide a load may be.

Where two layouts meet, as in the score of keys and edge features, the compiler uses the layout of
the tile that was loaded last. Edge features are therefore loaded before the wide rows.
"""
# ruff: noqa: N803
# mypy: disable-error-code="import-untyped, no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from unimp.ops.triton.rows import drop, load_piece, load_row, load_rows, mix, store_row


@triton.jit
def attend(
    query,
    key,
    value,
    edge_query,
    edge_attr,
    source,
    pieces,
    numbers,
    seed,
    out,
    edge_mean,
    mass,
    log_sum,
    part_out,
    part_edge_mean,
    part_mass,
    part_log_sum,
    QUERY_STRIDE: tl.constexpr,
    KEY_STRIDE: tl.constexpr,
    VALUE_STRIDE: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    EDGE_WIDTH: tl.constexpr,
    EDGE_BLOCK: tl.constexpr,
    EXACT: tl.constexpr,
    SCALE: tl.constexpr,
    THRESHOLD: tl.constexpr,
    FACTOR: tl.constexpr,
    LONG: tl.constexpr,
    EDGES: tl.constexpr,
):
    """Compute o, ē, A and L of a piece of a target with a running softmax.

    When a new maximum appears, earlier sums are multiplied by exp(old maximum − new maximum).
    """
    head = tl.program_id(1)
    row, begin, end, place = load_piece(pieces)
    salt = mix(tl.load(seed).to(tl.uint32))
    q = load_row(query + row * QUERY_STRIDE + head * WIDTH, WIDTH, BLOCK, EXACT)
    top = tl.full([], float("-inf"), EXACT)
    total = tl.zeros([], EXACT)
    out_sum = tl.zeros([BLOCK], EXACT)
    if edge_attr is not None:
        at = (row * HEADS + head) * EDGE_WIDTH
        u = load_row(edge_query + at, EDGE_WIDTH, EDGE_BLOCK, EXACT)
        edge_sum = tl.zeros([EDGE_BLOCK], EXACT)
        mass_sum = tl.zeros([], EXACT)

    slot = begin + tl.arange(0, EDGES)
    in_piece = slot < end
    j = tl.load(source + slot, mask=in_piece, other=0).to(tl.int64)
    for _ in range(begin, end, EDGES):
        if edge_attr is not None:
            e_at = slot.to(tl.int64) * EDGE_WIDTH
            e = load_rows(edge_attr, e_at, in_piece, EDGE_WIDTH, EDGE_BLOCK, EXACT)
        k = load_rows(key + head * WIDTH, j * KEY_STRIDE, in_piece, WIDTH, BLOCK, EXACT)
        v = load_rows(value + head * WIDTH, j * VALUE_STRIDE, in_piece, WIDTH, BLOCK, EXACT)
        # Load the next sources now; waiting for them would take half of the time of a tile.
        next_slot = slot + EDGES
        next_in_piece = next_slot < end
        next_j = tl.load(source + next_slot, mask=next_in_piece, other=0).to(tl.int64)

        score = tl.sum(q[None, :] * k, axis=1)
        if edge_attr is not None:
            score += tl.sum(u[None, :] * e, axis=1)
        score = tl.where(in_piece, score * SCALE, float("-inf"))
        top_now = tl.maximum(top, tl.max(score, axis=0))
        # A score of −inf is a weight of zero, even if no other score has appeared yet.
        finite = tl.where(top_now > float("-inf"), top_now, 0.0)
        decay = tl.exp(top - finite)
        p = tl.exp(score - finite)
        total = total * decay + tl.sum(p, axis=0)
        number = slot if numbers is None else tl.load(numbers + slot, mask=in_piece, other=0)
        a = drop(p, number, head, salt, HEADS, THRESHOLD, FACTOR, LONG)
        out_sum = out_sum * decay + tl.sum(a[:, None] * v, axis=0)
        if edge_attr is not None:
            # Loaded again with another policy, so that weights convert to the features' layout.
            e = load_rows(edge_attr, e_at, in_piece, EDGE_WIDTH, EDGE_BLOCK, EXACT, LAST=True)
            edge_sum = edge_sum * decay + tl.sum(a[:, None] * e, axis=0)
            mass_sum = mass_sum * decay + tl.sum(a, axis=0)
        top = top_now
        slot = next_slot
        in_piece = next_in_piece
        j = next_j

    # Without edges there is no maximum and no divisor, and the results are zeros.
    total = tl.where(begin < end, total, 1.0)
    share = tl.where(total > 0.0, 1.0 / total, 0.0)
    logs = tl.where(begin < end, top, 0.0) + tl.log(total)
    store_row(out, part_out, out_sum * share, row, place, head, HEADS * WIDTH, HEADS, WIDTH, BLOCK)
    store_row(log_sum, part_log_sum, logs, row, place, head, HEADS, HEADS, 1, 1)
    if edge_attr is not None:
        mean = edge_sum * share
        stride: tl.constexpr = HEADS * EDGE_WIDTH
        part = part_edge_mean
        store_row(edge_mean, part, mean, row, place, head, stride, HEADS, EDGE_WIDTH, EDGE_BLOCK)
        store_row(mass, part_mass, mass_sum * share, row, place, head, HEADS, HEADS, 1, 1)


@triton.jit(do_not_specialize=["num_rows"])
def find_terms(
    grad_out,
    grad_edge_mean,
    grad_mass,
    out,
    edge_mean,
    mass,
    log_sum,
    terms,
    num_rows,
    GRAD_OUT_STRIDE: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    EDGE_WIDTH: tl.constexpr,
    EDGE_BLOCK: tl.constexpr,
    EXACT: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Store L_i and δ_i = g_i·o_i + ḡ_i·ē_i + γ_i A_i as pairs, because they are read together."""
    head = tl.program_id(1)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    valid = row < num_rows
    cell = row * HEADS + head
    g = load_rows(grad_out + head * WIDTH, row * GRAD_OUT_STRIDE, valid, WIDTH, BLOCK, EXACT)
    o = load_rows(out, cell * WIDTH, valid, WIDTH, BLOCK, EXACT)
    delta = tl.sum(g * o, axis=1)
    if grad_mass is not None:
        at = cell * EDGE_WIDTH
        g_mean = load_rows(grad_edge_mean, at, valid, EDGE_WIDTH, EDGE_BLOCK, EXACT)
        mean = load_rows(edge_mean, at, valid, EDGE_WIDTH, EDGE_BLOCK, EXACT)
        gamma = tl.load(grad_mass + cell, mask=valid, other=0.0).to(EXACT)
        delta += tl.sum(g_mean * mean, axis=1)
        delta += gamma * tl.load(mass + cell, mask=valid, other=0.0).to(EXACT)
    tl.store(terms + cell * 2, tl.load(log_sum + cell, mask=valid, other=0.0), mask=valid)
    tl.store(terms + cell * 2 + 1, delta, mask=valid)


@triton.jit(do_not_specialize=["num_edges"])
def differentiate_by_source(
    query,
    key,
    value,
    edge_query,
    edge_attr,
    grad_out,
    grad_edge_mean,
    grad_mass,
    terms,
    target,
    slots,
    pieces,
    numbers,
    seed,
    grad_key,
    grad_value,
    part_key,
    part_value,
    score_grad,
    weight,
    num_edges,
    QUERY_STRIDE: tl.constexpr,
    KEY_STRIDE: tl.constexpr,
    VALUE_STRIDE: tl.constexpr,
    GRAD_OUT_STRIDE: tl.constexpr,
    GRAD_KEY_STRIDE: tl.constexpr,
    GRAD_VALUE_STRIDE: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    EDGE_WIDTH: tl.constexpr,
    EDGE_BLOCK: tl.constexpr,
    EXACT: tl.constexpr,
    SCALE: tl.constexpr,
    THRESHOLD: tl.constexpr,
    FACTOR: tl.constexpr,
    LONG: tl.constexpr,
    EDGES: tl.constexpr,
):
    """Compute dk_j = Σ_i ds_ij q_i and dv_j = Σ_i a_ij g_i; store ds, and a if requested."""
    head = tl.program_id(1)
    row, begin, end, place = load_piece(pieces)
    salt = mix(tl.load(seed).to(tl.uint32))
    k = load_row(key + row * KEY_STRIDE + head * WIDTH, WIDTH, BLOCK, EXACT)
    v = load_row(value + row * VALUE_STRIDE + head * WIDTH, WIDTH, BLOCK, EXACT)
    dk = tl.zeros([BLOCK], EXACT)
    dv = tl.zeros([BLOCK], EXACT)
    # ds and a are stored by head, which is how the pass by target reads them.
    at_head = head.to(tl.int64) * num_edges

    entry = begin + tl.arange(0, EDGES)
    in_piece = entry < end
    i = tl.load(target + entry, mask=in_piece, other=0).to(tl.int64)
    slot = tl.load(slots + entry, mask=in_piece, other=0).to(tl.int64)
    for _ in range(begin, end, EDGES):
        cell = i * HEADS + head
        if edge_attr is not None:
            at = slot * EDGE_WIDTH
            e = load_rows(edge_attr, at, in_piece, EDGE_WIDTH, EDGE_BLOCK, EXACT)
            at = cell * EDGE_WIDTH
            u = load_rows(edge_query, at, in_piece, EDGE_WIDTH, EDGE_BLOCK, EXACT)
            g_mean = load_rows(grad_edge_mean, at, in_piece, EDGE_WIDTH, EDGE_BLOCK, EXACT)
            gamma = tl.load(grad_mass + cell, mask=in_piece, other=0.0).to(EXACT)
        q = load_rows(query + head * WIDTH, i * QUERY_STRIDE, in_piece, WIDTH, BLOCK, EXACT)
        g = load_rows(grad_out + head * WIDTH, i * GRAD_OUT_STRIDE, in_piece, WIDTH, BLOCK, EXACT)
        log_sum = tl.load(terms + cell * 2, mask=in_piece, other=0.0)
        delta = tl.load(terms + cell * 2 + 1, mask=in_piece, other=0.0)
        entry += EDGES
        next_in_piece = entry < end
        next_i = tl.load(target + entry, mask=next_in_piece, other=0).to(tl.int64)
        next_slot = tl.load(slots + entry, mask=next_in_piece, other=0).to(tl.int64)

        score = tl.sum(q * k[None, :], axis=1)
        da = tl.sum(g * v[None, :], axis=1)
        if edge_attr is not None:
            score += tl.sum(u * e, axis=1)
            da += tl.sum(g_mean * e, axis=1) + gamma
        p = tl.where(in_piece, tl.exp(score * SCALE - log_sum), 0.0)
        number = slot if numbers is None else tl.load(numbers + slot, mask=in_piece, other=0)
        a = drop(p, number, head, salt, HEADS, THRESHOLD, FACTOR, LONG)
        ds = (a * da - p * delta) * SCALE
        dk += tl.sum(ds[:, None] * q, axis=0)
        dv += tl.sum(a[:, None] * g, axis=0)
        tl.store(score_grad + at_head + slot, ds, mask=in_piece)
        if weight is not None:
            tl.store(weight + at_head + slot, a, mask=in_piece)
        in_piece = next_in_piece
        i = next_i
        slot = next_slot
    store_row(grad_key, part_key, dk, row, place, head, GRAD_KEY_STRIDE, HEADS, WIDTH, BLOCK)
    store_row(grad_value, part_value, dv, row, place, head, GRAD_VALUE_STRIDE, HEADS, WIDTH, BLOCK)


@triton.jit(do_not_specialize=["num_edges"])
def differentiate_by_target(
    key,
    edge_attr,
    source,
    pieces,
    score_grad,
    num_edges,
    grad_query,
    grad_edge_query,
    part_query,
    part_edge_query,
    KEY_STRIDE: tl.constexpr,
    GRAD_QUERY_STRIDE: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    EDGE_WIDTH: tl.constexpr,
    EDGE_BLOCK: tl.constexpr,
    EXACT: tl.constexpr,
    EDGES: tl.constexpr,
):
    """Compute dq_i = Σ_j ds_ij k_j and du_i = Σ_j ds_ij e_ij."""
    head = tl.program_id(1)
    row, begin, end, place = load_piece(pieces)
    at_head = head.to(tl.int64) * num_edges
    dq = tl.zeros([BLOCK], EXACT)
    if edge_attr is not None:
        du = tl.zeros([EDGE_BLOCK], EXACT)

    slot = begin + tl.arange(0, EDGES)
    in_piece = slot < end
    j = tl.load(source + slot, mask=in_piece, other=0).to(tl.int64)
    for _ in range(begin, end, EDGES):
        ds = tl.load(score_grad + at_head + slot, mask=in_piece, other=0.0)
        if edge_attr is not None:
            e_at = slot.to(tl.int64) * EDGE_WIDTH
            e = load_rows(edge_attr, e_at, in_piece, EDGE_WIDTH, EDGE_BLOCK, EXACT)
            du += tl.sum(ds[:, None] * e, axis=0)
        k = load_rows(key + head * WIDTH, j * KEY_STRIDE, in_piece, WIDTH, BLOCK, EXACT)
        slot += EDGES
        in_piece = slot < end
        j = tl.load(source + slot, mask=in_piece, other=0).to(tl.int64)
        dq += tl.sum(ds[:, None] * k, axis=0)
    store_row(grad_query, part_query, dq, row, place, head, GRAD_QUERY_STRIDE, HEADS, WIDTH, BLOCK)
    if edge_attr is not None:
        stride: tl.constexpr = HEADS * EDGE_WIDTH
        part = part_edge_query
        store_row(
            grad_edge_query, part, du, row, place, head, stride, HEADS, EDGE_WIDTH, EDGE_BLOCK
        )


@triton.jit(do_not_specialize=["num_edges"])
def differentiate_edges(
    edge_query,
    grad_edge_mean,
    score_grad,
    weight,
    target,
    slots,
    num_edges,
    grad_edge_attr,
    HEADS: tl.constexpr,
    EDGE_WIDTH: tl.constexpr,
    EDGE_BLOCK: tl.constexpr,
    EXACT: tl.constexpr,
    EDGES: tl.constexpr,
):
    """Compute de_ij = Σ_h ds_ij u_i + a_ij ḡ_i."""
    entry = tl.program_id(0).to(tl.int64) * EDGES + tl.arange(0, EDGES)
    in_piece = entry < num_edges
    i = tl.load(target + entry, mask=in_piece, other=0).to(tl.int64)
    slot = tl.load(slots + entry, mask=in_piece, other=0).to(tl.int64)
    de = tl.zeros([EDGES, EDGE_BLOCK], EXACT)
    at = slot
    for head in range(HEADS):
        ds = tl.load(score_grad + at, mask=in_piece, other=0.0)
        a = tl.load(weight + at, mask=in_piece, other=0.0)
        row_at = (i * HEADS + head) * EDGE_WIDTH
        u = load_rows(edge_query, row_at, in_piece, EDGE_WIDTH, EDGE_BLOCK, EXACT)
        g_mean = load_rows(grad_edge_mean, row_at, in_piece, EDGE_WIDTH, EDGE_BLOCK, EXACT)
        de += ds[:, None] * u + a[:, None] * g_mean
        at += num_edges
    column = tl.arange(0, EDGE_BLOCK)[None, :]
    to = grad_edge_attr + slot[:, None] * EDGE_WIDTH + column
    tl.store(to, de, mask=in_piece[:, None] & (column < EDGE_WIDTH))


@triton.jit
def merge(
    parts,
    part_log_sum,
    hubs,
    whole,
    log_sum,
    STRIDE: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    EXACT: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Add the pieces of a hub, PARTS at a time, weighted by exp(L_p − L) if L is given."""
    head = tl.program_id(1)
    hub = hubs + tl.program_id(0) * 3
    row = tl.load(hub).to(tl.int64)
    first = tl.load(hub + 1).to(tl.int64)
    end = first + tl.load(hub + 2)
    lane = tl.arange(0, PARTS)
    top = tl.full([], float("-inf"), EXACT)
    total = tl.zeros([], EXACT)
    if part_log_sum is not None:
        for start in range(first, end, PARTS):
            at = part_log_sum + (start + lane) * HEADS + head
            logs = tl.load(at, mask=start + lane < end, other=float("-inf"))
            top_now = tl.maximum(top, tl.max(logs, axis=0))
            total = total * tl.exp(top - top_now) + tl.sum(tl.exp(logs - top_now), axis=0)
            top = top_now
        # A hub without pieces, which padding may be, is a row of zeros.
        top = tl.where(first < end, top, 0.0) + tl.log(tl.where(first < end, total, 1.0))
        store_row(log_sum, None, top, row, -1, head, HEADS, HEADS, 1, 1)
    numbers = tl.zeros([BLOCK], EXACT)
    for start in range(first, end, PARTS):
        in_piece = start + lane < end
        cell = (start + lane) * HEADS + head
        part = load_rows(parts, cell * WIDTH, in_piece, WIDTH, BLOCK, EXACT)
        if part_log_sum is not None:
            logs = tl.load(part_log_sum + cell, mask=in_piece, other=float("-inf"))
            part = part * tl.exp(logs - top)[:, None]
        numbers += tl.sum(part, axis=0)
    store_row(whole, None, numbers, row, -1, head, STRIDE, HEADS, WIDTH, BLOCK)
