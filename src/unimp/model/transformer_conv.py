"""A replacement for `torch_geometric.nn.TransformerConv` that never builds a message per edge.

PyG does not need to be installed. Data derived from an edge list is stored as long as the list
exists, so a training loop that passes the same `edge_index` in every epoch sorts it only once.
"""

from __future__ import annotations

import warnings
from collections.abc import MutableMapping
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from unimp.config.arguments import Range, Size, checked
from unimp.errors import GraphError, ModelError
from unimp.graph.csr import group, index_dtype, row_of_entry
from unimp.graph.hop import Hop
from unimp.ops.attention import attention_weights, graph_attention
from unimp.ops.residual import Residual, mix

Channels = Annotated[int, Range(-1, 65_537)]
"""A width; −1 means the width of the first input."""
FLOWS = ("source_to_target", "target_to_source")


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
    """

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
                # w·[m; r; m−r] = (w1+w3)·m + (w2−w3)·r, so nothing is concatenated.
                out = mix(out, kept, Residual(on_kept - on_difference, on_message + on_difference))
        if not isinstance(return_attention_weights, bool):
            return out
        weights = attention_weights(query, key, hop, edge_weight=edge_weight)
        return out, (edge_index, edges.in_list_order(weights))

    def _edge_weight(self, edge_attr: Tensor | None, edges: InEdges) -> Tensor | None:
        """The weights that encode edge features: [H, C, edge_dim]; None without edge features."""
        if self.lin_edge is None:
            if edge_attr is not None:
                raise GraphError(
                    "edge_attr is given, but the layer was built without edge_dim; build it with "
                    f"edge_dim={edge_attr.shape[-1]}, or leave edge_attr out"
                )
            return None
        if edge_attr is None:
            raise GraphError(
                f"the layer was built with edge_dim={self.edge_dim}, but edge_attr is missing; "
                "pass one row of features per edge"
            )
        if isinstance(self.lin_edge, nn.LazyLinear):
            self.lin_edge(edge_attr[:0])  # determines its width; it is applied to no edge
        expected = (edges.hop.num_edges, self.lin_edge.in_features)
        if edge_attr.shape != expected:
            raise GraphError(
                f"edge_attr has shape {tuple(edge_attr.shape)}; for these edges and this layer it "
                f"needs {expected}: one row per edge, in the order of edge_index"
            )
        return self.lin_edge.weight.view(self.heads, self.out_channels, -1)

    def _by_head(self, rows: Tensor) -> Tensor:
        return rows.view(-1, self.heads, self.out_channels)

    def __repr__(self) -> str:
        return f"TransformerConv({self.in_channels}, {self.out_channels}, heads={self.heads})"


class InEdges(NamedTuple):
    """An edge list, grouped by target."""

    hop: Hop
    order: Tensor | None  # [E] the edge in each slot; None: the list is already grouped

    def hop_with(self, edge_attr: Tensor | None) -> Hop:
        """The hop with edge features that are given in the order of the list."""
        if edge_attr is not None and self.order is not None:
            edge_attr = edge_attr.index_select(0, self.order)
        return self.hop.with_edge_attr(edge_attr)

    def in_list_order(self, rows: Tensor) -> Tensor:
        """Reorder one row per slot to the order of the list."""
        if self.order is None:
            return rows
        return torch.empty_like(rows).index_copy_(0, self.order.long(), rows)


class _Grouped(NamedTuple):
    """The result for an edge list, and what it was computed from."""

    copies: tuple[Tensor, ...]  # of the tensors that hold the edges
    sizes: tuple[object, ...]  # number of sources and targets, flow and device
    result: InEdges


# The keys are weak references to the tensors themselves: an entry is deleted with its edge list,
# and all layers of a model share one entry.
_CACHE: MutableMapping[Tensor, _Grouped] = WeakTensorKeyDictionary()


def in_edges(
    edge_index: Tensor, num_sources: int, num_targets: int, *, flow: str, device: torch.device
) -> InEdges:
    """Group the edges of a list [2, E] or a sparse matrix [T, S] by target, on a device.

    The last result for each list is reused until the content of the list changes, by any kind of
    write. While a CUDA graph is recorded, nothing can be compared; the content of a known list must
    not have changed then.
    """
    edges = _checked_list(edge_index, num_sources, num_targets, flow)
    sizes = (num_sources, num_targets, flow, device)
    known = _CACHE.get(edges)
    if known is not None and known.sizes == sizes and _is_unchanged(edges, known.copies):
        return known.result
    result = _grouped(edges, num_sources, num_targets, flow, device)
    with torch.inference_mode(False), torch.no_grad():
        copies = tuple(part.clone() for part in _stored_parts(edges))
    _CACHE[edges] = _Grouped(copies, sizes, result)
    return result


def _is_unchanged(edges: Tensor, copies: tuple[Tensor, ...]) -> bool:
    """Compare an edge list with copies of an earlier state.

    torch's version counter does not count writes through `.data`, numpy or inference mode, so the
    content itself is compared. This reads 32 bytes per edge, where attention reads at least
    8 · heads · width, and waits for the GPU if the list is there. It needs a copy of the list.
    """
    parts = _stored_parts(edges)
    if [(t.shape, t.dtype, t.device) for t in parts] != [
        (t.shape, t.dtype, t.device) for t in copies
    ]:
        return False
    if edges.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return True
    return all(torch.equal(part, copy) for part, copy in zip(parts, copies, strict=True))


def _stored_parts(edges: Tensor) -> tuple[Tensor, ...]:
    """The tensors that hold the edges of a list or a sparse matrix."""
    if edges.layout == torch.sparse_csr:
        return edges.crow_indices(), edges.col_indices()
    return (edges._indices(),) if edges.layout == torch.sparse_coo else (edges,)


def _grouped(
    edges: Tensor, num_sources: int, num_targets: int, flow: str, device: torch.device
) -> InEdges:
    # Training may reuse the result, and it refuses tensors that were created in inference mode.
    with torch.inference_mode(False), torch.no_grad():
        source, target = (end.to(device) for end in _ends(edges))
        if flow == "target_to_source":
            source, target = target, source
        _check_range(source, num_sources, "source")
        _check_range(target, num_targets, "target")
        dtype = index_dtype(max(source.numel(), num_sources, num_targets))
        indptr, order = group(target.to(dtype), num_targets)
        source = source.to(dtype)[order.long()]  # a copy: the result must not keep the list alive
        is_grouped = bool((target[1:] >= target[:-1]).all())
        return InEdges(Hop(indptr.to(dtype), source, num_sources), None if is_grouped else order)


def _ends(edges: Tensor) -> tuple[Tensor, Tensor]:
    """The sources and targets of messages: [E] each, in the order in which edges are stored."""
    if edges.layout == torch.sparse_csr:
        return edges.col_indices(), row_of_entry(edges.crow_indices())
    if edges.layout == torch.sparse_coo:
        target, source = edges._indices()  # duplicate entries are separate edges
        return source, target
    return edges[0], edges[1]


def _checked_list(edge_index: Any, num_sources: int, num_targets: int, flow: str) -> Tensor:
    # PyG's EdgeIndex wraps the tensor that contains the edges.
    edges = edge_index.as_tensor() if hasattr(edge_index, "as_tensor") else edge_index
    if not isinstance(edges, Tensor):
        raise GraphError(
            f"edge_index is a {type(edges).__name__}; it must be a tensor [2, E] or a torch.sparse "
            "matrix (convert a SparseTensor with adj_t.to_torch_sparse_csr_tensor())"
        )
    if edges.layout in (torch.sparse_coo, torch.sparse_csr):
        if flow == "target_to_source":
            raise GraphError(
                "the direction of messages follows from a sparse matrix itself; with "
                "flow='target_to_source' pass edge_index, or omit the flow and pass adj_t.t()"
            )
        if edges.shape[:2] != (num_targets, num_sources):
            raise GraphError(
                f"the sparse matrix has shape {tuple(edges.shape[:2])} for {num_targets} targets "
                f"and {num_sources} sources; it needs one row per target and one column per source "
                "(the transposed adjacency)"
            )
        return edges
    if edges.layout != torch.strided:
        raise GraphError(f"edge_index has layout {edges.layout}; convert it: .to_sparse_csr()")
    if edges.ndim != 2 or edges.shape[0] != 2:
        hint = "; transpose it" if edges.ndim == 2 and edges.shape[1] == 2 else ""
        raise GraphError(
            f"edge_index has shape {tuple(edges.shape)}; it needs shape (2, E): a row of sources "
            f"and a row of targets{hint}"
        )
    if edges.dtype.is_floating_point or edges.dtype.is_complex or edges.dtype == torch.bool:
        raise GraphError(f"edge_index is {edges.dtype}; it must contain integer node numbers")
    return edges


def _check_range(nodes: Tensor, count: int, name: str) -> None:
    if nodes.numel() == 0:
        return
    least, most = (int(end) for end in torch.stack(torch.aminmax(nodes)))
    if least < 0 or most >= count:
        raise GraphError(
            f"edge_index contains the {name} {least if least < 0 else most}, but x has {count} "
            f"{name} rows, numbered 0..{count - 1}; give x one row per node, or renumber the edges"
        )


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
