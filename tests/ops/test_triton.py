"""The Triton kernels equal the reference; they run on a GPU, or in the interpreter without one."""
# ruff: noqa: E402

import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from small_hops import hop_of, random_edges
from torch import Tensor
from torch.nn import functional as F

triton = pytest.importorskip("triton", reason="Triton is not installed")

import triton.language as tl

from unimp.graph.hop import Hop, cut_rows
from unimp.ops import fused, reference
from unimp.ops.triton import rows as triton_rows

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HEADS = 3
Attend = Callable[..., tuple[Tensor, Tensor | None, Tensor | None]]


HOPS = {
    "square": hop_of(6, 6, random_edges(6, 6, 20)),
    "bipartite": hop_of(3, 9, random_edges(3, 9, 14)),
    "targets without in-edges": hop_of(5, 6, random_edges(2, 6, 9)),
    "hub": hop_of(3, 19, [(1, s) for s in range(19)] + [(0, 7)]),
    "hub of sources": hop_of(11, 12, [(t, 3) for t in range(11)]),
    "duplicate edges": hop_of(3, 4, [(0, 1)] * 4 + [(0, 2), (2, 3), (2, 3)]),
    "one edge": hop_of(2, 3, [(1, 2)]),
    "no edges": hop_of(2, 3, []),
}
HOPS = {name: hop.to(DEVICE) for name, hop in HOPS.items()}


def operands(
    hop: Hop, *, width: int = 5, edge_width: int = 0, seed: int = 0, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Random operands of `attend` by name; each is a leaf that takes a gradient."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {
        "query": (hop.num_targets, HEADS, width),
        "key": (hop.num_sources, HEADS, width),
        "value": (hop.num_sources, HEADS, width),
    }
    if edge_width:
        shapes["edge_query"] = (hop.num_targets, HEADS, edge_width)
        shapes["edge_attr"] = (hop.num_edges, edge_width)
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64)
        .to(DEVICE, dtype)
        .requires_grad_()
        for name, shape in shapes.items()
    }


def results(
    attend: Attend, hop: Hop, given: dict[str, Tensor], *, dropout: float, piece: int, seed: int
) -> dict[str, Tensor]:
    """The results of attention by name, and the gradient of every operand."""
    hop = Hop(hop.indptr, hop.source, hop.num_sources, given.get("edge_attr"), numbers=hop.numbers)
    hop.derived.schedule = cut_rows(hop.indptr, piece)
    hop.derived.source_schedule = cut_rows(hop.transpose.indptr, piece)
    rows = (given["query"], given["key"], given["value"])
    found = attend(*rows, hop, given.get("edge_query"), dropout, torch.tensor(seed, device=DEVICE))
    named = dict(zip(("out", "edge_mean", "mass"), found, strict=True))
    outputs = {name: tensor for name, tensor in named.items() if tensor is not None}
    generator = torch.Generator().manual_seed(9)
    loss = sum(
        (t * torch.randn(t.shape, generator=generator).to(t)).sum() for t in outputs.values()
    )
    grads = torch.autograd.grad(loss, list(given.values()), allow_unused=True)
    return {name: t.detach() for name, t in outputs.items()} | {
        f"gradient of {name}": torch.zeros_like(tensor) if grad is None else grad
        for (name, tensor), grad in zip(given.items(), grads, strict=True)
    }


def assert_as_reference(
    hop: Hop, given: dict[str, Tensor], *, dropout: float = 0.0, piece: int = 4, seed: int = 7
) -> None:
    options = {"dropout": dropout, "piece": piece, "seed": seed}
    expected = results(reference.attend, hop, given, **options)
    got = results(fused.triton_attend, hop, given, **options)
    for name, tensor in expected.items():
        assert bool(torch.isfinite(got[name]).all()), name
        torch.testing.assert_close(
            got[name], tensor, rtol=1e-10, atol=1e-12, msg=lambda m, name=name: f"{name}: {m}"
        )


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("edge_width", [0, 2])
@pytest.mark.parametrize("name", HOPS)
def test_attention_and_all_gradients_equal_the_reference(
    name: str, edge_width: int, dropout: float
) -> None:
    # Pieces of four edges, so that rows are whole, and cut into two and more.
    given = operands(HOPS[name], edge_width=edge_width, dtype=torch.float64)
    assert_as_reference(HOPS[name], given, dropout=dropout)


