"""Attention that projects only the targets: for many more sources than targets, or narrow rows.

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

If F < 2 D, q' is computed from h by one product with a merged weight, and q does not exist:

    q'_i = M h_i + c    M = W_kᵀ W_q    c = W_kᵀ b_q
    dW_q = W_k dM    dW_k = W_q dMᵀ + b_q dcᵀ    db_q = W_k dc
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from unimp.ops.fused import Backward, Edges, Forward, Operands
from unimp.ops.products import linear
from unimp.ops.projection import Projection, Shape


class Absorbed(NamedTuple):
    """The tensors that the forward pass saves for the backward pass."""

    query: Tensor  # q' [T, H, F]
    mean: Tensor  # x̄ [T, H, F]
    mass: Tensor  # A [T, H]
    log_sum: Tensor  # [T, H]


BY_HEAD = 1.25
"""The measured cost of products per head, relative to one product for all heads."""

EDGE = 8
"""The measured cost of one number of an edge's row, in multiplications of a projection."""


CALLS = 4_000_000
"""The estimated cost of the additional calls, in multiplications per head."""


def pays(sources: float, targets: float, edges: float, in_width: int, width: int) -> bool:
    """Whether absorbing is faster than projecting the sources from F to D numbers per head.

    Per head, k and v of S sources cost 2 S·D·F multiplications. W_v x̄ of T targets costs T·D·F, and
    so does q' after q; both are computed one head at a time. If q' is merged, it costs T·F·F, and q
    does not exist. An edge reads rows of D numbers with projected sources, and of F numbers with
    absorbed weights. Absorbing needs more calls. It is faster if

        2 S·D·F − T·F·min(2.5 D, F + D/4) > 16 E max(F − D, 0) + 4·10⁶

    The forward and backward passes have the same ratio, so training and inference share this rule.
    """
    of_targets = 2 * BY_HEAD * width
    if merges(in_width, width):
        of_targets = in_width + (BY_HEAD - 1) * width
    saved = (2 * sources * width - targets * of_targets) * in_width
    return saved > 2 * EDGE * edges * max(in_width - width, 0) + CALLS


def merges(in_width: int, width: int) -> bool:
    """Whether one product by M is smaller than the two products by W_q and W_k."""
    return in_width < 2 * width


