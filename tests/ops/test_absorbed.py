"""Layers that project only the targets: they equal layers that project all, when they are used."""

import math
from collections import Counter
from typing import Any

import pytest
import torch
from small_hops import hop_of, random_edges
from test_attention import LargestOutput
from test_layer import EDGE_WIDTH, IN, layer_and_norm
from torch import Tensor, nn

from unimp.graph.hop import Hop
from unimp.model.layers import GraphTransformerLayer
from unimp.ops import absorbed, native
from unimp.ops.absorbed import pays

pytestmark = pytest.mark.skipif(not native.available(), reason="the native core is not built")

HOPS = {
    "bipartite": hop_of(4, 11, random_edges(4, 11, 20)),
    "targets without in-edges": hop_of(6, 9, random_edges(3, 9, 12)),
    "hub": hop_of(5, 40, [(2, s) for s in range(40)] + [(0, 7)]),
    "duplicate edges": hop_of(3, 4, [(0, 1)] * 4 + [(0, 2), (2, 3), (2, 3)]),
    "one edge": hop_of(3, 5, [(1, 4)]),
    "no edges": hop_of(3, 5, []),
    "no targets": hop_of(0, 5, []),
    "square": hop_of(9, 9, random_edges(9, 9, 30)),
}


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Absorb weights in every layer, and count the passes that do."""
    passes: Counter[str] = Counter()
    forward, backward = absorbed.forward, absorbed.backward

    def count_forward(*given: Any) -> Any:
        passes["forward"] += 1
        return forward(*given)

    def count_backward(*given: Any) -> Any:
        passes["backward"] += 1
        return backward(*given)

    monkeypatch.setattr(absorbed, "pays", lambda *given: True)
    monkeypatch.setattr(absorbed, "forward", count_forward)
    monkeypatch.setattr(absorbed, "backward", count_backward)
    return passes


def rows_of(hop: Hop, in_width: int = IN, seed: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(hop.num_sources, in_width, generator=generator, dtype=torch.float64)


def results(
    layer: GraphTransformerLayer, norm: nn.LayerNorm | None, h: Tensor, hop: Hop, backend: Any
) -> dict[str, Tensor]:
    """The output and every gradient, by name."""
    layer.backend = backend
    layer._seed = lambda h: 7  # type: ignore[method-assign]  # the same attention dropout everywhere
    h = h.clone().requires_grad_()
    out = layer(h, hop, norm)
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(5)).to(out.dtype)
    named = dict(layer.named_parameters())
    named |= {} if norm is None else {f"norm.{k}": p for k, p in norm.named_parameters()}
    found = torch.autograd.grad((out * direction).sum(), [h, *named.values()])
    return {"out": out.detach(), "h": found[0]} | dict(zip(named, found[1:], strict=True))


@pytest.mark.parametrize("merged", [False, True], ids=["two products", "one product"])
@pytest.mark.parametrize("normed", [False, True], ids=["bare", "normed"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"concat": False},
        {"residual": "simple", "heads": 1},
        {"gate_bias": False, "attention_dropout": 0.4},
        {"concat": False, "residual": "simple", "attention_dropout": 0.4},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", HOPS)
def test_absorbing_changes_no_output_and_no_gradient(
    name: str,
    options: dict[str, Any],
    normed: bool,
    merged: bool,
    always: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(absorbed, "merges", lambda *given: merged)
    hop = HOPS[name]
    layer, norm = layer_and_norm("native", **options)
    given = (layer, norm if normed else None, rows_of(hop), hop)
    expected = results(*given, "reference")
    assert not always
    got = results(*given, "native")
    assert always == {"forward": 1, "backward": 1}
    assert bool((got["key.bias"] == 0).all())
    monkeypatch.setattr(absorbed, "pays", lambda *given: False)
    plain = results(*given, "native")
    assert always["forward"] == 1
    for operand, tensor in expected.items():
        for found in (got, plain):
            torch.testing.assert_close(found[operand], tensor, rtol=1e-9, atol=1e-11, msg=operand)


def test_gradients_equal_finite_differences(always: Counter[str]) -> None:
    hop = hop_of(3, 5, [(0, 1), (0, 2), (0, 2), (2, 0), (2, 3), (2, 4)])
    layer, norm = layer_and_norm("native", attention_dropout=0.4)
    layer._seed = lambda h: 1  # type: ignore[method-assign]
    h = rows_of(hop).requires_grad_()
    assert torch.autograd.gradcheck(lambda h: layer(h, hop, norm), (h,))
    assert always["backward"]


@pytest.mark.parametrize("in_width", [1, 17, 100, 128, 300])
@pytest.mark.parametrize("wide", [False, True], ids=["int32", "int64"])
def test_every_width_index_type_and_instruction_set_works(
    wide: bool, in_width: int, always: Counter[str]
) -> None:
    """In single precision, which has the fast paths; the hub has more edges than a block."""
    hop = hop_of(12, 70, random_edges(12, 70, 150) + [(3, s) for s in range(70)])
    if wide:
        hop = Hop(hop.indptr.long(), hop.source.long(), hop.num_sources)
    torch.manual_seed(in_width)
    layer = GraphTransformerLayer(in_width, 20, heads=2, attention_dropout=0.2)
    h = rows_of(hop, in_width).float()
    expected = results(layer, None, h, hop, "reference")
    best = native.instruction_set()
    try:
        for instructions in native.INSTRUCTION_SETS:
            native.limit_instruction_set(instructions)
            for name, got in results(layer, None, h, hop, "native").items():
                torch.testing.assert_close(got, expected[name], rtol=1e-3, atol=1e-3, msg=name)
    finally:
        native.limit_instruction_set(best)
    assert always["backward"] == len(native.INSTRUCTION_SETS)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_single_precision_errs_at_most_twice_as_much_as_the_reference(
    dropout: float, always: Counter[str]
) -> None:
    hop = hop_of(30, 90, random_edges(30, 90, 400) + [(3, s) for s in range(90)])
    error: dict[Any, Counter[str]] = {"reference": Counter(), "native": Counter()}
    for seed in range(8):
        torch.manual_seed(seed)
        layer = GraphTransformerLayer(40, 24, heads=3, residual="gated", attention_dropout=dropout)
        norm, h = nn.LayerNorm(72), rows_of(hop, 40, seed).float()
        nn.init.normal_(layer.value.bias)
        found = {backend: results(layer, norm, h, hop, backend) for backend in error}
        truth = results(layer.double(), norm.double(), h.double(), hop, "reference")
        for backend, total in error.items():
            for name, got in found[backend].items():
                total[name] += float((got - truth[name]).square().sum())
    for name, squares in error["native"].items():
        assert math.sqrt(squares) <= 2 * math.sqrt(error["reference"][name]), name


def test_results_do_not_depend_on_the_number_of_threads(always: Counter[str]) -> None:
    hop = hop_of(1500, 4000, random_edges(1500, 4000, 9000))
    layer, norm = layer_and_norm("native", attention_dropout=0.2)
    layer, norm, h = layer.float(), norm.float(), rows_of(hop).float()
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(results(layer, None, h, hop, "native"))
    finally:
        torch.set_num_threads(before)
    # torch multiplies weights and may divide its sums among threads; kernels do not.
    assert torch.equal(found[0]["out"], found[1]["out"])
    assert torch.equal(found[0]["h"], found[1]["h"])


def test_no_tensor_is_as_large_as_the_projected_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tensor of size edges × heads is saved for the backward pass either."""
    monkeypatch.setattr(absorbed, "CALLS", 0)
    hop = hop_of(10, 400, random_edges(10, 400, 500))
    torch.manual_seed(0)
    layer = GraphTransformerLayer(8, 16, heads=4)
    h = rows_of(hop, 8).float().requires_grad_()
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    largest = {}
    for backend in ("native", "sparse"):
        layer.backend = backend  # type: ignore[assignment]
        with LargestOutput() as found:
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
                out = layer(h, hop)
            out.sum().backward()
        largest[backend] = found.numel
        if backend == "native":
            numbers = max(t.numel() for t in kept if t.is_floating_point())
    rows, projected = hop.num_sources * 8, hop.num_sources * 4 * 16
    assert pays(hop.num_sources, hop.num_targets, hop.num_edges, 8, 16)
    assert largest["native"] <= rows < projected
    assert numbers <= rows
    assert largest["sparse"] >= projected  # the recorder works


