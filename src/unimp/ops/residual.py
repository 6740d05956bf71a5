"""What a target keeps of itself, mixed with its message, and the norm and ReLU that follow.

With m the message and r what is kept, both [T, C]:

    β = sigmoid(a·r + b·m + c)    y = (1 − β) m + β r        or, without a gate, y = m + r
    n = (y − mean y) / √(var y + ε) ∘ w + d                  or, without a norm, n = y
    out = max(n, 0)                                          or, without ReLU, n

β, mean y and 1/√(var y + ε) are kept, one number a row; the rest is computed again. Backward, with
ĝ = w ∘ dn, x̂ the normalized row, and means over its columns:

    dy = (ĝ − mean ĝ − x̂ mean(ĝ ∘ x̂)) / √(var y + ε)      dz = β (1 − β) dy·(r − m)
    dm = (1 − β) dy + dz b        dr = β dy + dz a
    da = Σ dz r     db = Σ dz m     dc = Σ dz     dw = Σ dn ∘ x̂     dd = Σ dn        (over rows)

`mix` is the meaning in plain torch. The native core and Triton do it in one pass each way: see
`residual_forward` and `residual_backward` of `native/residual.py` and `triton_residual.py`.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from unimp.ops.fused import exact_dtype


class Residual(NamedTuple):
    """What is learned, or chosen, of the step; None: without a gate, or without a norm."""

    on_kept: Tensor | None = None  # a [C]
    on_message: Tensor | None = None  # b [C]
    gate_bias: Tensor | None = None  # c [1]
    weight: Tensor | None = None  # w [C]
    bias: Tensor | None = None  # d [C]
    eps: float = 1e-5
    relu: bool = False


class OfRows(NamedTuple):
    """One number a row, kept for the backward pass; without elements where it is not needed."""

    beta: Tensor
    mean: Tensor
    rstd: Tensor


class Sums(NamedTuple):
    """The gradients of what is learned: sums over rows."""

    on_kept: Tensor
    on_message: Tensor
    weight: Tensor
    bias: Tensor
    gate_bias: Tensor

    @classmethod
    def of(cls, vectors: Tensor, gate_bias: Tensor) -> Sums:
        """From one tensor that holds all but the last: [4, C]."""
        on_kept, on_message, weight, bias = vectors
        return cls(on_kept, on_message, weight, bias, gate_bias)


class ResidualKernels(Protocol):
    def residual_forward(
        self, message: Tensor, kept: Tensor, residual: Residual
    ) -> tuple[Tensor, OfRows]: ...

    def residual_backward(
        self,
        grad: Tensor,
        message: Tensor,
        kept: Tensor,
        residual: Residual,
        of_rows: OfRows,
        grad_kept: Tensor,
    ) -> tuple[Tensor, Sums]:
        """dm and the sums; dr is left in `grad_kept`, whose rows may lie apart."""
        ...


def mix(message: Tensor, kept: Tensor, residual: Residual) -> Tensor:
    """message, kept [T, C] → out [T, C], in plain torch."""
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


def gate_vectors(gate: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """a = w1 − w3 and b = w2 + w3 of a gate's weight [1, 3C]: w·[r; m; m−r] = a·r + b·m."""
    if gate is None:
        return None, None
    on_kept, on_message, on_difference = gate.view(3, -1)
    return on_kept - on_difference, on_message + on_difference


def grad_of_gate(grad_on_kept: Tensor, grad_on_message: Tensor) -> Tensor:
    """The gradient of a gate's weight, from those of a and b."""
    grads = (grad_on_kept, grad_on_message, grad_on_message - grad_on_kept)
    return torch.cat(grads)[None]


def kernels(kernel: str) -> ResidualKernels:
    if kernel == "native":
        from unimp.ops.native import residual

        return residual
    from unimp.ops.triton import residual as triton_residual

    return triton_residual


def empty_forward(message: Tensor, residual: Residual) -> tuple[Tensor, OfRows]:
    """Tensors for what the forward pass leaves, not yet filled."""
    exact = exact_dtype(message.dtype)
    gated = 0 if residual.on_kept is None else len(message)
    normed = 0 if residual.weight is None else len(message)
    return message.new_empty(message.shape), OfRows(
        *(message.new_empty(count, dtype=exact) for count in (gated, normed, normed))
    )