class Merged(NamedTuple):
    """The weights of a layer as [M; W_r] and [c; b_r]."""

    weight: Tensor  # [H·F + C, F]
    bias: Tensor

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor, heads: int, width: int) -> Merged:
        """Merge [W_q; W_r; W_k; W_v] and its bias."""
        hidden = heads * width
        query, key = (
            _by_head(weight[:hidden], heads),
            _by_head(weight[-2 * hidden : -hidden], heads),
        )
        merged = key.transpose(1, 2) @ query
        constant = key.transpose(1, 2) @ bias[:hidden].view(heads, width, 1)
        kept = slice(hidden, len(weight) - 2 * hidden)
        return cls(
            torch.cat((merged.flatten(0, 1), weight[kept])),
            torch.cat((constant.flatten(), bias[kept])),
        )

    def back(
        self, weight: Tensor, bias: Tensor, heads: int, width: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the gradients of [W_q; W_r], [b_q; b_r] and W_k from those in `self`."""
        hidden, in_width = heads * width, weight.shape[1]
        query, key = (
            _by_head(weight[:hidden], heads),
            _by_head(weight[-2 * hidden : -hidden], heads),
        )
        cut = heads * in_width
        d_merged = self.weight[:cut].view(heads, in_width, in_width)
        d_constant = self.bias[:cut].view(heads, in_width, 1)
        d_key = query @ d_merged.transpose(1, 2)
        d_key.baddbmm_(bias[:hidden].view(heads, width, 1), d_constant.transpose(1, 2))
        return (
            torch.cat(((key @ d_merged).flatten(0, 1), self.weight[cut:])),
            torch.cat(((key @ d_constant).flatten(), self.bias[cut:])),
            d_key.flatten(0, 1),
        )


def _by_head(weight: Tensor, heads: int) -> Tensor:
    return weight.view(heads, len(weight) // heads, -1)


def shape_of_targets(shape: Shape, in_width: int) -> Shape:
    """The shape of the projection of the targets: [q'|r] if it is merged, else [q|r]."""
    return shape._replace(width=in_width) if merges(in_width, shape.width) else shape


def forward(
    h: Tensor, targets: int, weight: Tensor, bias: Tensor, edges: Edges, shape: Shape, seed: Tensor
) -> tuple[Tensor, Projection, Absorbed]:
    """Map h [S, F] to o [T, H·D], with the weights [W_q; W_r; W_k; W_v] and their bias.

    Also returns the projection of the targets, which contains r.
    """
    from unimp.ops import native

    heads, width = shape.heads, shape.width
    hidden = heads * width
    if merges(h.shape[1], width):
        of_targets, of_bias = Merged.of(weight, bias, heads, width)
    else:
        of_targets, of_bias = weight[: -2 * hidden], bias[: -2 * hidden]
    rows = linear(h[:targets], of_targets, of_bias)
    parts = Projection(rows, None, shape_of_targets(shape, h.shape[1]))
    query = parts.by_head(parts.query)
    if not merges(h.shape[1], width):
        query = multiply_by_head(query, _by_head(weight[-2 * hidden : -hidden], heads))
    given = Operands(query, h, h, None, None, edges, shape.dropout, seed)
    result = native.forward(given, width**-0.5)
    message = multiply_by_head(result.out, _by_head(weight[-hidden:], heads).transpose(1, 2))
    message.addcmul_(result.mass.to(message.dtype)[..., None], bias[-hidden:].view(heads, width))
    saved = Absorbed(query, result.out, result.mass, result.log_sum)
    return message.flatten(1), parts, saved


def backward(
    grad: Tensor,
    h: Tensor,
    weight: Tensor,
    bias: Tensor,
    parts: Projection,
    found: Projection,
    saved: Absorbed,
    edges: Edges,
    shape: Shape,
    seed: Tensor,
    wants_h: bool,
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Compute the gradients of h, the weight and the bias from that of o, grad [T, H·D].

    `found` contains the gradient of r.
    """
    from unimp.ops import native

    heads, width = shape.heads, shape.width
    hidden = heads * width
    merged = merges(h.shape[1], width)
    key, value = weight[-2 * hidden :].view(2, heads, width, -1)
    grad = grad.view(-1, heads, width)
    nothing, d_h = grad.new_empty(0), torch.empty_like(h)
    d_query = found.by_head(found.query)
    d_absorbed = d_query if merged else torch.empty_like(saved.query)
    grad_mass = torch.linalg.vecdot(grad, bias[-hidden:].view(heads, width))
    native.backward(
        Operands(saved.query, h, h, None, None, edges, shape.dropout, seed),
        Forward(saved.mean, nothing, saved.mass, saved.log_sum),
        Forward(multiply_by_head(grad, value), nothing, grad_mass.to(saved.mass.dtype), nothing),
        Backward(d_absorbed, d_h, nothing, nothing, nothing),
        width**-0.5,
    )
    d_value = grad.permute(1, 2, 0) @ saved.mean.transpose(0, 1)
    d_value_bias = (grad * saved.mass.to(grad.dtype)[..., None]).sum(0)
    if merged:
        own = Merged.of(weight, bias, heads, width).weight
        d_rows, *of_targets = found.project_back(h, own, wants_h, d_h)
        d_own, d_bias, d_key = Merged(*of_targets).back(weight, bias, heads, width)
    else:
        multiply_by_head(d_absorbed, key.transpose(1, 2), d_query)
        query = parts.by_head(parts.query)
        d_key = (query.permute(1, 2, 0) @ d_absorbed.transpose(0, 1)).flatten(0, 1)
        d_rows, d_own, d_bias = found.project_back(h, weight[: -2 * hidden], wants_h, d_h)
    return (
        d_rows,
        torch.cat((d_own, d_key, d_value.flatten(0, 1))),
        torch.cat((d_bias, d_bias.new_zeros(hidden), d_value_bias.flatten())),
    )


def multiply_by_head(rows: Tensor, weight: Tensor, out: Tensor | None = None) -> Tensor:
    """Multiply rows [T, H, A] by the weight of each head [H, A, B]: [T, H, B]."""
    if out is None:
        out = rows.new_empty(len(rows), len(weight), weight.shape[2])
    torch.bmm(rows.transpose(0, 1), weight, out=out.transpose(0, 1))
    return out
