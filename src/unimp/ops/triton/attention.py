"""Fused attention on GPU, in Triton: launches the kernels; see `ops/fused.py` for the equations.

A program processes one piece of a row (see `Schedule`) and one head. The head is the slow axis of
the grid, so that programs that run at the same time gather from the same columns. There are no
atomic additions, so every run gives the same bits. Sums are in single precision, or in double for
double operands.
"""
# mypy: disable-error-code="import-untyped, no-untyped-call"

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from unimp.ops.fused import Backward, Forward, Operands, empty_forward, exact_dtype
from unimp.ops.triton import kernels as triton_kernels
from unimp.ops.triton.launch import launch, parts_of, power_of_two


def forward(given: Operands) -> Forward:
    """Run one pass over the in-edges of each target.

    Each piece of a hub is computed like a target. The results of its pieces are then weighted by
    their shares in the sum:

        L_i = log Σ_p exp L_p        o_i = Σ_p exp(L_p − L_i) o_p        (the same for ē and A)
    """
    query, edges = given.query, given.edges
    result = empty_forward(query, given.edge_query, "triton")
    if result.out.numel() == 0:
        return result
    parts = [_parts(edges.pieces, edges.hubs, whole) for whole in result]
    with torch.cuda.device_of(query):
        launch(
            triton_kernels.attend,
            (edges.pieces.shape[0], query.shape[1]),
            *_rows(given),
            edges.source,
            edges.pieces,
            _numbers(given),
            given.seed,
            *result,
            *parts,
            **_strides(query=query, key=given.key, value=given.value),
            **_shape(given),
            **_weight_constants(given),
            **_tile(given, gathered=2),
        )
        for part, whole in zip(parts[:3], result[:3], strict=True):
            _merge(part, edges.hubs, whole, parts[3], result.log_sum)
    return result


