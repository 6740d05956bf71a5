"""Fused attention as torch operators with gradients: native code on CPU, Triton on GPU.

torch.compile treats `unimp::attend` and `unimp::attend_backward` as opaque operators. A kernel
module has two functions, `forward` and `backward`, which compute on raw tensors. This module
contains what all kernels share and what autograd and the compiler need to know.

    s_ij = (q_i·k_j + u_i·e_ij) / √D     p_ij = exp(s_ij − L_i)     a_ij = p_ij m_ij
    o_i = Σ_j a_ij v_j     ē_i = Σ_j a_ij e_ij     A_i = Σ_j a_ij     L_i = log Σ_j exp s_ij

Only L, one number per target and head, is stored; weights are recomputed from it. With g, ḡ and γ
the gradients of o, ē and A:

    da_ij = g_i·v_j + ḡ_i·e_ij + γ_i            δ_i = g_i·o_i + ḡ_i·ē_i + γ_i A_i
    ds_ij = (a_ij da_ij − p_ij δ_i) / √D
    dk_j = Σ_i ds_ij q_i    dv_j = Σ_i a_ij g_i                      (by source)
    dq_i = Σ_j ds_ij k_j    du_i = Σ_j ds_ij e_ij    de_ij = Σ_h ds_ij u_i + a_ij ḡ_i    (by target)

The pass by source comes first and stores ds, one number per edge and head. The pass by target reads
ds instead of the values; ds is freed when the backward pass ends.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from unimp.graph.hop import Hop, Schedule, Transpose

Kernel = Literal["native", "triton"]


class Edges(NamedTuple):
    """The edges of a hop as kernels read them: by target, and by source for the backward pass.

    A tensor that a pass or a kernel does not use is empty.
    """

    indptr: Tensor  # [T+1]
    source: Tensor  # [E]
    by_source_indptr: Tensor  # [S+1]
    by_source_target: Tensor  # [E]
    by_source_slot: Tensor  # [E] position of each edge in `source`
    pieces: Tensor  # the rows by target, as a Schedule
    hubs: Tensor
    by_source_pieces: Tensor  # the rows by source, as a Schedule
    by_source_hubs: Tensor
    numbers: Tensor  # [E] of the hop, for attention dropout; empty: slots are used


class Forward(NamedTuple):
    """The results of the forward pass; ē and A are empty where edges have no features."""

    out: Tensor  # [T, H, D]
    edge_mean: Tensor  # [T, H, d_e]
    mass: Tensor  # [T, H]
    log_sum: Tensor  # [T, H] L; float64 on CPU


class Backward(NamedTuple):
    """The gradients; du and de are empty where they were not requested."""

    query: Tensor
    key: Tensor
    value: Tensor
    edge_query: Tensor
    edge_attr: Tensor


class Operands(NamedTuple):
    """What attention is computed from; the last two dimensions of rows are contiguous.

    The native core computes bf16 rows in single precision: there, u, e, ē and A are float32.
    """

    query: Tensor  # [T, H, D]
    key: Tensor  # [S, H, D]
    value: Tensor  # [S, H, D]
    edge_query: Tensor | None  # [T, H, d_e]; None: without edge features
    edge_attr: Tensor | None  # [E, d_e]
    edges: Edges
    dropout: float
    seed: Tensor


class Kernels(Protocol):
    """The two passes."""

    def forward(self, given: Operands) -> Forward: ...

    def backward(
        self, given: Operands, result: Forward, grads: Forward, found: Backward
    ) -> None: ...  # the gradients are written to `found`


def kernels(kernel: str) -> Kernels:
    """Import the module of a kernel on demand: each needs a dependency that may be missing."""
    if kernel == "native":
        from unimp.ops import native

        return native
    from unimp.ops.triton import attention

    return attention


def attend(
    kernel: Kernel,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    hop: Hop,
    edge_query: Tensor | None,
    dropout: float,
    seed: Tensor,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Compute `reference.attend` with a fused kernel."""
    edge_attr = None if edge_query is None else hop.edge_attr
    if kernel == "native" and edge_attr is not None:
        edge_attr = edge_attr.to(exact_dtype(query.dtype))  # Triton kernels read any precision
    operands = (query, key, value, edge_query, edge_attr)
    trains = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in operands)
    edges = list(edges_of(hop, kernel, backward=trains))
    rows = (None if t is None else with_contiguous_rows(t) for t in operands)
    out, edge_mean, mass, _ = torch.ops.unimp.attend(*rows, edges, dropout, seed, kernel)
    return (out, None, None) if edge_query is None else (out, edge_mean, mass)


native_attend = partial(attend, "native")
triton_attend = partial(attend, "triton")


