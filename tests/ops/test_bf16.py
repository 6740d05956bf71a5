"""bf16 on CPU: rows are stored in bf16 and computed in fp32, near fp64 on every kind of hop.

A bf16 number has a relative error of at most 2⁻⁹. Errors are measured relative to the norm of the
exact result: a rounded input or result contributes about 0.2 %, and a mistake about 100 %.
"""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unimp.graph.hop import Hop
from unimp.model.layers import EdgeEncoder, GraphTransformerLayer
from unimp.ops import native
from unimp.ops.attention import graph_attention
from unimp.ops.dropout import dropout
from unimp.ops.layer import can_fuse

pytestmark = pytest.mark.skipif(not native.available(), reason="the native core is not built")

# targets, sources, edges
HOPS = {
    "one node without edges": (1, 1, 0),
    "one node with a loop": (1, 1, 1),
    "square": (40, 40, 200),
    "empty rows": (60, 60, 25),
    "hub": (3, 50, 400),
    "bipartite": (7, 30, 40),
    "many sources": (5, 400, 60),
}
HOP = pytest.mark.parametrize("hop_name", HOPS)
ISA = pytest.mark.parametrize("isa", native.INSTRUCTION_SETS)


@pytest.fixture(autouse=True)
def best_instruction_set() -> Any:
    yield
    native.limit_instruction_set(native.INSTRUCTION_SETS[-1])


def random_hop(name: str, edge_width: int = 0) -> Hop:
    targets, sources, count = HOPS[name]
    generator = torch.Generator().manual_seed(targets + count)
    target = torch.randint(targets, (count,), generator=generator)
    indptr = torch.cat((torch.zeros(1), torch.bincount(target, minlength=targets).cumsum(0))).int()
    source = torch.randint(sources, (count,), generator=generator).int()
    attr = torch.randn(count, edge_width, generator=generator) if edge_width else None
    return Hop(indptr, source, sources, attr)


def assert_near(got: Tensor, exact: Tensor, name: str, *, least: float, limit: float) -> None:
    """The error is at most `limit` of the norm, or of `least` where the exact result is zero."""
    assert bool(got.isfinite().all()), name
    error = float((got.double() - exact.double()).norm())
    assert error <= limit * max(float(exact.double().norm()), least), (name, error)


@ISA
@HOP
@pytest.mark.parametrize(
    ("heads", "width", "edge_width", "rate"),
    [
        (1, 1, 0, 0.0),
        (2, 32, 0, 0.3),
        (3, 20, 2, 0.0),
        (1, 40, 9, 0.4),
        (2, 64, 0, 0.0),
        (2, 128, 3, 0.2),
    ],
)
def test_attention_on_bf16_rows_is_near_that_on_the_same_rows_in_fp64(
    isa: str, hop_name: str, heads: int, width: int, edge_width: int, rate: float
) -> None:
    native.limit_instruction_set(isa)
    hop = random_hop(hop_name, edge_width)
    torch.manual_seed(width)
    rows = {
        "query": torch.randn(hop.num_targets, heads, width),
        "key": torch.randn(hop.num_sources, heads, width),
        "value": torch.randn(hop.num_sources, heads, width),
    }
    if edge_width:
        rows["edge_weight"] = torch.randn(heads, width, edge_width)
    direction = torch.randn(hop.num_targets, heads, width).bfloat16()

    def results(dtype: torch.dtype, backend: Any) -> dict[str, Tensor]:
        given = {k: v.bfloat16().to(dtype).requires_grad_() for k, v in rows.items()}
        out = graph_attention(**given, hop=hop, dropout=rate, seed=3, backend=backend)
        assert out.dtype == dtype
        out.backward(direction.to(dtype))  # type: ignore[no-untyped-call]
        found = {name: tensor.grad for name, tensor in given.items()}
        return {"out": out.detach()} | {k: v for k, v in found.items() if v is not None}

    exact, got = results(torch.float64, "reference"), results(torch.bfloat16, "native")
    assert got.keys() == exact.keys()
    for name in exact:
        assert got[name].dtype == torch.bfloat16
        # With one edge, dq and dk are differences of equal numbers, of which one was rounded.
        least = 0.25 * float(direction.float().norm())
        assert_near(got[name], exact[name], name, least=least, limit=0.015)


