"""The fused layer: it equals the layer in separate steps, and it is not used where it cannot be."""

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from small_hops import device_of
from torch import Tensor, nn

from unimp.graph.hop import Hop
from unimp.model.layers import EdgeEncoder, GraphTransformerLayer
from unimp.ops import native
from unimp.ops.layer import can_fuse

IN, WIDTH, EDGE_WIDTH = 6, 5, 2
needs_native = pytest.mark.skipif(not native.available(), reason="the native core is not built")
FUSED = [
    pytest.param("native", marks=needs_native),
    pytest.param(
        "triton", marks=pytest.mark.skipif(not find_spec("triton"), reason="Triton is missing")
    ),
]


def random_hop(targets: int, sources: int, *, edges: bool) -> Hop:
    generator = torch.Generator().manual_seed(targets)
    degree = torch.randint(6, (targets,), generator=generator)
    degree[0] = 0
    indptr = torch.cat((torch.zeros(1), degree.cumsum(0))).int()
    count = int(indptr[-1])
    source = torch.randint(sources, (count,), generator=generator).int()
    attr = torch.randn(count, EDGE_WIDTH, generator=generator).double() if edges else None
    return Hop(indptr, source, sources, attr)


def layer_and_norm(backend: str, **options: Any) -> tuple[GraphTransformerLayer, nn.LayerNorm]:
    torch.manual_seed(0)
    options = {"heads": 3, "width": WIDTH, "residual": "gated", **options}
    width = options.pop("width")
    with_edges = options.pop("edges", False)
    encoder = EdgeEncoder(EDGE_WIDTH, options["heads"] * width) if with_edges else None
    layer = GraphTransformerLayer(IN, width, edge_encoder=encoder, backend=backend, **options)
    norm = nn.LayerNorm(layer.out_width)
    with torch.no_grad():  # zeros and ones would hide mistakes
        for parameter in [*layer.parameters(), *norm.parameters()]:
            parameter.add_(torch.randn(parameter.shape) / 3)
    return layer.double(), norm.double()


def results(backend: str, hop: Hop, *, normed: bool, **options: Any) -> dict[str, Tensor]:
    device = device_of(backend)
    layer, norm = (module.to(device) for module in layer_and_norm(backend, **options))
    hop = hop.to(device)
    assert can_fuse(torch.zeros(1, device=device), hop, backend) == (
        backend in ("native", "triton")
    )
    h = torch.randn(hop.num_sources, IN, generator=torch.Generator().manual_seed(3)).double()
    h = h.to(device).requires_grad_()
    layer._seed = lambda h: 7  # type: ignore[method-assign]  # the same attention dropout everywhere
    out = layer(h, hop, norm) if normed else layer(h, hop)
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(5)).double()
    (out * direction.to(device)).sum().backward()
    named = dict(layer.named_parameters()) | (dict(norm.named_parameters()) if normed else {})
    found = {"out": out.detach(), "h": h.grad} | {k: p.grad for k, p in named.items()}
    return {name: tensor.cpu() for name, tensor in found.items()}  # type: ignore[union-attr]


@pytest.mark.parametrize("normed", [False, True], ids=["bare", "normed"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"concat": False},
        {"residual": "simple", "heads": 1},
        {"gate_bias": False, "attention_dropout": 0.4},
        {"edges": True},
        {"edges": True, "concat": False, "attention_dropout": 0.4},
        {"heads": 2, "width": 4, "attention_dropout": 0.4},
        {"heads": 2, "width": 4, "concat": False},
    ],
    ids=str,
)
@pytest.mark.parametrize(("targets", "sources"), [(9, 9), (4, 9)], ids=["square", "bipartite"])
@pytest.mark.parametrize("backend", FUSED)
def test_the_fused_layer_equals_the_layer_in_separate_steps(
    backend: str, targets: int, sources: int, options: dict[str, Any], normed: bool
) -> None:
    hop = random_hop(targets, sources, edges=options.get("edges", False))
    expected = results("reference", hop, normed=normed, **options)
    for name, got in results(backend, hop, normed=normed, **options).items():
        torch.testing.assert_close(got, expected[name], rtol=1e-9, atol=1e-11, msg=name)


