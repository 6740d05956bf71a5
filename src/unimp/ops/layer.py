"""A whole graph transformer layer as one autograd function.

As separate functions, its steps would each read and write tensors of size nodes × width: four
projections, gradients that are added or concatenated, and one sum per bias. Here, one projection
computes [q|r|k|v] (two projections if there are fewer targets than sources). Attention and residual
read and write slices of it, and its gradient is one tensor that is multiplied by the weights once.

    P = h Wᵀ + b      o, ē, A = attend(q, k, v)      m = o + ē W_eᵀ + A c      out = residual(m, r)

Only the targets are projected if that is faster: see `ops/absorbed.py`.

The edge encoder of all heads is one block-diagonal matrix, B [H·D, H·d_e]: u = q B, m = o + ē Bᵀ.

The function receives parameters in their stored form. Everything derived from them, and the casts
of mixed precision, are computed inside the function: on a small graph a GPU waits for Python, and
each tensor that autograd does not have to track saves time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from unimp.errors import ModelError
from unimp.graph.hop import Hop
from unimp.ops import absorbed, fused, native, residual
from unimp.ops.attention import HALF, as_seed, choose_backend, without_autocast
from unimp.ops.dropout import numbered
from unimp.ops.fused import Backward, Edges, Forward, Operands, exact_dtype
from unimp.ops.products import linear
from unimp.ops.projection import Projection, Shape, project
from unimp.ops.residual import Residual, gate_vectors, grad_of_gate
from unimp.ops.saved import Attended, Inputs, State, restore, save


class Weights(NamedTuple):
    """The weights of a layer as its modules store them; None for parts that it does not have."""

    query: Tensor  # W_q [H·D, F]
    kept: Tensor  # W_r [C, F]
    key: Tensor  # W_k [H·D, F]
    value: Tensor  # W_v [H·D, F]
    query_bias: Tensor
    kept_bias: Tensor
    key_bias: Tensor
    value_bias: Tensor
    edge: Tensor | None = None  # W_e [H·D, d_e]
    edge_bias: Tensor | None = None  # c [H·D]
    gate: Tensor | None = None  # w_g [1, 3C]
    gate_bias: Tensor | None = None  # [1]
    norm: Tensor | None = None  # [C]
    norm_bias: Tensor | None = None  # [C]


class Call(NamedTuple):
    """The arguments that take no gradient."""

    hop: Hop
    shape: Shape
    seed: Tensor
    kernel: fused.Kernel
    dtype: torch.dtype  # of the computation, except for the parameters of the residual
    grad_enabled: bool


def can_fuse(h: Tensor, hop: Hop, backend: str) -> bool:
    """Whether `attention_layer` can run; while compiling it does not, as torch fuses by itself."""
    if torch.compiler.is_compiling():
        return False
    if hop.edge_attr is not None and hop.edge_attr.requires_grad:
        return False
    return has_kernel(h, backend)


def has_kernel(h: Tensor, backend: str) -> bool:
    """Whether a kernel computes attention of rows like h."""
    if choose_backend(backend, h.device.type) not in ("native", "triton"):
        return False
    return h.device.type != "cpu" or dtype_of(h) in native.DTYPES


def dtype_of(h: Tensor) -> torch.dtype:
    """The type in which a layer computes."""
    device = h.device.type
    casts = torch.is_autocast_enabled(device) and h.dtype != torch.float64
    return torch.get_autocast_dtype(device) if casts else h.dtype


def attention_layer(
    h: Tensor, hop: Hop, weights: Weights, shape: Shape, *, seed: Tensor | int, backend: str
) -> Tensor:
    """Run a layer: h [num_sources, F] → [num_targets, C]; C is H·D with `concat`, else D."""
    if len(h) != hop.num_sources:
        raise ModelError(
            f"h has {len(h)} rows; this hop has {hop.num_sources} sources; give one row each"
        )
    if weights.edge is not None:
        wanted = (hop.num_edges, weights.edge.shape[1])
        if hop.edge_attr is None or hop.edge_attr.shape != wanted:
            given = None if hop.edge_attr is None else tuple(hop.edge_attr.shape)
            raise ModelError(
                f"the hop has edge features of shape {given}; this layer needs shape {wanted}"
            )
    hop, seed = numbered(hop, seed, shape.dropout)
    call = call_of(h, hop, shape, seed=seed, backend=backend)
    out: Tensor = _Layer.apply(h, *weights, call)  # type: ignore[no-untyped-call]
    return out


def call_of(h: Tensor, hop: Hop, shape: Shape, *, seed: Tensor | int, backend: str) -> Call:
    """Collect the arguments of a layer that take no gradient."""
    return Call(
        hop,
        shape,
        as_seed(seed, h.device),
        choose_backend(backend, h.device.type),  # type: ignore[arg-type]
        dtype_of(h),
        torch.is_grad_enabled(),
    )


def can_store_projections(h: Tensor, backend: str) -> bool:
    """Whether projections of h can be stored and used by `attention_of_rows`."""
    if h.device.type != "cpu" or dtype_of(h) in HALF:
        return False
    return choose_backend(backend, "cpu") == "native"


@torch.no_grad()
def project_rows(h: Tensor, weights: Weights) -> Tensor:
    """Project rows h [n, F] to [q|r|k|v], to be stored."""
    return linear(h, torch.cat(weights[:4]), torch.cat(weights[4:8]))


@torch.no_grad()
def attention_of_rows(
    rows: Tensor, targets: Tensor, hop: Hop, weights: Weights, shape: Shape
) -> Tensor:
    """Run a layer on the native kernel over stored projections: [num_targets, C].

    rows: [num_sources, …] of `project_rows`. targets: [num_targets] the sources that are targets.
    """
    cut = rows.shape[1] - 2 * shape.heads * shape.width
    parts = Projection(rows[:, :cut].index_select(0, targets), rows[:, cut:], shape)
    edges = fused.edges_of(hop, "native", backward=False)
    call = Call(hop, shape, as_seed(0, rows.device), "native", rows.dtype, grad_enabled=False)
    message, _ = _attend(parts, weights, edges, call)
    if not shape.concat:
        message = message.view(-1, shape.heads, shape.width).mean(1)
    step = residual_step(weights, shape)
    return residual.kernels("native").residual_forward(message, parts.kept, step)[0]


def residual_step(weights: Weights, shape: Shape) -> Residual:
    """The step that follows the message."""
    gate = gate_vectors(weights.gate, kept_first=shape.kept_first)
    vectors = (*gate, weights.gate_bias, weights.norm, weights.norm_bias)
    return Residual(*vectors, shape.eps, shape.relu)


class _Layer(torch.autograd.Function):
    """The forward and backward passes of a layer; autocast is disabled within them."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, *given: Any) -> Tensor:
        with without_autocast(h.device.type):
            return layer_forward(ctx, h, Weights(*given[:-1]), given[-1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        with without_autocast(grads[0].device.type):
            d_h, found = layer_backward(ctx, grads[0])
        return d_h, *found, None


def layer_forward(ctx: Any, h: Tensor, weights: Weights, call: Call) -> Tensor:
    """Run the forward pass; `ctx` is a `FunctionCtx` or a `Saved`."""
    hop, shape, seed, kernel, dtype, grad_enabled = call
    # Parameters require gradients in inference too; then nothing is saved for them.
    trains = grad_enabled and any(ctx.needs_input_grad)
    edges = fused.edges_of(hop, kernel, backward=trains)
    h, weight, bias = cast_inputs(h, weights, dtype)
    attention: Attended | absorbed.Absorbed
    if absorbs(h, weights, hop.num_targets, hop.num_edges, shape, kernel):
        h = h.contiguous()
        message, parts, attention = absorbed.forward(
            h, hop.num_targets, weight, bias, edges, shape, seed
        )
    else:
        parts = project(h, weight, bias, hop.num_targets, shape)
        message, attention = _attend(parts, weights, edges, call)
    if not shape.concat:
        message = message.view(-1, shape.heads, shape.width).mean(1)
    step = residual_step(weights, shape)
    out, row_stats = residual.kernels(kernel).residual_forward(message, parts.kept, step)
    if trains:
        inputs = Inputs(h, weight, bias, parts.of_targets, message, seed)
        state = State(inputs, row_stats, step, edges, attention)
        save(ctx, state, weights, shape, kernel)
    return out


def cast_inputs(h: Tensor, weights: Weights, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return h, the weight [W_q; W_r; W_k; W_v] and its bias in the type of the computation."""
    return h.to(dtype), torch.cat(weights[:4]).to(dtype), torch.cat(weights[4:8]).to(dtype)


def absorbs(
    h: Tensor, weights: Weights, targets: int, edges: int, shape: Shape, kernel: str
) -> bool:
    """Whether the layer projects only its targets; see `ops/absorbed.py`."""
    if kernel != "native" or weights.edge is not None:
        return False
    return absorbed.pays(h.shape[0], targets, edges, h.shape[1], shape.width)


def layer_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, tuple[Tensor | None, ...]]:
    """Compute the gradients of h and of each weight."""
    shape, kernel = ctx.shape, ctx.kernel
    inputs, row_stats, step, edges, attention = restore(ctx)
    h, weight, bias, of_targets, message, seed = inputs
    if isinstance(attention, Attended):
        parts = Projection(of_targets, attention.of_sources, shape)
    else:
        parts = Projection(of_targets, None, absorbed.shape_of_targets(shape, h.shape[1]))
    found = parts.like()
    rows = grad, message, parts.kept, step, row_stats, found.kept
    terms = _empty_terms(attention, shape, kernel)
    if terms is None:
        grad_message, sums = residual.kernels(kernel).residual_backward(*rows)
    else:
        from unimp.ops.triton.residual import residual_backward

        grad_message, sums = residual_backward(*rows, attention.log_sum, terms)
    if not shape.concat:
        grad_message = (grad_message / shape.heads).repeat(1, shape.heads)
    d_edge = d_edge_bias = None
    if isinstance(attention, Attended):
        d_edge, d_edge_bias = _attend_backward(
            grad_message, parts, found, attention, edges, shape, kernel, seed, terms
        )
        d_h, d_weight, d_bias = found.project_back(h, weight, ctx.needs_input_grad[0])
    else:
        d_h, d_weight, d_bias = absorbed.backward(
            grad_message, h, weight, bias, parts, found, attention, edges, shape, seed,
            ctx.needs_input_grad[0],
        )  # fmt: skip
    d_gate = None
    if step.on_kept is not None:
        d_gate = grad_of_gate(sums.on_kept, sums.on_message, kept_first=shape.kept_first)
    gradients: tuple[Tensor | None, ...] = (
        *torch.split(d_weight.to(ctx.dtypes[0]), ctx.widths),
        *torch.split(d_bias.to(ctx.dtypes[4]), ctx.widths),
        d_edge,
        d_edge_bias,
        d_gate,
        sums.gate_bias,
        sums.weight,
        sums.bias,
    )
    as_stored = (
        None if dtype is None or grad is None else grad.to(dtype)
        for dtype, grad in zip(ctx.dtypes, gradients, strict=True)
    )
    return d_h, tuple(as_stored)


def _empty_terms(
    attention: Attended | absorbed.Absorbed, shape: Shape, kernel: fused.Kernel
) -> Tensor | None:
    """Memory for what attention needs per target if the residual step can compute it; else None."""
    if kernel != "triton" or not isinstance(attention, Attended):
        return None
    from unimp.ops.triton.residual import can_find_terms

    # The message is the result of attention: no edge features are added, heads are not averaged.
    is_result = attention.encoder is None and shape.concat
    if not is_result or not can_find_terms(shape.heads, shape.width):
        return None
    return attention.log_sum.new_empty((*attention.log_sum.shape, 2))


def edge_encoder(weights: Weights, call: Call) -> tuple[Tensor | None, Tensor | None]:
    """The edge features as the kernel reads them, and B; None for a layer without them."""
    if weights.edge is None:
        return None, None
    edge_attr, shape = call.hop.edge_attr, call.shape
    if call.kernel == "native" and edge_attr is not None:
        edge_attr = edge_attr.to(exact_dtype(call.dtype))
    by_head = weights.edge.to(call.dtype).view(shape.heads, shape.width, -1)
    return edge_attr, torch.block_diag(*by_head)  # type: ignore[no-untyped-call]


def _attend(
    parts: Projection, weights: Weights, edges: Edges, call: Call
) -> tuple[Tensor, Attended]:
    """Compute the messages [T, H·D] by attention over projected sources."""
    shape, dtype = call.shape, call.dtype
    edge_attr, encoder = edge_encoder(weights, call)
    edge_query = bias_map = None
    if encoder is not None:
        of_edges = exact_dtype(dtype) if call.kernel == "native" else dtype
        edge_query = (parts.query @ encoder).view(len(parts.query), shape.heads, -1).to(of_edges)
    given = Operands(
        *parts.queries_keys_values(), edge_query, edge_attr, edges, shape.dropout, call.seed
    )
    result = fused.kernels(call.kernel).forward(given)
    message = result.out.flatten(1)
    if encoder is not None:
        message = torch.addmm(message, result.edge_mean.flatten(1).to(dtype), encoder.t())
        if weights.edge_bias is not None:
            bias_map = torch.block_diag(*weights.edge_bias.to(dtype).view(shape.heads, 1, -1))  # type: ignore[no-untyped-call]
            message.addmm_(result.mass.to(dtype), bias_map)
    of_sources = parts.of_sources
    assert of_sources is not None
    return message, Attended(of_sources, edge_query, edge_attr, encoder, bias_map, *result)


def _attend_backward(
    grad_message: Tensor,
    parts: Projection,
    found: Projection,
    saved: Attended,
    edges: Edges,
    shape: Shape,
    kernel: fused.Kernel,
    seed: Tensor,
    terms: Tensor | None,
) -> tuple[Tensor | None, Tensor | None]:
    """Compute the gradients of the edge encoder; those of q, k and v are written to `found`."""
    edge_query, encoder, bias_map = saved.edge_query, saved.encoder, saved.bias_map
    result = Forward(*saved[-4:])
    grad_mean = grad_mass = d_edge_query = grad_message.new_empty(0)
    if encoder is not None and edge_query is not None:
        grad_mean = (grad_message @ encoder).view_as(edge_query).to(edge_query.dtype)
        grad_mass = torch.zeros_like(result.mass)
        if bias_map is not None:
            grad_mass = (grad_message @ bias_map.t()).to(result.mass.dtype)
        d_edge_query = torch.empty_like(edge_query)
    nothing = grad_message.new_empty(0)
    given = Operands(
        *parts.queries_keys_values(), edge_query, saved.edge_attr, edges, shape.dropout, seed
    )
    grads = Forward(parts.by_head(grad_message), grad_mean, grad_mass, nothing)
    into = Backward(*found.queries_keys_values(), d_edge_query, nothing)
    if terms is None:
        fused.kernels(kernel).backward(given, result, grads, into)
    else:
        from unimp.ops.triton.attention import backward

        backward(given, result, grads, into, terms)
    if encoder is None:
        return None, None
    dtype = grad_message.dtype
    d_edge_query = d_edge_query.flatten(1).to(dtype)
    found.query.addmm_(d_edge_query, encoder.t())
    d_encoder = parts.query.t() @ d_edge_query
    d_encoder.addmm_(grad_message.t(), result.edge_mean.flatten(1).to(dtype))
    d_edge_bias = None
    if bias_map is not None:
        d_edge_bias = _blocks(result.mass.to(dtype).t() @ grad_message, shape.heads).flatten()
    return _blocks(d_encoder, shape.heads).flatten(0, 1), d_edge_bias


def _blocks(matrix: Tensor, heads: int) -> Tensor:
    """The diagonal blocks of a matrix [H·R, H·C]: [H, R, C]."""
    rows, columns = matrix.shape[0] // heads, matrix.shape[1] // heads
    each = matrix.view(heads, rows, heads, columns)
    return each.diagonal(dim1=0, dim2=2).permute(2, 0, 1)