@pytest.mark.parametrize(("width", "edge_width"), [(1, 1), (8, 8), (40, 3), (300, 17), (4, 70)])
def test_heads_and_edge_features_may_have_any_width(width: int, edge_width: int) -> None:
    hop = HOPS["duplicate edges"]
    assert_as_reference(hop, operands(hop, width=width, edge_width=edge_width, dtype=torch.float64))


@pytest.mark.parametrize("dropout", [0.05, 0.95])
@pytest.mark.parametrize("seed", [0, 2**31 - 1, 2**40 + 12345])
def test_dropout_drops_the_same_weights_as_the_reference(dropout: float, seed: int) -> None:
    hop = HOPS["bipartite"]
    given = operands(hop, dtype=torch.float64)
    assert_as_reference(hop, given, dropout=dropout, seed=seed, piece=512)


@pytest.mark.parametrize("edge_width", [0, 2])
def test_dropout_draws_from_the_numbers_of_a_hop(edge_width: int) -> None:
    hop = HOPS["square"]
    numbers = torch.randint(-(2**63), 2**63 - 1, (hop.num_edges,), device=hop.source.device)
    given = operands(hop, edge_width=edge_width, dtype=torch.float64)
    assert_as_reference(hop.with_numbers(numbers), given, dropout=0.5)


def test_indices_may_have_64_bits() -> None:
    hop = HOPS["square"]
    hop = Hop(hop.indptr.long(), hop.source.long(), hop.num_sources)
    given = operands(hop, edge_width=2, dtype=torch.float64)
    assert_as_reference(hop, given, dropout=0.3)


