"""Products of rows and weights: both libraries compute the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from unimp.ops import products

SHAPES = [(3000, 64, 40), (3000, 40, 64), (products.BLOCK, 100, 300), (1000, 64, 40), (3000, 3, 2)]
"""Rows, inputs and outputs; the last two products are too small for oneDNN."""


@pytest.fixture(params=["oneDNN", "MKL"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Compute in one of the two libraries."""
    if request.param == "MKL":
        monkeypatch.setattr(products, "has_onednn", lambda: False)
    elif not products.has_onednn():
        pytest.skip("this CPU has no AVX-512, or PyTorch was built without oneDNN")
    name: str = request.param
    return name


def exact(h: Tensor, weight: Tensor, bias: Tensor | None, grad: Tensor) -> list[Tensor]:
    """h Wᵀ + b and its gradients in fp64."""
    inputs = [t.detach().double().requires_grad_() for t in (h, weight, bias) if t is not None]
    out = F.linear(*inputs)
    return [out.detach(), *torch.autograd.grad(out, inputs, grad.double())]


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), SHAPES)
def test_values_and_gradients_are_those_of_fp64(
    library: str, rows: int, inputs: int, outputs: int, has_bias: bool
) -> None:
    torch.manual_seed(0)
    # Strided rows, as slices of a wider tensor have them.
    h = torch.randn(rows, inputs + 8)[:, :inputs].requires_grad_()
    weight = torch.randn(outputs, inputs).requires_grad_()
    bias = torch.randn(outputs).requires_grad_() if has_bias else None
    grad = torch.randn(rows, outputs + 8)[:, :outputs]
    out = products.linear(h, weight, bias)
    is_large = rows >= products.BLOCK and inputs > 3
    assert products.uses_onednn(h, weight, outputs) == (library == "oneDNN" and is_large)
    found = torch.autograd.grad(out, [t for t in (h, weight, bias) if t is not None], grad)
    for got, wanted in zip((out, *found), exact(h, weight, bias, grad), strict=True):
        torch.testing.assert_close(got, wanted.float(), rtol=1e-4, atol=1e-3)


def test_gradients_are_written_into_given_tensors(library: str) -> None:
    torch.manual_seed(0)
    h, weight, grad = torch.randn(3000, 64), torch.randn(40, 64), torch.randn(3000, 40)
    onto, out = torch.ones(3000, 64), torch.empty(80, 64)
    added = products.times_weight(grad, weight, onto=onto)
    assert added.data_ptr() == onto.data_ptr()
    torch.testing.assert_close(onto, 1 + grad @ weight, rtol=1e-4, atol=1e-4)
    products.weight_gradient(grad, h, out=out[40:])
    torch.testing.assert_close(out[40:], grad.t() @ h, rtol=1e-4, atol=1e-3)


def test_any_number_of_rows_needs_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN keeps code for each shape, so all calls must have the same few shapes."""
    shapes = set()

    def multiply(h: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        shapes.add((h.shape, weight.shape))
        return F.linear(h, weight, bias)

    monkeypatch.setattr(products, "has_onednn", lambda: True)
    monkeypatch.setattr(products, "_by_onednn", multiply)
    for rows in (1024, 1500, 2048, 3000, 5001):
        h = torch.randn(rows, 64, requires_grad=True)
        layer = products.Linear(64, 40)
        layer(h).sum().backward()
        assert h.grad is not None
        torch.testing.assert_close(h.grad, layer.weight.sum(0).expand(rows, -1))
    assert len(shapes) == 3


def test_autocast_computes_in_bf16(library: str) -> None:
    h, layer = torch.randn(3000, 64), products.Linear(64, 40)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(h)
    assert out.dtype == torch.bfloat16
    assert layer(h).dtype == torch.float32


def test_without_gradients_the_values_are_the_same(library: str) -> None:
    h, layer = torch.randn(3000, 64), products.Linear(64, 40)
    with torch.no_grad():
        found = layer(h)
    assert not found.requires_grad
    assert torch.equal(found, layer(h).detach())


@pytest.mark.parametrize("shape", ["strided", "one number", "row"])
def test_any_bias_is_added(library: str, shape: str) -> None:
    h, weight = torch.randn(3000, 64), torch.randn(40, 64)
    bias = {
        "strided": torch.randn(80)[::2],
        "one number": torch.randn(1).expand(40),
        "row": torch.randn(1, 40),
    }[shape]
    with torch.no_grad():
        found = products.linear(h, weight, bias)
    torch.testing.assert_close(found, h @ weight.t() + bias, rtol=1e-4, atol=1e-4)


def test_shapes_that_do_not_fit_are_refused_as_by_torch(library: str) -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        products.linear(torch.randn(3000, 64), torch.randn(40, 65))


def test_a_compiled_layer_is_one_graph(library: str) -> None:
    h, layer = torch.randn(3000, 64), products.Linear(64, 40)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(h), layer(h), rtol=1e-4, atol=1e-5)


def test_second_derivatives_and_transforms_are_those_of_torch(library: str) -> None:
    torch.manual_seed(0)
    h, layer = torch.randn(3000, 64, requires_grad=True), products.Linear(64, 40)

    def slope(multiply: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
        out = multiply(h, layer.weight, layer.bias).tanh()
        (grad,) = torch.autograd.grad(out.sum(), h, create_graph=True)
        (second,) = torch.autograd.grad(grad.square().sum(), layer.weight)
        return second

    torch.testing.assert_close(slope(products.linear), slope(F.linear), rtol=1e-3, atol=1e-2)
    of_rows = torch.func.vmap(lambda rows: products.linear(rows, layer.weight, layer.bias))
    torch.testing.assert_close(of_rows(torch.stack((h, h)))[1], layer(h), rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:TF32")
def test_turning_onednn_off_is_respected() -> None:
    h, weight = torch.randn(3000, 64), torch.randn(40, 64)
    with torch.backends.mkldnn.flags(enabled=False):
        assert not products.uses_onednn(h, weight, len(weight))