def test_sampled_neighbors_and_narrow_rows_are_absorbed_and_other_whole_graphs_are_not() -> None:
    # The recipe products-paper: 100 features, four heads of 128, 47 classes.
    assert pays(12_000, 1600, 16_000, 100, 128)
    assert pays(1600, 160, 1600, 512, 128)
    assert pays(160, 15, 150, 512, 47)
    assert pays(1000, 1000, 10_000, 100, 128)
    assert not pays(1000, 1000, 10_000, 512, 128)
    assert not pays(150, 150, 1500, 16, 64)  # its calls take longer than its products
    assert not pays(0, 0, 0, 100, 128)


def test_many_edges_with_wide_rows_cost_more_than_a_projection() -> None:
    assert pays(3000, 1000, 3000, 512, 128)
    assert not pays(3000, 1000, 80_000, 512, 128)
    assert pays(3000, 1000, 80_000, 128, 128)  # rows are not wider than a head


def test_edge_features_and_square_hops_with_wide_rows_are_not_absorbed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*given: Any) -> None:
        raise AssertionError("absorbed")

    monkeypatch.setattr(absorbed, "forward", refuse)
    monkeypatch.setattr(absorbed, "CALLS", 0)
    square = hop_of(9, 9, random_edges(9, 9, 30))
    layer, norm = layer_and_norm("native")
    layer(rows_of(square), square, norm)
    bipartite = hop_of(2, 40, random_edges(2, 40, 6))
    attr = torch.randn(bipartite.num_edges, EDGE_WIDTH).double()
    encoding, _ = layer_and_norm("native", edges=True)
    encoding(rows_of(bipartite), bipartite.with_edge_attr(attr), norm)
    with pytest.raises(AssertionError, match="absorbed"):
        layer(rows_of(bipartite), bipartite, norm)


def test_inference_also_absorbs_and_prepares_no_backward_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(absorbed, "CALLS", 0)
    hop = hop_of(2, 40, random_edges(2, 40, 6))
    layer, norm = layer_and_norm("native")
    with torch.no_grad():
        got = layer(rows_of(hop), hop, norm)
        assert hop.derived.transpose is None
        layer.backend = "reference"
        torch.testing.assert_close(got, layer(rows_of(hop), hop, norm), rtol=1e-9, atol=1e-11)


def test_weights_have_the_same_gradients_if_h_takes_none(always: Counter[str]) -> None:
    hop = HOPS["bipartite"]
    layer, _ = layer_and_norm("native")
    expected = results(layer, None, rows_of(hop), hop, "native")
    out = layer(rows_of(hop), hop)
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(5)).double()
    (out * direction).sum().backward()
    assert always["backward"] == 2
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, expected[name])
