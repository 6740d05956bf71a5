"""A drop-in for `torch_geometric.nn.TransformerConv` that never builds a message per edge.

PyG need not be installed. What is derived from an edge list is kept as long as the list lives:
a training loop that passes the same `edge_index` every epoch pays for sorting it once.
"""

from __future__ import annotations

import warnings
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from unimp.errors import GraphError, RecipeError
from unimp.graph.csr import group, index_dtype, row_of_entry
from unimp.graph.hop import Hop, Schedule, Transpose
from unimp.ops.attention import attention_weights, graph_attention
from unimp.ops.residual import Residual, mix

FLOWS = ("source_to_target", "target_to_source")


class TransformerConv(nn.Module):
    """PyG's TransformerConv: its arguments, call, parameter names and numbers, in less memory.

        q_i = W_q x_i + b_q      k_j = W_k x_j + b_k      v_j = W_v x_j + b_v
        α_ij = softmax_j( q_i·(k_j + W_e e_ij) / √C )
        m_i = ‖_h Σ_j α_ij (v_j + W_e e_ij)                   (the mean over heads, if not `concat`)

        root_weight           x'_i = m_i + r_i,  r_i = W_r x_i + b_r           (without it: m_i)
        … and `beta`          x'_i = β_i r_i + (1 − β_i) m_i,
                              β_i = sigmoid( w·[m_i ; r_i ; m_i − r_i] )

    `in_channels` is one width or a pair (sources, targets); a width of −1, and an `edge_dim` of
    −1, is learned from the first call. `dropout` drops attention weights in training. Old
    checkpoints load as they are, and the same seed starts from the same weights.

    Of the options of PyG's base class, `flow` may be either; the others are there to be left as
    they are, since there are no messages to which another value could apply.
    """

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        beta: bool = False,
        dropout: float = 0.0,
        edge_dim: int | None = None,
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
        if flow not in FLOWS:
            raise RecipeError(f"flow is {flow!r}; it is one of {', '.join(map(repr, FLOWS))}")
        if not 0.0 <= dropout < 1.0:
            raise RecipeError(f"dropout is {dropout}; it is at least 0 and less than 1")
        _refuse_unless(aggr in ("add", "sum"), f"aggr={aggr!r}", "adds messages up", "aggr='add'")
        _refuse_unless(not aggr_kwargs, f"aggr_kwargs={aggr_kwargs!r}", "adds messages up", "none")
        _refuse_unless(node_dim == 0, f"node_dim={node_dim}", "takes one row a node", "node_dim=0")
        _refuse_unless(
            decomposed_layers == 1,
            f"decomposed_layers={decomposed_layers}",
            "has no messages to cut up",
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
        # There without `root_weight` too, unused: PyG's checkpoints hold it.
        self.lin_skip = _linear(of_target, out_width, bias=bias)
        self.lin_beta = nn.Linear(3 * out_width, 1, bias=False) if self.beta else None
        # PyG draws twice as well; so the same seed gives the same weights.
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights anew."""
        for linear in (
            self.lin_key,
            self.lin_query,
            self.lin_value,
            self.lin_edge,
            self.lin_skip,
            self.lin_beta,
        ):
            if linear is not None:
                linear.reset_parameters()

    def forward(
        self,
        x: Tensor | tuple[Tensor, Tensor],
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        return_attention_weights: bool | None = None,
    ) -> Tensor | tuple[Tensor, tuple[Tensor, Tensor]]:
        """x [N, in] or a pair ([S, in], [T, in]) → [T, heads · out], or [T, out] of averaged heads.

        edge_index [2, E], in any order: messages go from sources edge_index[0] to targets
        edge_index[1] (the other way round for flow="target_to_source"). Or a torch.sparse
        matrix [T, S], the transposed adjacency, of which only the places of entries count.
        edge_attr [E, edge_dim], in the order of the edges.

        With `return_attention_weights` (True or, as in PyG, False) returns also (edge_index, α),
        α [E, heads] before dropout, in the order of the edges. Gradients do not flow through α.
        """
        sources, targets = (x, x) if isinstance(x, Tensor) else x
        query = self._by_head(self.lin_query(targets))
        key = self._by_head(self.lin_key(sources))
        value = self._by_head(self.lin_value(sources))
        edges = in_edges(edge_index, len(key), len(query), flow=self.flow, device=query.device)
        edge_weight = self._edge_weight(edge_attr, edges)
        hop = edges.hop_with(edge_attr)
        dropout = self.dropout if self.training else 0.0
        message = graph_attention(
            query,
            key,
            value,
            hop,
            edge_weight=edge_weight,
            dropout=dropout,
            seed=torch.randint(2**31, (), device=query.device) if dropout else 0,
        )
        out = message.flatten(1) if self.concat else message.mean(1)
        if self.root_weight:
            kept = self.lin_skip(targets)
            if self.lin_beta is None:
                out = out + kept
            else:
                on_message, on_kept, on_difference = self.lin_beta.weight.view(3, -1)
                # w·[m; r; m−r] = (w1+w3)·m + (w2−w3)·r: the concatenation need not be built.
                out = mix(out, kept, Residual(on_kept - on_difference, on_message + on_difference))
        if not isinstance(return_attention_weights, bool):
            return out
        weights = attention_weights(query, key, hop, edge_weight=edge_weight)
        return out, (edge_index, edges.as_given(weights))

    def _edge_weight(self, edge_attr: Tensor | None, edges: InEdges) -> Tensor | None:
        """What encodes edge features: [H, C, edge_dim]; None where there are none."""
        if self.lin_edge is None:
            if edge_attr is not None:
                raise GraphError(
                    "edge_attr is given, but the layer was made without edge_dim; make it with "
                    f"edge_dim={edge_attr.shape[-1]}, or leave edge_attr out"
                )
            return None
        if edge_attr is None:
            raise GraphError(
                f"the layer was made with edge_dim={self.edge_dim}, but edge_attr is not given; "
                "pass one row of features an edge"
            )
        if isinstance(self.lin_edge, nn.LazyLinear):
            self.lin_edge(edge_attr[:0])  # it meets no edge, so it must be told its width
        expected = (edges.hop.num_edges, self.lin_edge.in_features)
        if edge_attr.shape != expected:
            raise GraphError(
                f"edge_attr has shape {tuple(edge_attr.shape)}; for these edges and this layer it "
                f"needs {expected}: one row an edge, in the order of edge_index"
            )
        return self.lin_edge.weight.view(self.heads, self.out_channels, -1)

    def _by_head(self, rows: Tensor) -> Tensor:
        return rows.view(-1, self.heads, self.out_channels)

    def __repr__(self) -> str:
        return f"TransformerConv({self.in_channels}, {self.out_channels}, heads={self.heads})"


@dataclass(frozen=True, eq=False)
class _EdgesOf(Hop):
    """The edges of another hop with edge features of their own.

    What is derived from the edges alone is kept with the lender, for later calls.
    """

    lender: Hop = field(kw_only=True)

    @cached_property
    def target(self) -> Tensor:
        return self.lender.target

    @cached_property
    def transpose(self) -> Transpose:
        return self.lender.transpose

    @cached_property
    def schedule(self) -> Schedule:
        return self.lender.schedule


class InEdges(NamedTuple):
    """An edge list, grouped by target."""

    hop: Hop
    order: Tensor | None  # [E] the edge that stands in each slot; None: they stand as given

    def hop_with(self, edge_attr: Tensor | None) -> Hop:
        """The hop, with edge features that are given in the order of the list."""
        if edge_attr is not None and self.order is not None:
            edge_attr = edge_attr.index_select(0, self.order)
        hop = self.hop
        return _EdgesOf(hop.indptr, hop.source, hop.num_sources, edge_attr, lender=hop)

    def as_given(self, rows: Tensor) -> Tensor:
        """One row a slot → the same rows in the order of the list."""
        if self.order is None:
            return rows
        return torch.empty_like(rows).index_copy_(0, self.order.long(), rows)


class _Stamp(NamedTuple):
    """What says that an edge list is still the one seen before, and asked the same of."""

    version: int
    data_ptr: int
    shape: torch.Size
    num_sources: int
    num_targets: int
    flow: str
    device: torch.device


# Keyed weakly on the tensor itself: an entry dies with its edge list, so no other list that comes
# to lie at the same address is taken for it, and all layers of a model share one.
_SEEN: MutableMapping[Tensor, tuple[_Stamp, InEdges]] = WeakTensorKeyDictionary()


def in_edges(
    edge_index: Tensor, num_sources: int, num_targets: int, *, flow: str, device: torch.device
) -> InEdges:
    """The edges of a list [2, E] or a sparse matrix [T, S], grouped by target, on a device.

    The last answer for each list is kept while the list lives, and given again unless the list
    was changed. torch counts changes made through torch: of a list that shares its memory with a
    numpy array, pass a new tensor when the array changes.
    """
    edges = _checked_list(edge_index, num_sources, num_targets, flow)
    if edges.is_inference():  # torch does not count its changes
        return _grouped(edges, num_sources, num_targets, flow, device)
    data_ptr = edges.data_ptr() if edges.layout == torch.strided else 0
    stamp = _Stamp(edges._version, data_ptr, edges.shape, num_sources, num_targets, flow, device)
    seen = _SEEN.get(edges)
    if seen is None or seen[0] != stamp:
        seen = stamp, _grouped(edges, num_sources, num_targets, flow, device)
        _SEEN[edges] = seen
    return seen[1]


def _grouped(
    edges: Tensor, num_sources: int, num_targets: int, flow: str, device: torch.device
) -> InEdges:
    # What is kept may be used in training, which refuses tensors made in inference mode.
    with torch.inference_mode(False), torch.no_grad():
        source, target = (end.to(device) for end in _ends(edges))
        if flow == "target_to_source":
            source, target = target, source
        _check_range(source, num_sources, "source")
        _check_range(target, num_targets, "target")
        dtype = index_dtype(max(source.numel(), num_sources, num_targets))
        indptr, order = group(target.to(dtype), num_targets)
        source = source.to(dtype)[order.long()]  # a copy: what is kept must not keep the list alive
        as_given = bool((target[1:] >= target[:-1]).all())
        return InEdges(Hop(indptr.to(dtype), source, num_sources), None if as_given else order)


def _ends(edges: Tensor) -> tuple[Tensor, Tensor]:
    """The sources and targets of messages: [E] each, in the order that edges are stored in."""
    if edges.layout == torch.sparse_csr:
        return edges.col_indices(), row_of_entry(edges.crow_indices())
    if edges.layout == torch.sparse_coo:
        target, source = edges._indices()  # entries that coincide are edges of their own
        return source, target
    return edges[0], edges[1]


def _checked_list(edge_index: Any, num_sources: int, num_targets: int, flow: str) -> Tensor:
    # PyG's EdgeIndex wraps the tensor that holds the edges.
    edges = edge_index.as_tensor() if hasattr(edge_index, "as_tensor") else edge_index
    if not isinstance(edges, Tensor):
        raise GraphError(
            f"edge_index is a {type(edges).__name__}; it needs to be a tensor [2, E] or a "
            "torch.sparse matrix, such as adj_t.to_torch_sparse_csr_tensor() makes of a "
            "SparseTensor"
        )
    if edges.layout in (torch.sparse_coo, torch.sparse_csr):
        if flow == "target_to_source":
            raise GraphError(
                "a sparse matrix says by itself which way messages go; with "
                "flow='target_to_source' pass edge_index, or drop the flow and pass adj_t.t()"
            )
        if edges.shape[:2] != (num_targets, num_sources):
            raise GraphError(
                f"the sparse matrix has shape {tuple(edges.shape[:2])} for {num_targets} targets "
                f"and {num_sources} sources; it needs one row a target and one column a source "
                "(the transposed adjacency)"
            )
        return edges
    if edges.layout != torch.strided:
        raise GraphError(f"edge_index has layout {edges.layout}; convert it: .to_sparse_csr()")
    if edges.ndim != 2 or edges.shape[0] != 2:
        hint = "; transpose it" if edges.ndim == 2 and edges.shape[1] == 2 else ""
        raise GraphError(
            f"edge_index has shape {tuple(edges.shape)}; it needs shape (2, E), sources above "
            f"targets{hint}"
        )
    if edges.dtype.is_floating_point or edges.dtype.is_complex or edges.dtype == torch.bool:
        raise GraphError(f"edge_index is {edges.dtype}; it must be whole node numbers")
    return edges


def _check_range(nodes: Tensor, count: int, name: str) -> None:
    if nodes.numel() == 0:
        return
    least, most = (int(end) for end in torch.stack(torch.aminmax(nodes)))
    if least < 0 or most >= count:
        raise GraphError(
            f"edge_index names {name} {least if least < 0 else most}, but x has {count} {name} "
            f"rows, numbered 0..{count - 1}; give x a row for every node, or renumber the edges"
        )


def _refuse_unless(accepted: bool, given: str, because: str, instead: str) -> None:
    if not accepted:
        raise RecipeError(
            f"{given} is not supported: this layer {because}; pass {instead}, or keep PyG's layer"
        )


def _linear(in_width: int, out_width: int, *, bias: bool) -> nn.Linear:
    """A linear map; one of unknown width (not above 0) takes it from its first input."""
    if in_width > 0:
        return nn.Linear(in_width, out_width, bias=bias)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch calls all lazy modules new
        return nn.LazyLinear(out_width, bias=bias)
