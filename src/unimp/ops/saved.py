"""What a layer saves in its forward pass for its backward pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unimp.ops.absorbed import Absorbed
from unimp.ops.fused import Edges, Kernel
from unimp.ops.projection import Shape
from unimp.ops.residual import Residual, RowStats

TENSORS_OF_STEP = 5
"""The number of fields at the start of `Residual` that are tensors."""


class Attended(NamedTuple):
    """The tensors that plain attention saves for its backward pass."""

    of_sources: Tensor  # projection of the sources
    edge_query: Tensor | None
    edge_attr: Tensor | None
    encoder: Tensor | None  # B
    bias_map: Tensor | None  # the edge bias as a block-diagonal matrix [H, H·D]
    out: Tensor  # the fields of `Forward`
    edge_mean: Tensor
    mass: Tensor
    log_sum: Tensor


class Inputs(NamedTuple):
    """The tensors that every layer saves for its backward pass, besides those of the residual."""

    h: Tensor
    weight: Tensor  # [W_q; W_r; W_k; W_v]
    bias: Tensor
    of_targets: Tensor  # projection of the targets
    message: Tensor
    seed: Tensor


class State(NamedTuple):
    """Everything that the backward pass reads, except for the gradient of the output."""

    inputs: Inputs
    row_stats: RowStats
    step: Residual
    edges: Edges
    attention: Attended | Absorbed


class Saved:
    """What a layer saves between its passes if autograd does not run them."""

    attention_kind: type[Attended | Absorbed]
    shape: Shape
    kernel: Kernel
    dtypes: list[torch.dtype | None]
    widths: list[int]

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad  # of h and of each weight
        self.saved_tensors: tuple[Tensor | None, ...] = ()

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        self.saved_tensors = tensors


def save(
    ctx: Any, state: State, weights: Sequence[Tensor | None], shape: Shape, kernel: Kernel
) -> None:
    """Save what the backward pass needs; `ctx` is a `FunctionCtx` or a `Saved`."""
    inputs, row_stats, step, edges, attention = state
    ctx.save_for_backward(*inputs, *row_stats, *step[:TENSORS_OF_STEP], *edges, *attention)
    ctx.attention_kind, ctx.shape, ctx.kernel = type(attention), shape, kernel
    ctx.dtypes = [None if w is None else w.dtype for w in weights]
    ctx.widths = [len(w) for w in weights[:4] if w is not None]  # of W_q, W_r, W_k and W_v


def restore(ctx: Any) -> State:
    """Return the state that `save` was called with."""
    tensors = iter(ctx.saved_tensors)
    inputs, row_stats = _take(Inputs, tensors), _take(RowStats, tensors)
    step = Residual(*islice(tensors, TENSORS_OF_STEP))
    step = step._replace(eps=ctx.shape.eps, relu=ctx.shape.relu)
    return State(inputs, row_stats, step, _take(Edges, tensors), _take(ctx.attention_kind, tensors))


def _take(kind: Any, tensors: Iterator[Tensor | None]) -> Any:
    """Fill a named tuple of this kind with the next tensors."""
    return kind(*islice(tensors, len(kind._fields)))
