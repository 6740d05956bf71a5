"""Products of rows and weights on CPU, in the library that is faster.

PyTorch multiplies fp32 matrices on CPU by MKL, which uses AVX-512 instructions only on Intel's
CPUs. oneDNN, which is also part of PyTorch, uses them on all CPUs that have them, so it is up to
twice as fast. PyTorch has no public function that multiplies fp32 matrices by oneDNN. This module
calls the operator that `torch.compile` uses, or MKL if the installed PyTorch does not have it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

LEAST = 1 << 20
"""Multiplications from which oneDNN is used. Smaller products take the same time in both."""


class Linear(nn.Linear):
    """`torch.nn.Linear` that uses `linear`."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


def linear(h: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute h Wᵀ + b, as `torch.nn.functional.linear`: h [n, F], W [C, F] → [n, C]."""
    if not uses_onednn(h, weight) or torch.is_autocast_enabled("cpu"):
        return F.linear(h, weight, bias)
    if not torch.is_grad_enabled():
        return _multiplied(h, weight, bias)
    rows: Tensor = _Linear.apply(h, weight, bias)  # type: ignore[no-untyped-call]
    return rows


def times_weight(grad: Tensor, weight: Tensor, *, onto: Tensor | None = None) -> Tensor:
    """Compute the gradient of h from that of h Wᵀ: grad [n, C], W [C, F] → [n, F].

    The result is added to `onto` in place if it is given.
    """
    if uses_onednn(grad, weight.t()):
        found = _multiplied(grad, weight.t())
        return found if onto is None else onto.add_(found)
    return grad @ weight if onto is None else onto.addmm_(grad, weight)


def weight_gradient(grad: Tensor, h: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Compute the gradient of W from that of h Wᵀ: grad [n, C], h [n, F] → [C, F]."""
    if uses_onednn(grad.t(), h.t()):
        # oneDNN is faster if the second operand has more rows than the first.
        if grad.shape[1] > h.shape[1]:
            found = _multiplied(h.t(), grad.t()).t()
        else:
            found = _multiplied(grad.t(), h.t())
    elif grad.dtype == torch.bfloat16 and grad.is_cpu:
        found = (h.t() @ grad).t()  # faster than gradᵀ h
    else:
        return torch.mm(grad.t(), h, out=out)
    return found if out is None else out.copy_(found)


def uses_onednn(h: Tensor, weight: Tensor) -> bool:
    """Whether h Wᵀ is computed by oneDNN."""
    return (
        h.is_cpu
        and h.dtype == weight.dtype == torch.float32
        and h.ndim == 2
        and h.numel() * len(weight) >= LEAST
        and has_onednn()
        and not torch.compiler.is_compiling()
    )


@cache
def has_onednn() -> bool:
    """Whether this CPU has AVX-512, and this version of PyTorch has the operator."""
    return (
        torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and torch.backends.cpu.get_cpu_capability().startswith("AVX512")
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def _multiplied(h: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute h Wᵀ + b by oneDNN."""
    if not (weight.is_contiguous() or weight.t().is_contiguous()):
        weight = weight.contiguous()  # oneDNN is very slow if both dimensions are strided
    out: Tensor = torch.ops.mkldnn._linear_pointwise.default(h, weight, bias, "none", [], "")
    return out


class _Linear(torch.autograd.Function):
    """The forward and backward passes of h Wᵀ + b."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(h, weight)
        return _multiplied(h, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        (grad,), (h, weight), wanted = grads, ctx.saved_tensors, ctx.needs_input_grad
        return (
            times_weight(grad, weight) if wanted[0] else None,
            weight_gradient(grad, h) if wanted[1] else None,
            grad.sum(0) if wanted[2] else None,
        )
