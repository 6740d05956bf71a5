"""Graph attention with torch.sparse: no tensor is larger than edges × heads.

Scores are sampled dense-dense products, one head at a time; `ops/row_sums.py` computes sums. The
backward pass is written by hand. Results are deterministic on CPU: one thread sums each output row
in the order of its edges.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from unimp.graph.hop import Hop
from unimp.ops.reference import dropout_factors
from unimp.ops.row_sums import sum_rows


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    hop: Hop,
    edge_query: Tensor | None,
    dropout: float,
    seed: Tensor,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Compute `reference.attend` with torch.sparse."""
    if edge_query is None or hop.edge_attr is None:
        (out,) = _apply(query, key, value, None, None, hop, dropout, seed)
        return out, None, None
    edge_attr = hop.edge_attr.to(query.dtype)
    out, edge_mean, mass = _apply(query, key, value, edge_query, edge_attr, hop, dropout, seed)
    return out, edge_mean, mass


def weigh(query: Tensor, key: Tensor, hop: Hop, edge_query: Tensor | None) -> Tensor:
    """Compute the softmax weights p of `reference.attend`, before dropout: [E, H]."""
    edges = Edges(hop)
    weights = query.new_empty(query.shape[1], hop.num_edges)
    edge_attr = None if hop.edge_attr is None else hop.edge_attr.to(query.dtype)
    for h, out in enumerate(weights):
        u = None if edge_query is None else edge_query[:, h].contiguous()
        edges.weigh(query[:, h].contiguous(), key[:, h].contiguous(), u, edge_attr, out=out)
    return weights.t()


