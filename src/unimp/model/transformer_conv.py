"""A replacement for `torch_geometric.nn.TransformerConv` that never builds a message per edge.

PyG does not need to be installed. Data derived from an edge list is stored as long as the list
exists, so a training loop that passes the same `edge_index` in every epoch sorts it only once.
"""

from __future__ import annotations

import warnings
from collections.abc import MutableMapping
from typing import Annotated, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.nn.modules.module import _has_any_global_hook

from unimp.config.arguments import Range, Size, checked
from unimp.errors import GraphError, ModelError
from unimp.graph.edge_list import InEdges, on_edges
from unimp.ops.attention import attention_weights, graph_attention
from unimp.ops.dropout import is_drawn_per_node
from unimp.ops.layer import Weights, attention_layer, can_fuse
from unimp.ops.layer_operator import can_trace, traced_layer
from unimp.ops.projection import Shape
from unimp.ops.recording import Recordings
from unimp.ops.replay import Recording, replayed_layer
from unimp.ops.residual import Residual, gate_vectors, mix

Channels = Annotated[int, Range(-1, 65_537)]
"""A width; −1 means the width of the first input."""
FLOWS = ("source_to_target", "target_to_source")

# Stored outside the layers, so that copies, pickles and checkpoints of a layer have no recording.
_RECORDINGS: MutableMapping[nn.Module, Recordings[Recording]] = WeakKeyDictionary()


