"""A layer of `TransformerConv` as one operator of torch, so that torch.compile does not divide it.

torch.compile sees `unimp::conv` and `unimp::conv_backward` and calls them as they are. An operator
may not return tensors that share memory, or keep anything between its passes, so the forward pass
returns what the backward pass needs as separate tensors. The backward pass finds the edges again in
the cache of edge lists, and computes the concatenated weights again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from unimp.graph.edge_list import InEdges, on_edges
from unimp.ops import fused
from unimp.ops.absorbed import Absorbed, shape_of_targets
from unimp.ops.attention import as_seed, choose_backend, without_autocast
from unimp.ops.fused import Kernel, exact_dtype
from unimp.ops.layer import (
    Call,
    Weights,
    absorbs,
    cast_inputs,
    dtype_of,
    edge_encoder,
    has_kernel,
    layer_backward,
    layer_forward,
    residual_step,
)
from unimp.ops.projection import Projection, Shape, whole_of
from unimp.ops.residual import RowStats
from unimp.ops.saved import Attended, Inputs, Saved, State, restore, save


class Stored(NamedTuple):
    """What the forward pass stores for the backward pass; a tensor that is not needed is empty."""

    rows: Tensor  # the projection [q|r|k|v], or that of the targets if weights are absorbed
    message: Tensor  # [N, C] m
    edge_query: Tensor  # u
    attended: Tensor  # o, unless it is m; or x̄ of absorbed weights
    edge_mean: Tensor  # ē
    mass: Tensor  # A
    log_sum: Tensor  # L
    beta: Tensor  # of the gate


def can_trace(x: Tensor, edge_index: object, edge_attr: Tensor | None, weights: Weights) -> bool:
    """Whether `traced_layer` can run the layer; docs/speed.md lists the calls that it cannot."""
    if not (isinstance(edge_index, Tensor) and edge_index.layout == torch.strided):
        return False
    if x.ndim != 2 or x.layout != torch.strided or x.shape[1] != weights.query.shape[1]:
        return False
    if edge_index.ndim != 2 or edge_index.shape[0] != 2 or edge_index.dtype != torch.int64:
        return False
    if edge_attr is not None:
        assert weights.edge is not None
        wanted = (edge_index.shape[1], weights.edge.shape[1])
        if edge_attr.requires_grad or edge_attr.shape != wanted:
            return False
    return has_kernel(x, "auto")


def traced_layer(
    x: Tensor,
    edge_index: Tensor,
    edge_attr: Tensor | None,
    weights: Weights,
    shape: Shape,
    flow: str,
    seed: Tensor | int,
) -> Tensor:
    """Run a layer of `TransformerConv` on an edge list [2, E]: [N, C]."""
    given = [w for w in weights if w is not None]
    found: tuple[Tensor, ...] = torch.ops.unimp.conv(
        x,
        edge_index,
        edge_attr,
        list(weights[:8]),
        weights.edge,
        weights.gate,
        shape.heads,
        shape.concat,
        shape.dropout,
        as_seed(seed, x.device),
        flow,
        dtype_of(x),
        torch.is_grad_enabled() and any(t.requires_grad for t in (x, *given)),
    )
    return found[0]


_OPTIONS: dict[str, Any] = {"mutates_args": ()}
if hasattr(torch.Tag, "cudagraph_unsafe"):  # older versions of torch have no such tag
    # A CUDA graph must not record an operator that compares the edge list with an earlier one.
    _OPTIONS["tags"] = torch.Tag.cudagraph_unsafe


@torch.library.custom_op("unimp::conv", **_OPTIONS)
def _conv(
    x: Tensor,
    edge_index: Tensor,
    edge_attr: Tensor | None,
    linear: list[Tensor],  # the first eight of `Weights`
    edge: Tensor | None,
    gate: Tensor | None,
    heads: int,
    concat: bool,
    dropout: float,
    seed: Tensor,
    flow: str,
    dtype: torch.dtype,
    trains: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    weights = _weights(linear, edge, gate)
    shape = _shape(weights, heads, concat, dropout)
    saved = Saved((trains,) * (1 + len(weights)))

    def run(edges: InEdges) -> Tensor:
        hop = edges.hop.with_edge_attr(edge_attr, edges.order)
        call = Call(hop, shape, seed, _kernel(x), dtype, grad_enabled=trains)
        return layer_forward(saved, x, weights, call)

    with torch.no_grad(), without_autocast(x.device.type):
        out = on_edges(edge_index, len(x), len(x), run, flow=flow, device=x.device)
    is_message = edge is None and concat
    stored = _stored(saved, is_message=is_message) if trains else _empty(x, len(Stored._fields))
    return (out, *stored)


def _weights(linear: list[Tensor], edge: Tensor | None, gate: Tensor | None) -> Weights:
    return Weights._make([*linear, edge, None, gate, None, None, None])


def _kernel(x: Tensor) -> Kernel:
    return choose_backend("auto", x.device.type)  # type: ignore[return-value]


def _shape(weights: Weights, heads: int, concat: bool, dropout: float) -> Shape:
    width = weights.query.shape[0] // heads
    return Shape(heads, width, concat, dropout, kept_first=False)


def _empty(like: Tensor, count: int) -> list[Tensor]:
    """Empty tensors; an operator may not return one tensor twice."""
    return [like.new_empty(0) for _ in range(count)]


def _stored(saved: Saved, *, is_message: bool) -> Stored:
    """What the backward pass cannot compute from its arguments.

    is_message: the attended rows are equal to the message, so only the message is stored.
    """
    inputs, row_stats, _, _, attention = restore(saved)
    nothing = _empty(inputs.h, 3)
    if isinstance(attention, Absorbed):
        # q' is part of the projection: on a whole graph, weights are absorbed only if W_q and W_k
        # are merged.
        rows, query, mean = inputs.of_targets, nothing[0], nothing[2]
        attended, mass = attention.mean, attention.mass
    else:
        rows = whole_of(inputs.of_targets, len(inputs.weight))
        query = nothing[0] if attention.edge_query is None else attention.edge_query
        attended = nothing[1] if is_message else attention.out
        mean, mass = attention.edge_mean, attention.mass
    beta = row_stats.beta
    return Stored(rows, inputs.message, query, attended, mean, mass, attention.log_sum, beta)


@_conv.register_fake
def _(  # type: ignore[no-untyped-def]
    x, edge_index, edge_attr, linear, edge, gate, heads, concat, dropout, seed, flow, dtype, trains
):
    weights = _weights(linear, edge, gate)
    shape = _shape(weights, heads, concat, dropout)
    # `len` would return a number that the compiler treats as a constant.
    count, columns, in_width = x.shape[0], weights.kept.shape[0], x.shape[1]
    out = x.new_empty(count, columns, dtype=dtype)
    if not trains:
        return (out, *_empty(x, len(Stored._fields)))
    kernel, hidden = _kernel(x), heads * shape.width
    nothing, exact = x.new_empty(0, dtype=dtype), exact_dtype(dtype)
    query = x.new_empty(count, heads, shape.width, dtype=dtype)
    of_edges = None if edge is None else query.new_empty(count, heads, edge.shape[1], dtype=exact)
    if absorbs(x, weights, count, edge_index.shape[1], shape, kernel):
        wide = query.new_empty(count, heads, in_width)
        result = fused.empty_forward(wide, None, kernel)
        mass = wide.new_empty(count, heads, dtype=exact)
        result = result._replace(edge_mean=nothing, mass=mass)
        rows = x.new_empty(
            count, heads * shape_of_targets(shape, in_width).width + columns, dtype=dtype
        )
        of_query = nothing
    else:
        result = fused.empty_forward(query, of_edges, kernel)
        if edge is None and concat:
            result = result._replace(out=nothing)
        rows = query.new_empty(count, 3 * hidden + columns)
        of_query = nothing if edge is None else result.edge_mean
    beta = x.new_empty(0 if gate is None else count, dtype=exact)
    stored = Stored(rows, out, of_query, *result, beta)
    return (out, *(one.new_empty(one.shape) for one in stored))


@torch.library.custom_op("unimp::conv_backward", **_OPTIONS)
def _conv_backward(
    grad: Tensor,
    x: Tensor,
    edge_index: Tensor,
    edge_attr: Tensor | None,
    linear: list[Tensor],
    edge: Tensor | None,
    gate: Tensor | None,
    heads: int,
    concat: bool,
    dropout: float,
    seed: Tensor,
    flow: str,
    dtype: torch.dtype,
    stored: list[Tensor],
    wants_x: bool,
) -> list[Tensor]:
    weights = _weights(linear, edge, gate)
    shape = _shape(weights, heads, concat, dropout)

    def run(edges: InEdges) -> tuple[Tensor | None, tuple[Tensor | None, ...]]:
        hop = edges.hop.with_edge_attr(edge_attr, edges.order)
        call = Call(hop, shape, seed, _kernel(x), dtype, grad_enabled=True)
        return layer_backward(_saved_again(x, weights, call, Stored(*stored), wants_x), grad)

    with torch.no_grad(), without_autocast(x.device.type):
        d_x, d_weights = on_edges(edge_index, len(x), len(x), run, flow=flow, device=x.device)
    # An operator may not return views. The gradients of the weights are slices of one tensor.
    found = [w.clone() for w in d_weights if w is not None]
    return [*_empty(x, 1), *found] if d_x is None else [d_x.to(x.dtype).contiguous(), *found]


@_conv_backward.register_fake
def _(  # type: ignore[no-untyped-def]
    grad, x, edge_index, edge_attr, linear, edge, gate, heads, concat, dropout, seed, flow, dtype,
    stored, wants_x
):  # fmt: skip
    weights = [w for w in (*linear, edge, gate) if w is not None]
    d_x = x.new_empty(x.shape if wants_x else 0)
    return [d_x, *(w.new_empty(w.shape) for w in weights)]


def _saved_again(x: Tensor, weights: Weights, call: Call, stored: Stored, wants_x: bool) -> Saved:
    """Rebuild what `layer_forward` saved, from arguments of the operator and stored tensors."""
    shape = call.shape
    saved = Saved((wants_x,) + (True,) * len(weights))
    h, weight, bias = cast_inputs(x, weights, call.dtype)
    attention: Attended | Absorbed
    if absorbs(h, weights, call.hop.num_targets, call.hop.num_edges, shape, call.kernel):
        h, of_targets = h.contiguous(), stored.rows
        parts = Projection(of_targets, None, shape_of_targets(shape, h.shape[1]))
        query = parts.by_head(parts.query)
        attention = Absorbed(query, stored.attended, stored.mass, stored.log_sum)
    else:
        cut = len(weight) - 2 * shape.heads * shape.width
        of_targets, of_sources = stored.rows[:, :cut], stored.rows[:, cut:]
        edge_attr, encoder = edge_encoder(weights, call)
        attended = stored.attended
        if not attended.numel():
            attended = stored.message.view(-1, shape.heads, shape.width)
        result = (attended, stored.edge_mean, stored.mass, stored.log_sum)
        edge_query = None if encoder is None else stored.edge_query
        attention = Attended(of_sources, edge_query, edge_attr, encoder, None, *result)
    inputs = Inputs(h, weight, bias, of_targets, stored.message, call.seed)
    nothing = stored.beta.new_empty(0)
    row_stats = RowStats(stored.beta, nothing, nothing)
    edges = fused.edges_of(call.hop, call.kernel, backward=True)
    state = State(inputs, row_stats, residual_step(weights, shape), edges, attention)
    save(saved, state, weights, shape, call.kernel)
    return saved


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, edge_index, edge_attr, linear, edge, gate, *options = inputs
    ctx.heads, ctx.concat, ctx.dropout, seed, ctx.flow, ctx.dtype, _ = options
    ctx.save_for_backward(x, edge_index, edge_attr, edge, gate, seed, *linear, *output[1:])


def _differentiate(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Any, ...]:
    x, edge_index, edge_attr, edge, gate, seed, *rest = ctx.saved_tensors
    linear, stored = rest[:8], rest[8:]
    found = torch.ops.unimp.conv_backward(
        grad, x, edge_index, edge_attr, linear, edge, gate, ctx.heads, ctx.concat, ctx.dropout,
        seed, ctx.flow, ctx.dtype, stored, ctx.needs_input_grad[0],
    )  # fmt: skip
    d_x, d_linear, others = found[0], found[1:9], iter(found[9:])
    d_edge, d_gate = (None if one is None else next(others) for one in (edge, gate))
    d_x = d_x if ctx.needs_input_grad[0] else None
    return d_x, None, None, list(d_linear), d_edge, d_gate, *[None] * 7


torch.library.register_autograd("unimp::conv", _differentiate, setup_context=_save)
