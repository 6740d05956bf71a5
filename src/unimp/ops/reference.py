"""The definition of graph attention in plain torch, one head at a time.

Every backend must compute these results and gradients. This code is for readers and for tests;
`ops/sparse.py` is the fast form in pure torch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unimp.graph.hop import Hop


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    hop: Hop,
    edge_query: Tensor | None,
    dropout: float,
    seed: Tensor,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Compute the attention of each target over its in-edges, for one hop and all heads.

        s_ij = (q_i·k_j + u_i·e_ij) / √D          p_ij = softmax over the in-edges of i
        a_ij = p_ij · m_ij                        m: dropout, 0 or 1/(1−dropout)
        o_i = Σ_j a_ij v_j      ē_i = Σ_j a_ij e_ij      A_i = Σ_j a_ij

    query [T, H, D]; key, value [S, H, D]; edge_query u [T, H, d_e] or None.
    Returns o [T, H, D], ē [T, H, d_e] and A [T, H] (the last two are None without edge features).
    A target without in-edges gets zeros.
    """
    source, target = hop.source.long(), hop.target.long()
    num_targets, heads, width = query.shape
    edge_attr = None if edge_query is None else hop.edge_attr
    if edge_attr is not None:
        edge_attr = edge_attr.to(query.dtype)
    factors = dropout_factors(hop, heads, dropout, seed, query)
    out, edge_mean, mass = [], [], []
    for h in range(heads):
        score = (query[target, h] * key[source, h]).sum(-1)  # [E]
        if edge_query is not None and edge_attr is not None:
            score = score + (edge_query[target, h] * edge_attr).sum(-1)
        p = _softmax_by_target(score / width**0.5, target, num_targets)
        a = p if factors is None else p * factors[:, h]
        out.append(_sum_by_target(a[:, None] * value[source, h], target, num_targets))
        if edge_query is not None and edge_attr is not None:
            edge_mean.append(_sum_by_target(a[:, None] * edge_attr, target, num_targets))
            mass.append(_sum_by_target(a, target, num_targets))
    return (
        torch.stack(out, 1),
        torch.stack(edge_mean, 1) if edge_mean else None,
        torch.stack(mass, 1) if mass else None,
    )


def dropout_factors(
    hop: Hop, heads: int, dropout: float, seed: Tensor | int, like: Tensor
) -> Tensor | None:
    """The factor of each attention weight, 0 or 1/(1−dropout): [E, H]; None without dropout.

    A factor is a hash of (number of the edge, head, seed). Therefore nothing is stored, every pass
    can compute the factors again, and all backends and devices use the same factors. The number of
    an edge is its slot, unless `hop.numbers` contains others.
    """
    if dropout == 0.0:
        return None
    numbers = hop.numbers
    if numbers is None:
        numbers = torch.arange(hop.num_edges, device=like.device)
    counter = (numbers[:, None] * heads + torch.arange(heads, device=like.device)).flatten()
    bits = _mix(
        (counter & _MASK)
        ^ _mix(torch.as_tensor(seed, device=like.device) & _MASK)
        ^ _mix((counter >> 32) & _MASK)
    )
    keep = bits >= int(dropout * 2**32)
    return (keep.to(like.dtype) / (1.0 - dropout)).view(-1, heads)


_MASK = 0xFFFFFFFF


def _mix(bits: Tensor) -> Tensor:
    """Hash 32-bit words bijectively (in int64, because torch has no unsigned arithmetic)."""
    bits = ((bits >> 16) ^ bits) * 0x7FEB352D & _MASK
    bits = ((bits >> 15) ^ bits) * 0x846CA68B & _MASK
    return (bits >> 16) ^ bits


def _softmax_by_target(score: Tensor, target: Tensor, num_targets: int) -> Tensor:
    top = score.new_full((num_targets,), -torch.inf)
    top = top.scatter_reduce(0, target, score.detach(), "amax")
    weight = (score - top[target]).exp()
    return weight / _sum_by_target(weight, target, num_targets)[target]


def _sum_by_target(rows: Tensor, target: Tensor, num_targets: int) -> Tensor:
    return rows.new_zeros((num_targets, *rows.shape[1:])).index_add(0, target, rows)