class TransformerConv(nn.Module):
    """PyG's TransformerConv with the same arguments, parameter names and results, in less memory.

        q_i = W_q x_i + b_q      k_j = W_k x_j + b_k      v_j = W_v x_j + b_v
        α_ij = softmax_j( q_i·(k_j + W_e e_ij) / √C )
        m_i = ‖_h Σ_j α_ij (v_j + W_e e_ij)                   (the mean over heads if not `concat`)

        root_weight           x'_i = m_i + r_i,  r_i = W_r x_i + b_r           (without it: m_i)
        … and `beta`          x'_i = β_i r_i + (1 − β_i) m_i,
                              β_i = sigmoid( w·[m_i ; r_i ; m_i − r_i] )

    `in_channels` is one width or a pair (sources, targets). A width or an `edge_dim` of −1 is
    determined by the first call. `dropout` drops attention weights in training. Checkpoints of PyG
    load unchanged, and the same seed gives the same initial weights.

    Of the options of PyG's base class, only `flow` can be changed. The others accept only their
    default, because this layer has no messages to which another value could apply.

    On a GPU, calls that are repeated with the same edges, shapes and precision are recorded as CUDA
    graphs and then replayed. The results are the same, and your code does not change. A recording
    occupies memory as long as the layer and the edges exist. `layer.replay = False` turns this off
    for one layer, and `TransformerConv.replay = False` for all.

    torch.compile treats the layer as one operator on CPU, and on a GPU if `replay` is False.
    Otherwise, and for calls that the operator does not support, the compiled graph has a graph
    break at the layer.
    """

    replay = True

    @checked
    def __init__(
        self,
        in_channels: Channels | tuple[Channels, Channels],
        out_channels: Size,
        heads: Size = 1,
        concat: bool = True,
        beta: bool = False,
        dropout: float = 0.0,
        edge_dim: Channels | None = None,
        bias: bool = True,
        root_weight: bool = True,
        *,
        aggr: Any = "add",
        aggr_kwargs: dict[str, Any] | None = None,
        flow: str = "source_to_target",
        node_dim: int = 0,
        decomposed_layers: int = 1,
    ) -> None:
        super().__init__()
        if in_channels in (0, (0, 0)) or edge_dim == 0:
            raise ModelError("in_channels or edge_dim is 0; give a width, or −1 to infer it")
        if flow not in FLOWS:
            raise ModelError(
                f"flow {flow!r} does not exist; choose one of {', '.join(map(repr, FLOWS))}"
            )
        if not 0.0 <= dropout < 1.0:
            raise ModelError(f"dropout must be at least 0 and less than 1, not {dropout}")
        _require(aggr in ("add", "sum"), f"aggr={aggr!r}", "adds messages", "aggr='add'")
        _require(not aggr_kwargs, f"aggr_kwargs={aggr_kwargs!r}", "adds messages", "no aggr_kwargs")
        _require(node_dim == 0, f"node_dim={node_dim}", "expects one row per node", "node_dim=0")
        _require(
            decomposed_layers == 1,
            f"decomposed_layers={decomposed_layers}",
            "has no messages to divide",
            "decomposed_layers=1",
        )
        self.in_channels, self.out_channels, self.heads = in_channels, out_channels, heads
        self.concat, self.dropout, self.edge_dim = concat, dropout, edge_dim
        self.root_weight, self.beta, self.flow = root_weight, beta and root_weight, flow

        of_source, of_target = (
            (in_channels, in_channels) if isinstance(in_channels, int) else in_channels
        )
        width = heads * out_channels
        out_width = width if concat else out_channels
        self.lin_key = _linear(of_source, width, bias=bias)
        self.lin_query = _linear(of_target, width, bias=bias)
        self.lin_value = _linear(of_source, width, bias=bias)
        self.lin_edge = None if edge_dim is None else _linear(edge_dim, width, bias=False)
        # Also created without `root_weight`, but unused: PyG's checkpoints contain it.
        self.lin_skip = _linear(of_target, out_width, bias=bias)
        self.lin_beta = nn.Linear(3 * out_width, 1, bias=False) if self.beta else None
        # PyG also initializes twice, so the same seed gives the same weights.
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights again."""
        for linear in self.children():  # in the order in which PyG draws them
            linear.reset_parameters()  # type: ignore[operator]

    def forward(
        self,
        x: Tensor | tuple[Tensor, Tensor],
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        return_attention_weights: bool | None = None,
    ) -> Tensor | tuple[Tensor, tuple[Tensor, Tensor]]:
        """Map x [N, in] or a pair ([S, in], [T, in]) to [T, heads · out], or [T, out] if averaged.

        edge_index: [2, E], in any order; messages go from sources edge_index[0] to targets
        edge_index[1] (reversed for flow="target_to_source"). Alternatively a torch.sparse matrix
        [T, S], the transposed adjacency, whose values are ignored.
        edge_attr: [E, edge_dim], in the order of the edges.

        With `return_attention_weights` (True or, as in PyG, False), also returns (edge_index, α);
        α [E, heads] is before dropout, in the order of the edges, and takes no gradient.
        """
        if torch.compiler.is_compiling():
            is_usual = isinstance(x, Tensor) and return_attention_weights is None
            if is_usual and self._can_trace(x, edge_index, edge_attr):
                return self._traced(x, edge_index, edge_attr)
            return self._untraced(x, edge_index, edge_attr, return_attention_weights)
        return self._forward(x, edge_index, edge_attr, return_attention_weights)

    def _forward(
        self,
        x: Tensor | tuple[Tensor, Tensor],
        edge_index: Tensor,
        edge_attr: Tensor | None,
        return_attention_weights: bool | None,
    ) -> Tensor | tuple[Tensor, tuple[Tensor, Tensor]]:
        sources, targets = (x, x) if isinstance(x, Tensor) else x
        sizes = sources.shape[:-1].numel(), targets.shape[:-1].numel()
        with_weights = isinstance(return_attention_weights, bool)

        def run(edges: InEdges) -> tuple[Tensor, Tensor | None]:
            is_square = sources is targets and not with_weights
            if is_square and self._can_fuse(sources, edges, edge_attr):
                return self._fused(sources, edges, edge_attr), None
            out, weights = self._by_parts(sources, targets, edges, edge_attr, with_weights)
            return out, None if weights is None else edges.in_list_order(weights)

        out, weights = on_edges(edge_index, *sizes, run, flow=self.flow, device=targets.device)
        return out if weights is None else (out, (edge_index, weights))

    # Calls that `_traced` does not support run outside of the compiled graph, because torch.compile
    # would divide the fused steps.
    _untraced = _disable_dynamo(_forward)

    def _can_trace(self, x: Any, edge_index: Any, edge_attr: Tensor | None) -> bool:
        """Whether torch.compile can treat this call as one operator, which replays nothing."""
        return (
            not (self.replay and x.is_cuda)
            and not (self._dropout() and is_drawn_per_node())
            and self._reads_only_weights(x)
            and (edge_attr is None) == (self.lin_edge is None)
            and can_trace(x, edge_index, edge_attr, self._weights())
        )

    def _traced(self, x: Any, edge_index: Tensor, edge_attr: Tensor | None) -> Tensor:
        weights, shape, seed = self._weights(), self._shape(), self._seed(x.device)
        return traced_layer(x, edge_index, edge_attr, weights, shape, self.flow, seed)

    def _by_parts(
        self,
        sources: Tensor,
        targets: Tensor,
        edges: InEdges,
        edge_attr: Tensor | None,
        with_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the output step by step, and α on request."""
        query = self._by_head(self.lin_query(targets))
        key = self._by_head(self.lin_key(sources))
        value = self._by_head(self.lin_value(sources))
        edge_weight = self._edge_weight(edge_attr, edges)
        hop = edges.hop.with_edge_attr(edge_attr, edges.order)
        message = graph_attention(
            query,
            key,
            value,
            hop,
            edge_weight=edge_weight,
            dropout=self._dropout(),
            seed=self._seed(query.device),
        )
        out = message.flatten(1) if self.concat else message.mean(1)
        if self.root_weight:
            kept = self.lin_skip(targets)
            gate = None if self.lin_beta is None else self.lin_beta.weight
            out = mix(out, kept, Residual(*gate_vectors(gate, kept_first=False)))
        if not with_weights:
            return out, None
        return out, attention_weights(query, key, hop, edge_weight=edge_weight)

    def _can_fuse(self, x: Tensor, edges: InEdges, edge_attr: Tensor | None) -> bool:
        """Whether the layer can run as one step."""
        return (
            x.ndim == 2
            and x.layout == torch.strided
            and (edge_attr is None or not edge_attr.requires_grad)
            and can_fuse(x, edges.hop, "auto")
            and self._reads_only_weights(x)
        )

    def _reads_only_weights(self, x: Tensor) -> bool:
        """Whether the layer has all of its weights and can use them without calling its modules."""
        return (
            self.root_weight
            and self.lin_query.bias is not None
            and all(map(_is_plain, self._modules.values()))
            and not _has_any_global_hook()  # type: ignore[no-untyped-call]
            and _have_matching_types(x, self.lin_query.weight)
        )

    def _fused(self, x: Tensor, edges: InEdges, edge_attr: Tensor | None) -> Tensor:
        """Compute the output in one step; on a GPU, repeated calls are recorded and replayed."""
        self._check_features(edge_attr, edges)
        weights, shape, seed = self._weights(), self._shape(), self._seed(x.device)
        if not self.replay:
            hop = edges.hop.with_edge_attr(edge_attr, edges.order)
            return attention_layer(x, hop, weights, shape, seed=seed, backend="auto")
        recordings = _RECORDINGS.get(self)
        if recordings is None:
            recordings = _RECORDINGS[self] = Recordings()
        return replayed_layer(
            recordings,
            x,
            edges.hop,
            weights,
            shape,
            edge_attr=edge_attr,
            order=edges.order,
            seed=seed,
        )

    def _weights(self) -> Weights:
        # Looking up modules and parameters as attributes would take longer than launching a kernel.
        modules = self._modules
        linears = [modules[name] for name in ("lin_query", "lin_skip", "lin_key", "lin_value")]
        weights = [_read(one, name) for name in ("weight", "bias") for one in linears]
        edge, gate = (_read(modules.get(name), "weight") for name in ("lin_edge", "lin_beta"))
        return Weights._make([*weights, edge, None, gate, None, None, None])

    def _shape(self) -> Shape:
        return Shape(self.heads, self.out_channels, self.concat, self._dropout(), kept_first=False)

    def _dropout(self) -> float:
        return self.dropout if self.training else 0.0

    def _seed(self, device: torch.device) -> Tensor | int:
        return torch.randint(2**31, (), device=device) if self._dropout() else 0

    def _edge_weight(self, edge_attr: Tensor | None, edges: InEdges) -> Tensor | None:
        """The weights that encode edge features: [H, C, edge_dim]; None without edge features."""
        self._check_features(edge_attr, edges)
        if self.lin_edge is None:
            return None
        return self.lin_edge.weight.view(self.heads, self.out_channels, -1)

    def _check_features(self, edge_attr: Tensor | None, edges: InEdges) -> None:
        encoder = self._modules.get("lin_edge")
        if encoder is None:
            if edge_attr is not None:
                raise GraphError(
                    "edge_attr is given, but the layer was built without edge_dim; build it with "
                    f"edge_dim={edge_attr.shape[-1]}, or leave edge_attr out"
                )
            return
        if edge_attr is None:
            raise GraphError(
                f"the layer was built with edge_dim={self.edge_dim}, but edge_attr is missing; "
                "pass one row of features per edge"
            )
        if isinstance(encoder, nn.LazyLinear):
            encoder(edge_attr[:0])  # determines its width; no edge is encoded
        expected = (edges.hop.num_edges, encoder.in_features)
        if edge_attr.shape != expected:
            raise GraphError(
                f"edge_attr has shape {tuple(edge_attr.shape)}; for these edges and this layer it "
                f"needs {expected}: one row per edge, in the order of edge_index"
            )

    def _by_head(self, rows: Tensor) -> Tensor:
        return rows.view(-1, self.heads, self.out_channels)

    def __repr__(self) -> str:
        return f"TransformerConv({self.in_channels}, {self.out_channels}, heads={self.heads})"


