"""Graph attention: the one entry, whatever computes it."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from unimp.errors import RecipeError, nearest_names
from unimp.graph.hop import Hop
from unimp.ops import reference, sparse

Backend = Literal["auto", "sparse", "reference"]

# Each backend is a function with the signature and the meaning of reference.attend.
BACKENDS = {"sparse": sparse.attend, "reference": reference.attend}


class Attention(NamedTuple):
    """What attention gives: messages, and how they were weighted."""

    out: Tensor  # [T, H, D]
    weights: Tensor  # [E, H]: softmax weights in the order of the hop's edges, before dropout


def graph_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    hop: Hop,
    *,
    edge_weight: Tensor | None = None,
    edge_bias: Tensor | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    backend: Backend = "auto",
) -> Attention:
    """Multi-head dot-product attention of targets over their in-edges (equations 3 and 4).

        α_ij = softmax_j( q_i·(k_j + W e_ij + c) / √D )        o_i = Σ_j α_ij (v_j + W e_ij + c)

    query [T, H, D]; key, value [S, H, D]; edge_weight W [H, D, d_e] and edge_bias c [H, D] or
    None encode the hop's edge features. `dropout` drops weights, decided by `seed`.

    The edge term is factored exactly, so that no encoded edge is ever built:

        q_i·(W e_ij) = (Wᵀq_i)·e_ij          Σ_j α_ij (W e_ij + c) = W ē_i + A_i c

    and q_i·c, the same for all in-edges of i, cancels in the softmax.
    """
    attend = BACKENDS[choose_backend(backend)]
    if edge_weight is None:
        out, _, _, weights = attend(query, key, value, hop, None, dropout, seed)
        return Attention(out, weights)
    edge_query = torch.einsum("thd,hde->the", query, edge_weight)
    out, edge_mean, mass, weights = attend(query, key, value, hop, edge_query, dropout, seed)
    if edge_mean is None or mass is None:
        raise ValueError("edge_weight is given, but the hop has no edge features")
    out = out + torch.einsum("the,hde->thd", edge_mean, edge_weight)
    if edge_bias is not None:
        out = out + mass[..., None] * edge_bias
    return Attention(out, weights)


def choose_backend(backend: str) -> str:
    """The backend that `auto` stands for here, or the one named."""
    if backend == "auto":
        return "sparse"
    if backend not in BACKENDS:
        raise RecipeError(f"no attention backend {backend!r}; {nearest_names(backend, BACKENDS)}")
    return backend
