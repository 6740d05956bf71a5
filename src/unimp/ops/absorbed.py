"""Attention that projects only the targets, for hops with many more sources than targets.

Keys and values are linear in h, so their weights can be applied to the targets. For each head:

    q_i·(W_k h_j + b_k) = q'_i·h_j + const_i          q'_i = W_kᵀ q_i
    o_i = Σ_j a_ij (W_v h_j + b_v) = W_v x̄_i + A_i b_v    x̄_i = Σ_j a_ij h_j    A_i = Σ_j a_ij

and the constant cancels in the softmax. One row h_j is the key and value of all heads, and no
tensor of size sources × heads × width is built. Backward, with g the gradient of o, and p, δ and ds
as in `ops/fused.py`:

    g'_i = W_vᵀ g_i    γ_i = g_i·b_v    da_ij = g'_i·h_j + γ_i    δ_i = g'_i·x̄_i + γ_i A_i
    dh_j = Σ_i Σ_heads ds_ij q'_i + a_ij g'_i                                          (by source)
    dq'_i = Σ_j ds_ij h_j    dq_i = W_k dq'_i    dW_k = Σ_i q_i dq'_iᵀ                 (by target)
    dW_v = Σ_i g_i x̄_iᵀ      db_v = Σ_i A_i g_i    db_k = 0
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from unimp.graph.hop import Hop
from unimp.ops.fused import Backward, Edges, Forward, Operands


class Absorbed(NamedTuple):
    """The tensors that the forward pass saves for the backward pass."""

    query: Tensor  # q' [T, H, F]
    mean: Tensor  # x̄ [T, H, F]
    mass: Tensor  # A [T, H]
    log_sum: Tensor  # [T, H]


class BySources(NamedTuple):
    """The gradients that pass through the sources."""

    h: Tensor  # [S, F]
    weight: Tensor  # gradient of [W_k; W_v]: [2·H·D, F]
    bias: Tensor  # gradient of [b_k; b_v]: [2·H·D]


BY_HEAD = 1.25
"""The measured cost of products per head, relative to one product for all heads."""

EDGE = 8
"""The measured cost of one number of an edge's row, in multiplications of a projection."""


def pays(hop: Hop, in_width: int, width: int) -> bool:
    """Whether absorbing is faster than projecting the sources from F to D numbers per head.

    Per head, k and v of S sources cost 2 S·D·F multiplications. q' and W_v x̄ of T targets cost
    2 T·D·F, computed one head at a time. An edge reads rows of D numbers with projected sources,
    and of F numbers with absorbed weights. Absorbing is faster if

        (S − 1.25 T) D F > 8 E max(F − D, 0)

    The forward and backward passes have the same ratio, so training and inference share this rule.
    """
    return pays_for(hop.num_sources, hop.num_targets, hop.num_edges, in_width, width)


def pays_for(sources: float, targets: float, edges: float, in_width: int, width: int) -> bool:
    """The same for the sizes of a hop."""
    saved = (sources - BY_HEAD * targets) * width * in_width
    return saved > EDGE * edges * max(in_width - width, 0)


def forward(
    query: Tensor,
    h: Tensor,
    weight: Tensor,
    bias: Tensor,
    edges: Edges,
    dropout: float,
    seed: Tensor,
) -> tuple[Tensor, Absorbed]:
    """Map q [T, H, D], h [S, F], weight [W_k; W_v] [2·H·D, F] and its bias to o [T, H·D]."""
    from unimp.ops import native

    _, heads, width = query.shape
    key, value = weight.view(2, heads, width, -1)
    shared = multiply_by_head(query, key)
    given = Operands(shared, h, h, None, None, edges, dropout, seed)
    result = native.forward(given, width**-0.5)
    message = multiply_by_head(result.out, value.transpose(1, 2))
    mass = result.mass.to(message.dtype)
    message.addcmul_(mass[..., None], bias.view(2, heads, width)[1])
    return message.flatten(1), Absorbed(shared, result.out, result.mass, result.log_sum)


def backward(
    grad: Tensor,
    query: Tensor,
    h: Tensor,
    weight: Tensor,
    bias: Tensor,
    saved: Absorbed,
    edges: Edges,
    dropout: float,
    seed: Tensor,
    d_query: Tensor,
) -> BySources:
    """Compute the gradients from that of o, grad [T, H, D]; dq is written to `d_query`."""
    from unimp.ops import native

    _, heads, width = query.shape
    key, value = weight.view(2, heads, width, -1)
    nothing = grad.new_empty(0)
    d_shared, d_h = torch.empty_like(saved.query), torch.empty_like(h)
    mass = saved.mass.to(grad.dtype)
    grad_mass = torch.linalg.vecdot(grad, bias.view(2, heads, width)[1]).to(saved.mass.dtype)
    native.backward(
        Operands(saved.query, h, h, None, None, edges, dropout, seed),
        Forward(saved.mean, nothing, saved.mass, saved.log_sum),
        Forward(multiply_by_head(grad, value), nothing, grad_mass, nothing),
        Backward(d_shared, d_h, nothing, nothing, nothing),
        width**-0.5,
    )
    multiply_by_head(d_shared, key.transpose(1, 2), d_query)
    d_weight, d_bias = torch.empty_like(weight), torch.zeros_like(bias)
    d_key, d_value = d_weight.view(2, heads, width, -1)
    torch.bmm(query.permute(1, 2, 0), d_shared.transpose(0, 1), out=d_key)
    torch.bmm(grad.permute(1, 2, 0), saved.mean.transpose(0, 1), out=d_value)
    torch.sum(grad * mass[..., None], 0, out=d_bias.view(2, heads, width)[1])
    return BySources(d_h, d_weight, d_bias)


def multiply_by_head(rows: Tensor, weight: Tensor, out: Tensor | None = None) -> Tensor:
    """Multiply rows [T, H, A] by the weight of each head [H, A, B]: [T, H, B]."""
    if out is None:
        out = rows.new_empty(len(rows), len(weight), weight.shape[2])
    torch.bmm(rows.transpose(0, 1), weight, out=out.transpose(0, 1))
    return out