def results_of_layer(
    hop: Hop, dtype: torch.dtype, backend: Any, norm: bool, **options: Any
) -> dict[str, Tensor]:
    """The output and all gradients of a layer; weights are fp32, or fp64 if `dtype` is."""
    torch.manual_seed(0)
    edge_width = 0 if hop.edge_attr is None else hop.edge_attr.shape[1]
    width, in_width = options.pop("width", 16), 24
    encoder = EdgeEncoder(edge_width, options["heads"] * width) if edge_width else None
    layer = GraphTransformerLayer(
        in_width, width, edge_encoder=encoder, backend=backend, residual="gated", **options
    )
    after = nn.LayerNorm(layer.out_width)
    with torch.no_grad():  # far from zero: where the ReLU changes, a gradient does too
        after.bias.copy_(torch.tensor([6.0, -6.0]).repeat(layer.out_width)[: layer.out_width])
    h = torch.randn(hop.num_sources, in_width)
    direction = torch.randn(hop.num_targets, layer.out_width)
    if dtype == torch.float64:
        layer, after, h, direction = layer.double(), after.double(), h.double(), direction.double()
        if hop.edge_attr is not None:
            hop = hop.with_edge_attr(hop.edge_attr.double())
    layer._seed = lambda h: 5  # type: ignore[method-assign]
    h.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        if dtype == torch.bfloat16:
            assert can_fuse(h, hop, backend)
        out = layer(h, hop, after) if norm else layer(h, hop)
    assert out.dtype == dtype
    (out.to(h.dtype) * direction).sum().backward()
    weights = dict(layer.named_parameters()) | (dict(after.named_parameters()) if norm else {})
    found = {"h": h.grad} | {name: weight.grad for name, weight in weights.items()}
    return {"out": out.detach()} | {k: v for k, v in found.items() if v is not None}


@HOP
@pytest.mark.parametrize("norm", [False, True], ids=["bare", "norm"])
@pytest.mark.parametrize(
    ("edge_width", "options"),
    [
        (0, {"heads": 1}),
        (0, {"heads": 2, "width": 32, "attention_dropout": 0.4}),
        (3, {"heads": 2, "concat": False}),
        (2, {"heads": 3, "attention_dropout": 0.3}),
    ],
    ids=str,
)
def test_a_layer_in_bf16_and_its_gradients_are_near_fp64(
    hop_name: str, norm: bool, edge_width: int, options: dict[str, Any]
) -> None:
    hop = random_hop(hop_name, edge_width)
    exact = results_of_layer(hop, torch.float64, "reference", norm, **options)
    got = results_of_layer(hop, torch.bfloat16, "native", norm, **options)
    assert got.keys() == exact.keys()
    # A gradient that cancels, such as that of the key's bias, is compared with the others.
    least = float(exact["query.weight"].norm()) + 0.1 * float(exact["value.weight"].norm())
    for name in exact:
        if name != "out":
            assert got[name].dtype == torch.float32, name  # weights and their gradients
        assert_near(got[name], exact[name], name, least=least, limit=0.04)


@HOP
def test_a_layer_in_bf16_uses_the_precision_of_fp32_in_sums(hop_name: str) -> None:
    """The attention of a hub over equal values is this value, which a bf16 sum would lose."""
    hop = random_hop(hop_name)
    value = torch.full((hop.num_sources, 1, 32), 1.0 + 2**-7).bfloat16()
    zeros = torch.zeros(hop.num_targets, 1, 32).bfloat16()
    out = graph_attention(zeros, torch.zeros_like(value), value, hop, backend="native")
    has_edges = (hop.indptr[1:] > hop.indptr[:-1])[:, None, None]
    assert torch.equal(out, value[:1] * has_edges)


@ISA
@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 700, 70_001])
def test_dropout_of_bf16_rounds_as_torch_does(isa: str, count: int) -> None:
    native.limit_instruction_set(isa)
    x = torch.randn(count).bfloat16()
    x[:1] = torch.nan
    x[1:2] = torch.inf
    x.requires_grad_()
    torch.manual_seed(0)
    out = dropout(x, 0.3, training=True)
    torch.manual_seed(0)
    kept = dropout(torch.ones(count), 0.3, training=True) > 0
    scaled = (x.detach().float() * (1 / 0.7)).bfloat16()
    expected = torch.where(kept, scaled, 0.0)
    torch.testing.assert_close(out.detach(), expected, rtol=0, atol=0, equal_nan=True)
    out.backward(torch.ones_like(out))  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert torch.equal(x.grad, torch.where(kept, torch.tensor(1 / 0.7).bfloat16(), 0.0))


def test_the_native_core_gives_the_same_dropout_as_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(501, 33)
    direction = torch.randn(501, 33)
    found = []
    for is_native in (True, False):
        monkeypatch.setattr(native, "available", lambda is_native=is_native: is_native)
        given = x.clone().requires_grad_()
        torch.manual_seed(1)
        out = dropout(given, 0.4, training=True)
        out.backward(direction)  # type: ignore[no-untyped-call]
        found.append((out.detach(), given.grad))
    for one, other in zip(*found, strict=True):
        assert one is not None
        assert other is not None
        assert torch.equal(one.view(torch.int32), other.view(torch.int32))  # also signs of zeros
