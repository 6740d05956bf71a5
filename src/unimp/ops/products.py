"""Products of rows and weights on CPU, in the library that is faster.

PyTorch uses MKL to multiply fp32 matrices on CPU. MKL uses AVX-512 instructions only on Intel's
CPUs. oneDNN, which is also part of PyTorch, uses them on every CPU that has them. On other CPUs, it
is therefore about twice as fast. PyTorch has no public function for fp32 products in oneDNN. This
module calls the operator that `torch.compile` uses, or MKL if the installed PyTorch does not have
it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BLOCK = 1024
"""Rows that oneDNN multiplies at once. It generates code for each shape and keeps about 1 MB of it,
so calls with any number of rows would fill the memory. MKL multiplies the rows that remain."""
LEAST = 1 << 20
"""Multiplications per block from which oneDNN is used. Smaller products are as fast in MKL."""


class Linear(nn.Linear):
    """`torch.nn.Linear` that uses `linear`."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


def linear(h: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute h Wᵀ + b, as `torch.nn.functional.linear`: h [n, F], W [C, F] → [n, C]."""
    fits = h.shape[-1] == weight.shape[-1]
    if bias is not None:
        fits = fits and bias.shape == weight.shape[:1] and bias.dtype == weight.dtype
    if not fits or not uses_onednn(h, weight, len(weight)) or torch.is_autocast_enabled("cpu"):
        return F.linear(h, weight, bias)
    if not torch.is_grad_enabled():
        return _multiplied(h, weight, bias)
    rows: Tensor = _Linear.apply(h, weight, bias)  # type: ignore[no-untyped-call]
    return rows


def times_weight(grad: Tensor, weight: Tensor, *, onto: Tensor | None = None) -> Tensor:
    """Compute the gradient of h from that of h Wᵀ: grad [n, C], W [C, F] → [n, F].

    The result is added to `onto` in place if it is given.
    """
    if uses_onednn(grad, weight, weight.shape[1]):
        found = _multiplied(grad, weight.t())
        return found if onto is None else onto.add_(found)
    return grad @ weight if onto is None else onto.addmm_(grad, weight)


def weight_gradient(grad: Tensor, h: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Compute the gradient of W from that of h Wᵀ: grad [n, C], h [n, F] → [C, F]."""
    if uses_onednn(h, grad, grad.shape[1]):
        # oneDNN is faster if the second operand has more columns than the first.
        if grad.shape[1] > h.shape[1]:
            found = _sum_of_products(h, grad).t()
        else:
            found = _sum_of_products(grad, h)
    elif grad.dtype == torch.bfloat16 and grad.is_cpu:
        found = (h.t() @ grad).t()  # faster than gradᵀ h
    else:
        return torch.mm(grad.t(), h, out=out)
    return found if out is None else out.copy_(found)


def uses_onednn(h: Tensor, other: Tensor, outputs: int) -> bool:
    """Whether each row of h [n, F] is multiplied by `outputs` columns in oneDNN."""
    return (
        not _is_transformed()
        and h.is_cpu
        and h.dtype == other.dtype == torch.float32
        and h.layout == other.layout == torch.strided
        and h.ndim == 2
        and len(h) >= BLOCK
        and BLOCK * h.shape[1] * outputs >= LEAST
        and bool(torch.backends.mkldnn.enabled)
        and has_onednn()
    )


def _is_transformed() -> bool:
    """Whether the call is compiled, traced or inside of `torch.func`, which need public operators.

    This is the first condition, because the compiler cannot follow the others.
    """
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return True
    return bool(torch._C._are_functorch_transforms_active())


@cache
def has_onednn() -> bool:
    """Whether this CPU has AVX-512, and this version of PyTorch has the operator."""
    return (
        torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and torch.backends.cpu.get_cpu_capability().startswith("AVX512")
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def _multiplied(h: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute h Wᵀ + b."""
    weight, out = _dense(weight), h.new_empty(len(h), len(weight))
    bias = None if bias is None else bias.contiguous()  # oneDNN ignores its stride
    for block in _blocks(h):
        out[block] = _by_onednn(h[block], weight, bias)
    rest = slice(len(h) - len(h) % BLOCK, None)
    if bias is None:
        torch.mm(h[rest], weight.t(), out=out[rest])
    else:
        torch.addmm(bias, h[rest], weight.t(), out=out[rest])
    return out


def _sum_of_products(one: Tensor, other: Tensor) -> Tensor:
    """Compute the sum of outer products of rows: one [n, A], other [n, B] → [A, B]."""
    rest = slice(len(one) - len(one) % BLOCK, None)
    found = torch.mm(one[rest].t(), other[rest])
    for block in _blocks(one):
        found += _by_onednn(one[block].t(), _dense(other[block].t()))
    return found


def _blocks(rows: Tensor) -> Iterator[slice]:
    for begin in range(0, len(rows) - len(rows) % BLOCK, BLOCK):
        yield slice(begin, begin + BLOCK)


def _by_onednn(h: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise.default(h, weight, bias, "none", [], "")
    return out


def _dense(matrix: Tensor) -> Tensor:
    """The matrix or a copy: as a second operand with two strides, it would be slow in oneDNN."""
    if matrix.is_contiguous() or matrix.t().is_contiguous():
        return matrix
    return matrix.contiguous()


class _Linear(torch.autograd.Function):
    """The forward and backward passes of h Wᵀ + b."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(h, weight)
        return _multiplied(h, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        (grad,), (h, weight), wanted = grads, ctx.saved_tensors, ctx.needs_input_grad
        if torch.is_grad_enabled():  # for second derivatives
            return grad @ weight, grad.t() @ h, grad.sum(0) if wanted[2] else None
        return (
            times_weight(grad, weight) if wanted[0] else None,
            weight_gradient(grad, h) if wanted[1] else None,
            grad.sum(0) if wanted[2] else None,
        )
