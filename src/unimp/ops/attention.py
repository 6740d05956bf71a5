"""Graph attention: one function for all backends."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from unimp.config.arguments import check_argument
from unimp.config.choices import Backend
from unimp.errors import BackendError, ModelError, nearest_names
from unimp.graph.hop import Hop
from unimp.ops import fused, native, reference, sparse
from unimp.ops.dropout import numbered

HALF = (torch.bfloat16, torch.float16)

# Each backend is a function with the signature and the results of reference.attend.
BACKENDS: dict[str, Callable[..., tuple[Tensor, Tensor | None, Tensor | None]]] = {
    "native": fused.native_attend,  # C++, on CPU
    "triton": fused.triton_attend,  # on GPU
    "sparse": sparse.attend,  # torch.sparse, on any device
    "reference": reference.attend,  # plain torch: the definition
}


def graph_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    hop: Hop,
    *,
    edge_weight: Tensor | None = None,
    edge_bias: Tensor | None = None,
    dropout: float = 0.0,
    seed: Tensor | int = 0,
    backend: Backend = "auto",
) -> Tensor:
    """Compute multi-head dot-product attention of targets over their in-edges (equations 3, 4).

        α_ij = softmax_j( q_i·(k_j + W e_ij + c) / √D )        o_i = Σ_j α_ij (v_j + W e_ij + c)

    query [T, H, D]; key, value [S, H, D]; edge_weight W [H, D, d_e] and edge_bias c [H, D] or
    None encode the hop's edge features. `seed` decides which weights `dropout` drops; as a tensor,
    it does not have to be copied to a GPU. Returns o: [T, H, D].

    The edge term is factored exactly, so that encoded edges are never built:

        q_i·(W e_ij) = (Wᵀq_i)·e_ij          Σ_j α_ij (W e_ij + c) = W ē_i + A_i c

    and q_i·c, which is equal for all in-edges of i, cancels in the softmax.
    """
    if not torch.compiler.is_compiling():
        _check_types(locals())
    check_operands(query, key, value, hop, edge_weight)
    if not 0.0 <= dropout < 1.0:
        raise ModelError(f"dropout must be at least 0 and less than 1, not {dropout}")
    name = choose_backend(backend, query.device.type)
    out_dtype = query.dtype
    # Some kernels read rows in half precision; the other backends compute in single precision.
    reads_half = name == "triton" or (name == "native" and out_dtype in native.DTYPES)
    dtype = torch.float32 if out_dtype in HALF and not reads_half else out_dtype
    operands = (t if t is None else t.to(dtype) for t in (query, key, value, edge_weight))
    query, key, value, edge_weight = operands  # type: ignore[assignment]
    hop, seed = numbered(hop, seed, dropout)
    seed = as_seed(seed, query.device)
    attend = BACKENDS[name]
    with without_autocast(query.device.type):  # the precision is chosen above
        if edge_weight is None:
            return attend(query, key, value, hop, None, dropout, seed)[0].to(out_dtype)
        edge_query = _edge_query(query, edge_weight)
        if name == "native":
            edge_query = edge_query.to(fused.exact_dtype(dtype))
        out, edge_mean, mass = attend(query, key, value, hop, edge_query, dropout, seed)
        assert edge_mean is not None
        assert mass is not None
        out = out + torch.einsum("the,hde->thd", edge_mean.to(dtype), edge_weight)
        if edge_bias is not None:
            out = out + mass.to(dtype)[..., None] * edge_bias.to(dtype)
    return out.to(out_dtype)


def without_autocast(device: str) -> AbstractContextManager[Any]:
    """A context without autocast; a no-op if autocast is off, because entering it takes time."""
    is_active = torch.is_autocast_enabled(device) or torch.compiler.is_compiling()
    return torch.autocast(device, enabled=False) if is_active else nullcontext()


def as_seed(seed: Tensor | int, device: torch.device) -> Tensor:
    """The seed of dropout as a tensor on the device."""
    if isinstance(seed, Tensor) or torch.compiler.is_compiling():
        return torch.as_tensor(seed, dtype=torch.int64, device=device)
    return _seed_on(seed, device)


@lru_cache(maxsize=8)
@torch.inference_mode(False)
def _seed_on(seed: int, device: torch.device) -> Tensor:
    # Cached, because copying a number to a GPU waits for all earlier work there.
    return torch.tensor(seed, dtype=torch.int64, device=device)


@torch.no_grad()
def attention_weights(
    query: Tensor, key: Tensor, hop: Hop, *, edge_weight: Tensor | None = None
) -> Tensor:
    """Compute the weights α of `graph_attention`, one number per edge and head: [E, H].

    Messages are computed without storing all weights; this function is for explanations.
    """
    check_operands(query, key, key, hop, edge_weight)
    out_dtype = query.dtype
    dtype = torch.float32 if out_dtype in HALF else out_dtype
    query, key = query.to(dtype), key.to(dtype)
    with without_autocast(query.device.type):
        edge_query = None
        if edge_weight is not None:
            edge_query = _edge_query(query, edge_weight.to(dtype))
        return sparse.weigh(query, key, hop, edge_query).to(out_dtype)


def _check_types(given: Mapping[str, object]) -> None:
    """Refuse arguments of `graph_attention` of the wrong type; compiled code skips this check."""
    for name, kind in _KINDS.items():
        check_argument("graph_attention", name, given[name], kind)
    if given["edge_bias"] is not None and given["edge_weight"] is None:
        raise ModelError("edge_bias is given without edge_weight; give both or neither")
    seed = given["seed"]
    if isinstance(seed, int) and not -(2**63) <= seed < 2**63:
        raise ModelError(f"seed is {seed}; it must fit into 64 bits")
    if isinstance(seed, Tensor) and (seed.ndim or seed.is_floating_point()):
        raise ModelError(f"seed has shape {tuple(seed.shape)}; it must be one whole number")


_KINDS: dict[str, Any] = {
    **dict.fromkeys(("query", "key", "value"), Tensor),
    **dict.fromkeys(("edge_weight", "edge_bias"), Tensor | None),
    "hop": Hop,
    "dropout": float,
    "seed": Tensor | int,
    "backend": str,
}


def check_operands(
    query: Tensor, key: Tensor, value: Tensor, hop: Hop, edge_weight: Tensor | None
) -> None:
    """Check that operands match each other and the hop; kernels do not check it."""
    if query.ndim != 3:
        raise ModelError(f"query has shape {tuple(query.shape)}; it needs (targets, heads, width)")
    _, heads, width = query.shape
    expected: dict[str, tuple[Tensor, tuple[int, ...]]] = {
        "query": (query, (hop.num_targets, heads, width)),
        "key": (key, (hop.num_sources, heads, width)),
        "value": (value, (hop.num_sources, heads, width)),
    }
    if edge_weight is not None:
        if hop.edge_attr is None or hop.edge_attr.shape[1] == 0:
            what = "no edge features" if hop.edge_attr is None else "edge features of width 0"
            raise ModelError(f"edge_weight is given, but the hop has {what}; leave edge_weight out")
        features = hop.edge_attr.shape[1]
        expected["edge_weight"] = (edge_weight, (heads, width, features))
        expected["the hop's edge_attr"] = (hop.edge_attr, (hop.num_edges, features))
    for name, (tensor, shape) in expected.items():
        if tensor.shape != shape:
            raise ModelError(
                f"{name} has shape {tuple(tensor.shape)}; for this hop of {hop.num_targets} "
                f"targets, {hop.num_sources} sources and {hop.num_edges} edges it needs {shape}"
            )


def choose_backend(backend: str, device: str = "cpu") -> str:
    """Choose a backend for this kind of device if `auto`; else check the one that is named."""
    if backend == "auto":
        if device == "cuda" and _has_triton():
            return "triton"
        return "native" if device == "cpu" and native.available() else "sparse"
    if backend not in BACKENDS:
        raise BackendError(
            f"there is no attention backend {backend!r}; {nearest_names(backend, BACKENDS)}"
        )
    if backend == "native" and device != "cpu":
        raise BackendError(
            f"the native backend runs on CPU, but the tensors are on {device}; use auto"
        )
    if backend == "native" and not native.available():
        raise BackendError(
            "the native backend is not available, because the native core was not built during "
            "installation; use auto or sparse, or install a C++17 compiler (such as g++) and "
            "reinstall unimp"
        )
    if backend == "triton" and device != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        raise BackendError(
            f"the triton backend runs on GPU, but the tensors are on {device}; use auto"
        )
    if backend == "triton" and not _has_triton():
        raise BackendError("the triton backend needs Triton, which is not installed; use auto")
    return backend


# torch.compile treats the result as a constant. This is what torch.compiler's decorator
# assume_constant_result does, without importing the compiler.
choose_backend._dynamo_marked_constant = True  # type: ignore[attr-defined]


def backend_in_words(backend: str, device: str) -> str:
    """The backend that computes attention on a device, as text for a manifest."""
    name = choose_backend(backend, device.partition(":")[0])
    return f"native ({native.instruction_set()})" if name == "native" else name


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def _edge_query(query: Tensor, edge_weight: Tensor) -> Tensor:
    """Compute u_i = Wᵀq_i, whose product with edge features is part of the score: [T, H, d_e]."""
    return torch.einsum("thd,hde->the", query, edge_weight)