class _Attend(torch.autograd.Function):
    """The forward and backward passes of `attend`.

    With g, ḡ and γ the gradients of o, ē and A:

        da_ij = g_i·v_j + ḡ_i·e_ij + γ_i            δ_i = g_i·o_i + ḡ_i·ē_i + γ_i A_i
        ds_ij = (a_ij da_ij − p_ij δ_i) / √D
        dq_i = Σ_j ds_ij k_j    du_i = Σ_j ds_ij e_ij    dk_j = Σ_i ds_ij q_i    dv_j = Σ_i a_ij g_i
        de_ij = ds_ij u_i + a_ij ḡ_i
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        edge_query: Tensor | None,
        edge_attr: Tensor | None,
        hop: Hop,
        dropout: float,
        seed: Tensor,
    ) -> tuple[Tensor, ...]:
        edges = Edges(hop)
        heads = query.shape[1]
        factors = dropout_factors(hop, heads, dropout, seed, query)
        # Head-major copies: the rows of a head are contiguous in every product: [H, ·, D].
        query, key, value = (rows.transpose(0, 1).contiguous() for rows in (query, key, value))
        if edge_query is not None:
            edge_query = edge_query.transpose(0, 1).contiguous()
        weights = query.new_empty(heads, hop.num_edges)
        out, edge_mean, mass = [], [], []
        for h in range(heads):
            u = None if edge_query is None else edge_query[h]
            p = edges.weigh(query[h], key[h], u, edge_attr, out=weights[h])
            a = p if factors is None else p * factors[:, h]
            out.append(edges.sum_sources(a, value[h]))
            if edge_query is not None and edge_attr is not None:
                edge_mean.append(edges.sum_edges(a, edge_attr))
                mass.append(edges.total(a))
        ctx.hop, ctx.dropout, ctx.seed = hop, dropout, seed
        results = [torch.stack(out, 1)]
        if edge_query is not None:
            results += [torch.stack(edge_mean, 1), torch.stack(mass, 1)]
        ctx.save_for_backward(query, key, value, weights, edge_query, edge_attr, *results)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        query, key, value, weights, edge_query, edge_attr, out, *edge_side = ctx.saved_tensors
        edges = Edges(ctx.hop)
        heads, scale = query.shape[0], query.shape[2] ** -0.5
        factors = dropout_factors(ctx.hop, heads, ctx.dropout, ctx.seed, query)
        delta = (grads[0] * out).sum(-1)  # [T, H]
        if edge_side:
            edge_mean, mass = edge_side
            delta += (grads[1] * edge_mean).sum(-1) + grads[2] * mass
            grad_mean, grad_mass = grads[1].transpose(0, 1).contiguous(), grads[2].t().contiguous()
        grad_out, delta = grads[0].transpose(0, 1).contiguous(), delta.t().contiguous()
        grad_edge_attr = torch.zeros_like(edge_attr) if ctx.needs_input_grad[4] else None
        grad_query, grad_key, grad_value, grad_edge_query = [], [], [], []
        target = ctx.hop.target
        for h in range(heads):
            p = weights[h]
            a = p if factors is None else p * factors[:, h]
            grad_a = edges.dot(grad_out[h], value[h])
            if edge_side:
                grad_a += edges.dot_edges(grad_mean[h], edge_attr)
                grad_a += grad_mass[h].index_select(0, target)
            grad_score = grad_a.mul_(a).sub_(p * delta[h].index_select(0, target)).mul_(scale)
            grad_query.append(edges.sum_sources(grad_score, key[h]))
            grad_key.append(edges.sum_targets(grad_score, query[h]))
            grad_value.append(edges.sum_targets(a, grad_out[h]))
            if edge_side:
                grad_edge_query.append(edges.sum_edges(grad_score, edge_attr))
            if grad_edge_attr is not None:
                grad_edge_attr += grad_score[:, None] * edge_query[h].index_select(0, target)
                grad_edge_attr += a[:, None] * grad_mean[h].index_select(0, target)
        by_head = (grad_query, grad_key, grad_value, grad_edge_query)
        grads_of_rows = (torch.stack(found, 1) if found else None for found in by_head)
        return *grads_of_rows, grad_edge_attr, None, None, None


# torch leaves `apply` untyped.
_apply: Callable[..., Any] = _Attend.apply


class Edges:
    """The sparse products over the edges of one hop, with one number per edge, [E]."""

    def __init__(self, hop: Hop) -> None:
        self.hop = hop
        # In this pattern, an edge is in the row of its target and in a separate column, so that
        # products for node features also work for edge features.
        self.own_column = torch.arange(
            hop.num_edges, dtype=hop.source.dtype, device=hop.source.device
        )

    def dot(self, targets: Tensor, sources: Tensor) -> Tensor:
        """Compute targets_i · sources_j for each edge j → i."""
        return self._sampled_product(self.hop.source, targets, sources)

    def dot_edges(self, targets: Tensor, edges: Tensor) -> Tensor:
        """Compute targets_i · edges_ij for each edge."""
        if edges.device.type != "cpu":
            # Not larger than the edge features themselves, and faster than cuSPARSE's product.
            return (targets.index_select(0, self.hop.target) * edges).sum(-1)
        return self._sampled_product(self.own_column, targets, edges)

    def sum_sources(self, weight: Tensor, sources: Tensor) -> Tensor:
        """Compute Σ_j weight_ij sources_j for each target i."""
        return sum_rows(self.hop.indptr, self.hop.source, weight, sources)

    def sum_edges(self, weight: Tensor, edges: Tensor) -> Tensor:
        """Compute Σ_j weight_ij edges_ij for each target i."""
        return sum_rows(self.hop.indptr, self.own_column, weight, edges)

    def sum_targets(self, weight: Tensor, targets: Tensor) -> Tensor:
        """Compute Σ_i weight_ij targets_i for each source j."""
        indptr, target, slot = self.hop.transpose
        return sum_rows(indptr, target, weight, targets, slot=slot)

    def total(self, weight: Tensor) -> Tensor:
        """Compute Σ_j weight_ij for each target i."""
        if weight.device.type == "cpu":
            return torch.segment_reduce(weight, "sum", offsets=self.hop.indptr, initial=0)
        # On a GPU, segment_reduce assigns a whole row to one thread, which is slow for a hub.
        return weight.new_zeros(self.hop.num_targets).index_add_(0, self.hop.target, weight)

    def weigh(
        self,
        query: Tensor,
        key: Tensor,
        edge_query: Tensor | None,
        edge_attr: Tensor | None,
        *,
        out: Tensor,
    ) -> Tensor:
        """Compute softmax_j( (q_i·k_j + u_i·e_ij) / √D ) of one head."""
        score = self.dot(query, key)
        if edge_query is not None and edge_attr is not None:
            score += self.dot_edges(edge_query, edge_attr)
        return self.softmax(score.mul_(query.shape[1] ** -0.5), out=out)

    def softmax(self, score: Tensor, *, out: Tensor) -> Tensor:
        """Compute the softmax over the in-edges of each target."""
        if score.numel() == 0:
            return out
        target = self.hop.target
        if score.device.type == "cpu":
            top = torch.segment_reduce(score, "max", offsets=self.hop.indptr, initial=-torch.inf)
        else:
            top = score.new_full((self.hop.num_targets,), -torch.inf)
            top.scatter_reduce_(0, target.long(), score, "amax")
        torch.exp(score - top.index_select(0, target), out=out)
        return out.div_(self.total(out).index_select(0, target))

    def _sampled_product(self, column: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        if column.numel() > len(rows) * len(columns):
            # torch refuses a matrix with more entries than cells; duplicate edges can cause this.
            return (rows @ columns.t())[self.hop.target.long(), column.long()]
        if column.numel() == 0:
            return rows.new_zeros(0)
        pattern = torch.sparse_csr_tensor(
            self.hop.indptr, column, rows.new_zeros(column.numel()), (len(rows), len(columns))
        )
        product: Tensor = torch.sparse.sampled_addmm(pattern, rows, columns.t(), beta=0.0)
        return product.values()