def test_operands_may_be_slices_of_one_projection() -> None:
    hop, dtype = HOPS["square"], torch.float32
    apart = operands(hop, dtype=dtype, width=4)
    packed = torch.cat([t.detach().flatten(1) for t in apart.values()], 1)
    packed = F.pad(packed, (3, 2))  # rows that start off the beaten addresses
    columns = 4 * HEADS
    slices = {
        name: packed[:, 3 + i * columns : 3 + (i + 1) * columns].view(-1, HEADS, 4).requires_grad_()
        for i, name in enumerate(apart)
    }
    assert not slices["query"].is_contiguous()
    options = {"dropout": 0.0, "piece": 4, "seed": 0}
    expected = results(fused.triton_attend, hop, apart, **options)
    for name, tensor in results(fused.triton_attend, hop, slices, **options).items():
        torch.testing.assert_close(tensor, expected[name], msg=name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lower_precision_errs_at_most_twice_as_much_as_the_reference(dtype: torch.dtype) -> None:
    hop = hop_of(8, 12, random_edges(8, 12, 60)).to(DEVICE)
    error: dict[str, Counter[str]] = {"triton": Counter(), "reference": Counter()}
    options = {"dropout": 0.2, "piece": 8, "seed": 3}
    given = operands(hop, edge_width=2, dtype=dtype)
    exact = {name: tensor.detach().double().requires_grad_() for name, tensor in given.items()}
    truth = results(reference.attend, hop, exact, **options)
    for backend, attend in (("triton", fused.triton_attend), ("reference", reference.attend)):
        for name, got in results(attend, hop, given, **options).items():
            assert got.dtype == dtype
            error[backend][name] += float((got - truth[name]).square().sum())
    for name, squares in error["triton"].items():
        assert math.sqrt(squares) <= 2 * math.sqrt(error["reference"][name]), name


def test_edge_features_may_be_stored_in_another_precision() -> None:
    hop = HOPS["square"]
    given = operands(hop, edge_width=2, dtype=torch.float64)
    rounded = given["edge_attr"].detach().float()
    options = {"dropout": 0.0, "piece": 4, "seed": 0}
    expected = results(
        reference.attend, hop, given | {"edge_attr": rounded.double().requires_grad_()}, **options
    )
    mixed = given | {"edge_attr": rounded.requires_grad_()}
    got = results(fused.triton_attend, hop, mixed, **options)
    assert got["gradient of edge_attr"].dtype == torch.float32
    for name, tensor in expected.items():
        torch.testing.assert_close(got[name].double(), tensor, rtol=1e-6, atol=1e-6)


def test_large_scores_do_not_overflow() -> None:
    hop = HOPS["hub"]
    given = operands(hop, edge_width=2, dtype=torch.float32)
    given["query"] = (given["query"].detach() * 1e4).requires_grad_()
    found = results(fused.triton_attend, hop, given, dropout=0.0, piece=4, seed=0)
    for name, tensor in found.items():
        assert bool(torch.isfinite(tensor).all()), name


@triton.jit
def draw(out, seed, first, DROPOUT_THRESHOLD: tl.constexpr, LONG: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    slot = tl.load(first) + tl.arange(0, 16)
    salt = triton_rows.mix(tl.load(seed).to(tl.uint32))
    ones = tl.full([16], 1.0, tl.float32)
    kept = triton_rows.drop(ones, slot, 2, salt, 3, DROPOUT_THRESHOLD, 2.0, LONG)
    tl.store(out + tl.arange(0, 16), kept)


def test_dropout_with_64_bit_counters_equals_the_reference() -> None:
    first, seed = torch.tensor([2**33 // 3 - 8, 77], device=DEVICE)
    counter = (first + torch.arange(16, device=DEVICE)) * 3 + 2
    assert int(counter[0]) < 2**33 <= int(counter[-1])
    bits = reference._mix(
        (counter & 0xFFFFFFFF) ^ reference._mix(seed) ^ reference._mix(counter >> 32)
    )
    got = torch.empty(16, device=DEVICE)
    draw[(1,)](got, seed, first, DROPOUT_THRESHOLD=2**31, LONG=True)
    assert torch.equal(got, (bits >= 2**31) * 2.0)


COMPILE = """
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from unimp.graph.hop import Hop, cut_rows
from unimp.ops.triton import attention
from unimp.ops import fused
from unimp.ops.residual import Residual
from unimp.ops.triton.gather import gather
from unimp.ops.triton.residual import residual_backward, residual_forward

class H200:  # the interface that the compiler needs
    get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))
    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device: 0)

launch = JITFunction.run

def compile_only(self, *args, grid, warmup, **options):
    kernel = launch(self, *args, grid=grid, warmup=True, **options)
    print(self.__name__, len(kernel.asm["cubin"]))

driver.set_active(H200())
JITFunction.run = compile_only

hop = Hop(torch.tensor([0, 9, 10]).int(), torch.arange(10).int(), 10)
hop.derived.schedule = cut_rows(hop.indptr, 4)
hop.derived.source_schedule = cut_rows(torch.tensor([0, 9, *[10] * 9]).int(), 4)
edges = fused.edges_of(hop, "triton", backward=True)
seed = torch.tensor(3)
for dtype, width, edge_width, dropout in (
    (torch.float32, 128, 0, 0.0), (torch.bfloat16, 40, 8, 0.6), (torch.float64, 5, 2, 0.3)
):
    query, key, value = (torch.zeros(n, 2, width, dtype=dtype) for n in (2, 10, 10))
    u = torch.zeros(2, 2, edge_width, dtype=dtype) if edge_width else None
    attr = torch.zeros(10, edge_width) if edge_width else None
    given = fused.Operands(query, key, value, u, attr, edges, dropout, seed)
    found = attention.forward(given)
    empty = torch.empty(0)
    grads = (empty if t is None else torch.empty_like(t) for t in given[:5])
    attention.backward(given, found, found, fused.Backward(*grads))
for dtype in (torch.float32, torch.float16):
    x, nodes = torch.zeros(9, 100, dtype=dtype), torch.tensor([3, 1])
    gather(nodes, torch.full((9,), -1, dtype=torch.int32), x[:2], x)
rows, ones = torch.zeros(9, 256, dtype=torch.bfloat16), torch.ones(256)
for gate in ({}, {"on_kept": ones, "on_message": ones, "gate_bias": torch.ones(1)}):
    for norm in ({}, {"weight": ones, "bias": ones}):
        step = Residual(relu=True, **gate, **norm)
        _, row_stats = residual_forward(rows, rows, step)
        residual_backward(rows, rows, rows, step, row_stats, torch.empty_like(rows))
        terms = torch.empty(9, 4), torch.empty(9, 4, 2)
        residual_backward(rows, rows, rows, step, row_stats, torch.empty_like(rows), *terms)
"""


def test_all_kernels_compile_for_an_h200_without_one() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    kernels = {line.split()[0] for line in done.stdout.splitlines()}
    assert kernels == {
        "attend",
        "merge",
        "find_terms",
        "differentiate_by_source",
        "differentiate_by_target",
        "differentiate_edges",
        "forward_rows",
        "backward_rows",
        "gather_kernel",
    }
