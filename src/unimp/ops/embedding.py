"""The input rows of a large batch on CPU: features plus label rows, normalized in pieces.

    h_i = norm(x_i + Y[y_i])        Y[y_i] = 0 if the label of i is not observed

followed by dropout. Autograd would store x + Y[y], and create several more tensors of the size of x
in both passes. Here both passes work on one piece of rows at a time. The forward pass stores only
the bits of dropout, and the backward pass computes each piece again. x takes no gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from unimp.ops.dropout import draw_bits, dropped_by

Drawn = tuple[Tensor, int, float]
"""What `draw_bits` returns."""
LARGE = 1 << 24
"""An x with at least this many numbers is computed in pieces, and a smaller one at once."""
PIECE = 1 << 21
"""Numbers in a piece."""


def is_large(x: Tensor | None, norm: nn.Module | None) -> bool:
    """Whether the rows of x are computed in pieces."""
    return (
        x is not None
        and x.device.type == "cpu"
        and x.numel() >= LARGE
        and not x.requires_grad
        and isinstance(norm, nn.LayerNorm)
        and not torch.is_autocast_enabled("cpu")
    )


def normed_inputs(
    x: Tensor, observed: Tensor, table: Tensor, norm: nn.LayerNorm, *, drop: float
) -> Tensor:
    """Compute dropout(h) of features [N, F], labels [N] and one row per class: [N, F]."""
    drawn = draw_bits(x, drop) if drop else None
    rows: Tensor = _NormedInputs.apply(  # type: ignore[no-untyped-call]
        x, observed, table, norm.weight, norm.bias, norm.eps, drawn
    )
    return rows


class _NormedInputs(torch.autograd.Function):
    """Computes both passes in pieces of rows."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        observed: Tensor,
        table: Tensor,
        weight: Tensor,
        bias: Tensor,
        eps: float,
        drawn: Drawn | None,
    ) -> Tensor:
        ctx.save_for_backward(x, observed, table, weight, bias)
        ctx.eps, ctx.drawn = eps, drawn
        out = torch.empty_like(x)
        for piece in _pieces(x):
            h, _, _ = _inputs(x, observed, table, piece)
            out[piece] = _dropped(F.layer_norm(h, h.shape[1:], weight, bias, eps), drawn, piece)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        x, observed, table, weight, bias = ctx.saved_tensors
        sums = [torch.zeros_like(own) for own in (table, weight, bias)]
        for piece in _pieces(x):
            h, seen, labels = _inputs(x, observed, table, piece)
            with torch.enable_grad():
                inputs = [own.detach().requires_grad_() for own in (h, weight, bias)]
                out = F.layer_norm(inputs[0], h.shape[1:], inputs[1], inputs[2], ctx.eps)
            grad = _dropped(grads[0][piece], ctx.drawn, piece)
            of_h, of_weight, of_bias = torch.autograd.grad(out, inputs, grad)
            sums[0].index_add_(0, labels, of_h[seen])
            sums[1] += of_weight
            sums[2] += of_bias
        return None, None, sums[0], sums[1], sums[2], None, None


def _dropped(rows: Tensor, drawn: Drawn | None, piece: slice) -> Tensor:
    if drawn is None:
        return rows
    bits, least, factor = drawn
    width = rows.shape[1]
    own = bits[piece.start * width : piece.start * width + rows.numel()]
    return dropped_by(rows.contiguous(), own, least, factor)


def _pieces(x: Tensor) -> list[slice]:
    rows = max(1, PIECE // max(1, x.shape[1]))
    return [slice(begin, begin + rows) for begin in range(0, len(x), rows)]


def _inputs(
    x: Tensor, observed: Tensor, table: Tensor, piece: slice
) -> tuple[Tensor, Tensor, Tensor]:
    """Features plus label rows of a piece, its rows with a label, and their labels."""
    h, own = x[piece].clone(), observed[piece]
    seen = torch.nonzero(own >= 0).squeeze(1)
    labels = own[seen].long()
    h.index_add_(0, seen, table.index_select(0, labels))
    return h, seen, labels