def test_edge_features_receive_a_gradient() -> None:
    hop = random_hop(6, 6, edges=True)
    assert hop.edge_attr is not None
    attr = hop.edge_attr.clone().requires_grad_()
    layer, _ = layer_and_norm("auto", edges=True)
    layer(torch.randn(6, IN).double(), hop.with_edge_attr(attr)).sum().backward()
    assert attr.grad is not None
    assert bool((attr.grad != 0).any())


@needs_native
def test_second_derivatives_are_refused() -> None:
    hop = random_hop(6, 6, edges=False)
    layer, _ = layer_and_norm("auto")
    h = torch.randn(6, IN).double().requires_grad_()
    (grad,) = torch.autograd.grad(layer(h, hop).square().sum(), h, create_graph=True)
    with pytest.raises(RuntimeError, match=r"once_differentiable|does not require grad"):
        grad.sum().backward()


@pytest.mark.parametrize("edges", [False, True], ids=["plain", "edge features"])
def test_half_precision_on_cpu_is_close_to_single_precision(edges: bool) -> None:
    hop = random_hop(9, 9, edges=edges)
    layer, norm = layer_and_norm("auto", edges=edges)
    layer, norm = layer.float(), norm.float()
    h = torch.randn(9, IN)
    expected = layer(h, hop, norm)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = layer(h, hop, norm)
    torch.testing.assert_close(got.float(), expected, rtol=0.1, atol=0.1)


@needs_native
def test_a_layer_that_encodes_edge_features_needs_them() -> None:
    layer, _ = layer_and_norm("auto", edges=True)
    with pytest.raises(ValueError, match="shape None; this layer needs"):
        layer(torch.randn(9, IN).double(), random_hop(9, 9, edges=False))


@pytest.mark.parametrize("backend", FUSED)
def test_inference_prepares_no_backward_pass(backend: str) -> None:
    hop = random_hop(9, 9, edges=False).to(device_of(backend))
    layer, norm = (module.to(device_of(backend)) for module in layer_and_norm(backend))
    with torch.no_grad():
        layer(torch.randn(9, IN).double().to(device_of(backend)), hop, norm)
    assert hop.derived.transpose is None


@pytest.mark.parametrize("backend", FUSED)
def test_a_hop_used_in_inference_mode_can_be_used_in_training(backend: str) -> None:
    hop = random_hop(9, 9, edges=False).to(device_of(backend))
    layer, norm = (module.to(device_of(backend)) for module in layer_and_norm(backend))
    h = torch.randn(9, IN).double().to(device_of(backend))
    with torch.inference_mode():
        _ = hop.transpose, hop.schedule, hop.source_schedule, hop.target
        expected = layer(h, hop, norm)
    out = layer(h, hop, norm)
    out.sum().backward()
    assert torch.equal(out.detach(), expected)


@needs_native
def test_a_wrong_number_of_rows_is_refused() -> None:
    layer, _ = layer_and_norm("auto")
    with pytest.raises(ValueError, match="h has 5 rows; this hop has 9 sources"):
        layer(torch.randn(5, IN).double(), random_hop(9, 9, edges=False))


@pytest.mark.parametrize("backend", FUSED)
def test_no_tensor_of_size_edges_by_heads_is_saved_for_the_backward_pass(backend: str) -> None:
    generator = torch.Generator().manual_seed(0)
    source = torch.randint(4, (3000,), generator=generator).int()
    hop = Hop(torch.tensor([0, 1000, 2000, 3000, 3000]).int(), source, 4).to(device_of(backend))
    layer, norm = (module.to(device_of(backend)) for module in layer_and_norm(backend))
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        layer(torch.randn(4, IN).double().to(device_of(backend)), hop, norm)
    numbers = [t.numel() for t in kept if t.is_floating_point()]
    assert len(numbers) > 5
    assert max(numbers) < hop.num_edges
