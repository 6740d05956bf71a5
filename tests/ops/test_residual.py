"""The residual step: each kernel equals plain torch, forward and for every gradient."""

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from small_hops import device_of
from torch import Tensor

from unimp.ops import native
from unimp.ops.residual import Residual, kernels, mix

GATE, BIAS, NORM = ("on_kept", "on_message"), ("gate_bias",), ("weight", "bias")
KERNELS = [
    pytest.param(
        "native",
        marks=pytest.mark.skipif(not native.available(), reason="the native core is not built"),
    ),
    pytest.param(
        "triton", marks=pytest.mark.skipif(not find_spec("triton"), reason="Triton is missing")
    ),
]


def operands(
    names: tuple[str, ...], rows: int, width: int, dtype: torch.dtype = torch.float64
) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    shapes = dict.fromkeys(("message", "kept"), (rows, width)) | {
        name: (1,) if name == "gate_bias" else (width,) for name in names
    }
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64)
        .to(dtype)
        .requires_grad_()
        for name, shape in shapes.items()
    }


def by_torch(given: dict[str, Tensor], **options: Any) -> dict[str, Tensor]:
    """The result and all gradients, for a random direction."""
    learned = {name: tensor for name, tensor in given.items() if name not in ("message", "kept")}
    out = mix(given["message"], given["kept"], Residual(**learned, **options))
    grads = torch.autograd.grad((out * direction(out)).sum(), list(given.values()))
    return {"out": out.detach()} | dict(zip(given, grads, strict=True))


def by_kernel(kernel: str, given: dict[str, Tensor], **options: Any) -> dict[str, Tensor]:
    given = {name: tensor.detach().to(device_of(kernel)) for name, tensor in given.items()}
    message, kept = given.pop("message"), given.pop("kept")
    step = Residual(**given, **options)
    module = kernels(kernel)
    out, row_stats = module.residual_forward(message, kept, step)
    grad_kept = torch.zeros(len(kept), kept.shape[1] + 3).to(kept)[:, 2:-1]  # rows with a stride
    grad_message, sums = module.residual_backward(
        direction(out), message, kept, step, row_stats, grad_kept
    )
    found = {"out": out, "message": grad_message, "kept": grad_kept}
    found |= {name: sums._asdict()[name] for name in given}
    return {name: tensor.cpu() for name, tensor in found.items()}


def direction(out: Tensor) -> Tensor:
    return torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("names", [(), NORM, GATE, GATE + BIAS, GATE + BIAS + NORM])
@pytest.mark.parametrize(("rows", "width"), [(7, 5), (9, 600), (2050, 3), (0, 4)])
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_equal_torch_forward_and_for_every_gradient(
    kernel: str, rows: int, width: int, names: tuple[str, ...], relu: bool
) -> None:
    if kernel == "triton" and rows > 1000 and device_of(kernel) == "cpu":
        pytest.skip("many rows take too long in the interpreter")
    given = operands(names, rows, width)
    expected = by_torch(given, relu=relu, eps=1e-3)
    for name, got in by_kernel(kernel, given, relu=relu, eps=1e-3).items():
        torch.testing.assert_close(got, expected[name], rtol=1e-10, atol=1e-11, msg=name)


def test_triton_accepts_half_precision_rows_with_single_precision_parameters() -> None:
    pytest.importorskip("triton")
    given = operands(GATE + BIAS + NORM, rows=6, width=8, dtype=torch.float32)
    truth = by_torch(given, relu=True)
    half = {k: v.detach().bfloat16() if k in ("message", "kept") else v for k, v in given.items()}
    for name, got in by_kernel("triton", half, relu=True).items():
        torch.testing.assert_close(got.float(), truth[name], rtol=0.05, atol=0.05, msg=name)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("heads", "width"), [(1, 8), (2, 4), (4, 16)])
def test_triton_finds_the_terms_of_attention(heads: int, width: int, dtype: torch.dtype) -> None:
    """L and dm·m per head, where m is the message and dm its gradient as it is stored."""
    residual = pytest.importorskip("unimp.ops.triton.residual")
    given = operands(GATE, rows=300, width=heads * width, dtype=dtype)
    given = {name: tensor.detach().to(device_of("triton")) for name, tensor in given.items()}
    message, kept = given.pop("message"), given.pop("kept")
    step = Residual(**given)
    out, row_stats = residual.residual_forward(message, kept, step)
    log_sum = torch.randn(300, heads).to(row_stats.beta)
    terms = log_sum.new_full((300, heads, 2), torch.nan)
    assert residual.can_find_terms(heads, width)
    grad, _ = residual.residual_backward(
        direction(out), message, kept, step, row_stats, torch.empty_like(kept), log_sum, terms
    )
    products = (grad.double() * message.double()).view(300, heads, width).sum(2)
    assert torch.equal(terms[..., 0], log_sum)
    torch.testing.assert_close(terms[..., 1].double(), products, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("heads", "width"), [(3, 4), (2, 5), (1, 2), (3, 5)])
def test_heads_that_do_not_fill_a_tile_have_no_terms(heads: int, width: int) -> None:
    residual = pytest.importorskip("unimp.ops.triton.residual")
    assert not residual.can_find_terms(heads, width)


@pytest.mark.parametrize("kernel", KERNELS)
def test_relu_does_not_hide_nan(kernel: str) -> None:
    rows = torch.full((2, 4), torch.nan, device=device_of(kernel))
    ones = torch.ones(4, device=device_of(kernel))
    for step in (Residual(relu=True), Residual(weight=ones, bias=ones, relu=True)):
        assert bool(mix(rows, rows, step).isnan().all())
        out, _ = kernels(kernel).residual_forward(rows, rows, step)
        assert bool(out.isnan().all())