def _require(accepted: bool, given: str, because: str, instead: str) -> None:
    if not accepted:
        raise ModelError(
            f"{given} is not supported: this layer {because}; pass {instead}, or use PyG's layer"
        )


def _linear(in_width: int, out_width: int, *, bias: bool) -> nn.Linear:
    """Create a linear map; the first input determines a width that is not positive."""
    if in_width > 0:
        return nn.Linear(in_width, out_width, bias=bias)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns that lazy modules are new
        return nn.LazyLinear(out_width, bias=bias)


def _is_plain(linear: nn.Module | None) -> bool:
    """Whether calling a module would only apply its weight and bias."""
    if type(linear) is not nn.Linear:
        return linear is None
    of = linear.__dict__
    return not (
        of["_forward_hooks"]
        or of["_forward_pre_hooks"]
        or of["_backward_hooks"]
        or of["_backward_pre_hooks"]
    )


def _read(module: nn.Module | None, name: str) -> Tensor | None:
    """A parameter of a module, or the attribute that replaces it."""
    if module is None:
        return None
    found = module._parameters.get(name)
    return getattr(module, name) if found is None else found


def _have_matching_types(x: Tensor, weight: Tensor) -> bool:
    """Whether a linear map would accept x; autocast does not cast double precision."""
    if x.dtype == weight.dtype:
        return True
    casts = torch.is_autocast_enabled(x.device.type)
    return casts and torch.float64 not in (x.dtype, weight.dtype) and x.is_floating_point()