def edges_of(hop: Hop, kernel: Kernel, *, backward: bool) -> Edges:
    """Collect what a kernel needs of a hop, once per hop; nothing else is computed."""
    known = hop.derived.kernel_edges
    found: Edges | None = known.get((kernel, backward))
    if found is None:
        found = known[kernel, backward] = _edges_of(hop, kernel, backward)
    return found if hop.numbers is None else found._replace(numbers=hop.numbers)


@torch.inference_mode(False)
def _edges_of(hop: Hop, kernel: Kernel, backward: bool) -> Edges:
    nothing = hop.source.new_empty(0)
    none = Schedule(nothing, nothing)
    by_target = hop.schedule if kernel == "triton" else none
    transpose = hop.transpose if backward else Transpose(nothing, nothing, nothing)
    by_source = hop.source_schedule if kernel == "triton" and backward else none
    # The native core reads all of them as contiguous arrays of one type.
    indptr, source, *by_source_rows = (
        array.to(hop.source.dtype).contiguous() for array in (hop.indptr, hop.source, *transpose)
    )
    return Edges(indptr, source, *Transpose(*by_source_rows), *by_target, *by_source, nothing)


def with_contiguous_rows(tensor: Tensor) -> Tensor:
    """Copy the tensor only if the numbers of one row are not contiguous in memory."""
    contiguous = tensor.stride(-1) == 1 and (
        tensor.ndim == 2 or tensor.stride(1) == tensor.shape[2]
    )
    return tensor if contiguous else tensor.contiguous()


@torch.library.custom_op("unimp::attend", mutates_args=())
def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    edge_query: Tensor | None,
    edge_attr: Tensor | None,
    edges: list[Tensor],
    dropout: float,
    seed: Tensor,
    kernel: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    given = Operands(query, key, value, edge_query, edge_attr, Edges(*edges), dropout, seed)
    return (*kernels(kernel).forward(given),)


@_attend.register_fake
def _(query, key, value, edge_query, edge_attr, edges, dropout, seed, kernel):  # type: ignore[no-untyped-def]
    return tuple(empty_forward(query, edge_query, kernel))


def empty_forward(query: Tensor, edge_query: Tensor | None, kernel: str) -> Forward:
    """Allocate the results of the forward pass."""
    targets, heads, _ = query.shape
    is_native, exact = kernel == "native", exact_dtype(query.dtype)
    of_edges = exact if is_native else query.dtype
    return Forward(
        query.new_empty(query.shape),
        query.new_empty((0, 0, 0) if edge_query is None else edge_query.shape, dtype=of_edges),
        query.new_empty((0, 0) if edge_query is None else (targets, heads), dtype=of_edges),
        query.new_empty((targets, heads), dtype=torch.float64 if is_native else exact),
    )


def exact_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type of sums: float64 for float64 operands, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


@torch.library.custom_op("unimp::attend_backward", mutates_args=())
def _attend_backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    edge_query: Tensor | None,
    edge_attr: Tensor | None,
    edges: list[Tensor],
    dropout: float,
    seed: Tensor,
    kernel: str,
    result: list[Tensor],
    grads: list[Tensor],
    wants_edge_attr: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    given = Operands(query, key, value, edge_query, edge_attr, Edges(*edges), dropout, seed)
    found = _empty_backward(query, key, value, edge_query, edge_attr if wants_edge_attr else None)
    grads = [with_contiguous_rows(g) if g.numel() and g.ndim == 3 else g for g in grads]
    kernels(kernel).backward(given, Forward(*result), Forward(*grads), found)
    return (*found,)


@_attend_backward.register_fake
def _(  # type: ignore[no-untyped-def]
    query, key, value, edge_query, edge_attr, edges, dropout, seed, kernel, result, grads, wants
):
    return tuple(_empty_backward(query, key, value, edge_query, edge_attr if wants else None))


def _empty_backward(query: Tensor, *others: Tensor | None) -> Backward:
    """Allocate the gradients of q, k, v, u and e."""
    # Each missing gradient is a separate empty tensor: an operator may not return one tensor twice.
    rest = (query.new_empty(0) if t is None else t.new_empty(t.shape) for t in others)
    return Backward(query.new_empty(query.shape), *rest)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *operands, edges, ctx.dropout, seed, ctx.kernel = inputs
    ctx.save_for_backward(*operands, seed, *output, *edges)


def _differentiate(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
    saved = list(ctx.saved_tensors)
    operands, seed, result, edges = saved[:5], saved[5], saved[6:10], saved[10:]
    wants_edge_attr = operands[4] is not None and ctx.needs_input_grad[4]
    dq, dk, dv, du, de = torch.ops.unimp.attend_backward(
        *operands, edges, ctx.dropout, seed, ctx.kernel, result, list(grads), wants_edge_attr
    )
    du, de = None if operands[3] is None else du, de if wants_edge_attr else None
    return dq, dk, dv, du, de, [None] * len(edges), None, None, None


torch.library.register_autograd("unimp::attend", _differentiate, setup_context=_save)