def backward(
    given: Operands,
    result: Forward,
    grads: Forward,
    found: Backward,
    terms: Tensor | None = None,
) -> None:
    """Run a pass by source for dk, dv and ds, and then a pass by target for dq and du.

    Besides the gradients, it needs memory for two numbers per target and head, one per edge and
    head (two if edge features take a gradient), and the parts of hubs. `terms` are the numbers per
    target and head, [T, H, 2], if they are known already; see `residual_backward`.
    """
    if result.out.numel() == 0:
        for grad in found:
            grad.zero_()
        return
    rows, edges, shape = _rows(given), given.edges, _shape(given)
    query, key, value, edge_query, edge_attr = rows
    targets, heads, _ = query.shape
    num_edges = edges.source.shape[0]
    exact = exact_dtype(query.dtype)
    grad_mean = None if edge_query is None else grads.edge_mean.contiguous()
    grad_mass = None if edge_query is None else grads.mass.contiguous()
    with torch.cuda.device_of(query):
        if terms is None:
            terms = query.new_empty((targets, heads, 2), dtype=exact)
            at_once = max(1, 2048 // shape["BLOCK"])
            launch(
                triton_kernels.find_terms,
                (parts_of(targets, at_once), heads),
                grads.out,
                grad_mean,
                grad_mass,
                *result,
                terms,
                targets,
                **_strides(grad_out=grads.out),
                **shape,
                ROWS=at_once,
            )
        score_grad = query.new_empty((heads, num_edges), dtype=exact)
        weight = torch.empty_like(score_grad) if found.edge_attr.numel() else None

        pieces, hubs = edges.by_source_pieces, edges.by_source_hubs
        part_key, part_value = _parts(pieces, hubs, found.key), _parts(pieces, hubs, found.value)
        launch(
            triton_kernels.differentiate_by_source,
            (pieces.shape[0], heads),
            *rows,
            grads.out,
            grad_mean,
            grad_mass,
            terms,
            edges.by_source_target,
            edges.by_source_slot,
            pieces,
            _numbers(given),
            given.seed,
            found.key,
            found.value,
            part_key,
            part_value,
            score_grad,
            weight,
            num_edges,
            **_strides(query=query, key=key, value=value, grad_out=grads.out),
            **_strides(grad_key=found.key, grad_value=found.value),
            **shape,
            **_weight_constants(given),
            **_tile(given, gathered=2),
        )
        _merge(part_key, hubs, found.key)
        _merge(part_value, hubs, found.value)

        pieces, hubs = edges.pieces, edges.hubs
        part_query = _parts(pieces, hubs, found.query)
        part_edge_query = None if edge_query is None else _parts(pieces, hubs, found.edge_query)
        launch(
            triton_kernels.differentiate_by_target,
            (pieces.shape[0], heads),
            key,
            edge_attr,
            edges.source,
            pieces,
            score_grad,
            num_edges,
            found.query,
            found.edge_query,
            part_query,
            part_edge_query,
            **_strides(key=key, grad_query=found.query),
            **shape,
            **_tile(given, gathered=1),
        )
        _merge(part_query, hubs, found.query)
        _merge(part_edge_query, hubs, found.edge_query)

        if weight is not None:
            at_once = max(1, 1024 // shape["EDGE_BLOCK"])
            launch(
                triton_kernels.differentiate_edges,
                (parts_of(num_edges, at_once),),
                edge_query,
                grad_mean,
                score_grad,
                weight,
                edges.by_source_target,
                edges.by_source_slot,
                num_edges,
                found.edge_attr,
                **{name: shape[name] for name in ("HEADS", "EDGE_WIDTH", "EDGE_BLOCK", "EXACT")},
                EDGES=at_once,
            )


def _rows(given: Operands) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """q, k, v, u and e; rows of the last two are contiguous, as kernels require."""
    edge_query, edge_attr = (None if t is None else t.contiguous() for t in given[3:5])
    return given.query, given.key, given.value, edge_query, edge_attr


def _tile(given: Operands, *, gathered: int) -> dict[str, int]:
    """How many edges a program processes at a time, and with how many warps.

    A warp loads up to 4 KiB of gathered rows at a time, which is 32 registers per lane. This leaves
    registers for enough warps to keep memory busy, and a row of common length needs few steps. Wide
    heads get more warps. The numbers are fixed and not tuned at run time, so every run takes the
    same steps.
    """
    rows = (given.query,) if given.edge_query is None else (given.query, given.edge_query)
    block = power_of_two(max(t.shape[2] for t in rows))
    warps = min(max(1, block // 256), 8)
    edges = min(max(1, 4096 * warps // (gathered * block * given.query.itemsize)), 16)
    return {"EDGES": edges, "num_warps": warps}


def _shape(given: Operands) -> dict[str, Any]:
    _, heads, width = given.query.shape
    edge_width = 0 if given.edge_query is None else given.edge_query.shape[2]
    return {
        "HEADS": heads,
        "WIDTH": width,
        "BLOCK": power_of_two(width),
        "EDGE_WIDTH": edge_width,
        "EDGE_BLOCK": power_of_two(edge_width),
        "EXACT": tl.float64 if given.query.dtype == torch.float64 else tl.float32,
    }


def _weight_constants(given: Operands) -> dict[str, Any]:
    """The constants that turn scores into weights: the scale, and dropout."""
    _, heads, width = given.query.shape
    return {
        "SCALE": width**-0.5,
        "THRESHOLD": int(given.dropout * 2**32),
        "FACTOR": 1.0 / (1.0 - given.dropout),
        "LONG": given.edges.source.shape[0] * heads > 2**32 or _numbers(given) is not None,
    }


def _numbers(given: Operands) -> Tensor | None:
    """The numbers of edges from which dropout draws; None: their slots."""
    return given.edges.numbers if given.dropout and given.edges.numbers.numel() else None


def _strides(**tensors: Tensor) -> dict[str, int]:
    """The distance between rows of each tensor."""
    return {f"{name.upper()}_STRIDE": tensor.stride(0) for name, tensor in tensors.items()}


def _parts(pieces: Tensor, hubs: Tensor, whole: Tensor) -> Tensor | None:
    """Allocate the results of the pieces of hubs, which are merged later; None without hubs."""
    if hubs.shape[0] == 0:
        return None
    # Every other row is one piece, so the count is known without reading from the device.
    places = len(pieces) - (len(whole) - len(hubs))
    return whole.new_empty((places, *whole.shape[1:]), dtype=exact_dtype(whole.dtype))


def _merge(
    parts: Tensor | None,
    hubs: Tensor,
    whole: Tensor,
    part_log_sum: Tensor | None = None,
    log_sum: Tensor | None = None,
) -> None:
    """Fill the rows of hubs from their parts: a sum, or a weighted mean if there are logs."""
    if parts is None or whole.numel() == 0:
        return
    heads = whole.shape[1]
    width = whole.shape[2] if whole.ndim == 3 else 1
    block = power_of_two(width)
    launch(
        triton_kernels.merge,
        (hubs.shape[0], heads),
        parts,
        part_log_sum,
        hubs,
        whole,
        log_sum,
        HEADS=heads,
        STRIDE=whole.stride(0),
        WIDTH=width,
        BLOCK=block,
        EXACT=tl.float64 if parts.dtype == torch.float64 else tl.float32,
        PARTS=max(1, min(16, 2048 // block)),
    )
