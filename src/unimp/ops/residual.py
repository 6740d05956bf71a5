"""The residual step: a target's own row is mixed with its message; a norm and ReLU may follow.

With m the message and r the target's own row after its projection ("kept"), both [T, C]:

    β = sigmoid(a·r + b·m + c)    y = (1 − β) m + β r        or, without a gate, y = m + r
    n = (y − mean y) / √(var y + ε) ∘ w + d                  or, without a norm, n = y
    out = max(n, 0)                                          or, without ReLU, n

β, mean y and 1/√(var y + ε) are saved, one number each per row; the rest is recomputed. Backward,
with ĝ = w ∘ dn, x̂ the normalized row, and means over its columns:

    dy = (ĝ − mean ĝ − x̂ mean(ĝ ∘ x̂)) / √(var y + ε)      dz = β (1 − β) dy·(r − m)
    dm = (1 − β) dy + dz b        dr = β dy + dz a
    da = Σ dz r     db = Σ dz m     dc = Σ dz     dw = Σ dn ∘ x̂     dd = Σ dn        (over rows)

`mix` is the definition in plain torch. The native core and Triton need one pass in each direction:
see `residual_forward` and `residual_backward` in `native/residual.py` and `triton/residual.py`.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from unimp.ops.fused import exact_dtype


class Residual(NamedTuple):
    """The weights and options of the step; None means without a gate, or without a norm."""

    on_kept: Tensor | None = None  # a [C]
    on_message: Tensor | None = None  # b [C]
    gate_bias: Tensor | None = None  # c [1]
    weight: Tensor | None = None  # w [C]
    bias: Tensor | None = None  # d [C]
    eps: float = 1e-5
    relu: bool = False


class RowStats(NamedTuple):
    """One number per row, saved for the backward pass; a tensor that is not needed is empty."""

    beta: Tensor
    mean: Tensor
    rstd: Tensor


class Sums(NamedTuple):
    """The gradients of the weights: sums over rows."""

    gate_bias: Tensor
    on_kept: Tensor
    on_message: Tensor
    weight: Tensor
    bias: Tensor


class ResidualKernels(Protocol):
    """The two passes of the residual step."""

    def residual_forward(
        self, message: Tensor, kept: Tensor, residual: Residual
    ) -> tuple[Tensor, RowStats]: ...

    def residual_backward(
        self,
        grad: Tensor,
        message: Tensor,
        kept: Tensor,
        residual: Residual,
        row_stats: RowStats,
        grad_kept: Tensor,
    ) -> tuple[Tensor, Sums]:
        """Compute dm and the sums; dr is written to `grad_kept`, whose rows may have a stride."""
        ...


def mix(message: Tensor, kept: Tensor, residual: Residual) -> Tensor:
    """Compute the step in plain torch: message, kept [T, C] → out [T, C]."""
    if residual.on_kept is None or residual.on_message is None:
        y = message + kept
    else:
        logit = kept @ residual.on_kept + message @ residual.on_message
        if residual.gate_bias is not None:
            logit = logit + residual.gate_bias
        y = message.lerp(kept, torch.sigmoid(logit)[:, None].to(message.dtype))
    if residual.weight is not None:
        y = F.layer_norm(y, y.shape[1:], residual.weight, residual.bias, residual.eps)
    return F.relu(y) if residual.relu else y


def gate_vectors(
    gate: Tensor | None, *, kept_first: bool = True
) -> tuple[Tensor | None, Tensor | None]:
    """Split a gate's weight [1, 3C]: w·[r; m; m−r] = a·r + b·m, a = w1 − w3, b = w2 + w3.

    Without `kept_first`, the weight is for [m; r; m−r], as PyG stores it.
    """
    if gate is None:
        return None, None
    on_kept, on_message, on_difference = gate.view(3, -1)
    if not kept_first:
        on_kept, on_message = on_message, on_kept
    return on_kept - on_difference, on_message + on_difference


def grad_of_gate(
    grad_on_kept: Tensor, grad_on_message: Tensor, *, kept_first: bool = True
) -> Tensor:
    """Compute the gradient of a gate's weight from those of a and b."""
    first, second = grad_on_kept, grad_on_message
    if not kept_first:
        first, second = second, first
    return torch.cat((first, second, grad_on_message - grad_on_kept))[None]


def kernels(kernel: str) -> ResidualKernels:
    """Import the module of a kernel on demand."""
    if kernel == "native":
        from unimp.ops.native import residual

        return residual
    from unimp.ops.triton import residual as triton_residual

    return triton_residual


def empty_forward(message: Tensor, residual: Residual) -> tuple[Tensor, RowStats]:
    """Allocate the results of the forward pass."""
    exact = exact_dtype(message.dtype)
    gated = 0 if residual.on_kept is None else len(message)
    normed = 0 if residual.weight is None else len(message)
    return message.new_empty(message.shape), RowStats(
        *(message.new_empty(count, dtype=exact) for count in (gated, normed, normed))
    )
