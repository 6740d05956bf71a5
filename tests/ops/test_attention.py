"""Attention: backends equal the definition, and no tensor per edge, head and column is built."""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_hops import hop_of, random_edges
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from unimp.errors import BackendError
from unimp.graph.graph import Graph
from unimp.graph.hop import Hop
from unimp.ops import native
from unimp.ops.attention import BACKENDS, attention_weights, choose_backend, graph_attention
from unimp.ops.reference import dropout_factors

Maker = Callable[..., Graph]
CPU_BACKENDS = [name for name in BACKENDS if name != "triton"]
HEADS, WIDTH, EDGE_WIDTH = 3, 5, 2


HOPS = {
    "square": hop_of(8, 8, random_edges(8, 8, 25)),
    "bipartite": hop_of(4, 11, random_edges(4, 11, 20)),
    "targets without in-edges": hop_of(6, 9, random_edges(3, 9, 12)),
    "hub": hop_of(5, 40, [(2, s) for s in range(40)] + [(0, 7)]),
    "duplicate edges": hop_of(3, 4, [(0, 1)] * 4 + [(0, 2), (2, 3), (2, 3)]),
    "more duplicates than pairs of nodes": hop_of(1, 2, [(0, 1)] * 5 + [(0, 0)]),
    "one edge": hop_of(3, 5, [(1, 4)]),
    "no edges": hop_of(3, 5, []),
}


def operands(
    hop: Hop, *, edges: bool, seed: int = 0, dtype: torch.dtype = torch.float64
) -> dict[str, Tensor]:
    """Random operands by name; each is a leaf that takes a gradient."""
    generator = torch.Generator().manual_seed(seed)
    shapes: dict[str, tuple[int, ...]] = {
        "query": (hop.num_targets, HEADS, WIDTH),
        "key": (hop.num_sources, HEADS, WIDTH),
        "value": (hop.num_sources, HEADS, WIDTH),
    }
    if edges:
        shapes["edge_weight"] = (HEADS, WIDTH, EDGE_WIDTH)
        shapes["edge_bias"] = (HEADS, WIDTH)
        shapes["edge_attr"] = (hop.num_edges, EDGE_WIDTH)
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64)
        .to(dtype)
        .requires_grad_()
        for name, shape in shapes.items()
    }


def attend(hop: Hop, given: dict[str, Tensor], **options: Any) -> Tensor:
    given = dict(given)
    edges = hop.indptr, hop.source, hop.num_sources
    hop = Hop(*edges, given.pop("edge_attr", None), numbers=hop.numbers)
    return graph_attention(hop=hop, **given, **options)


def weigh(hop: Hop, given: dict[str, Tensor]) -> Tensor:
    hop = Hop(hop.indptr, hop.source, hop.num_sources, given.get("edge_attr"))
    return attention_weights(
        given["query"], given["key"], hop, edge_weight=given.get("edge_weight")
    )


def by_loops(hop: Hop, given: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Equations 3 and 4 as printed: every edge encoded, one target and one head at a time."""
    out, weights = torch.zeros_like(given["query"]), torch.zeros(hop.num_edges, HEADS).double()
    for i in range(hop.num_targets):
        slots = range(int(hop.indptr[i]), int(hop.indptr[i + 1]))
        for h in range(HEADS) if slots else ():
            keys = [given["key"][hop.source[k], h] for k in slots]
            values = [given["value"][hop.source[k], h] for k in slots]
            if "edge_attr" in given:
                encoded = [
                    given["edge_weight"][h] @ given["edge_attr"][k] + given["edge_bias"][h]
                    for k in slots
                ]
                keys = [key + e for key, e in zip(keys, encoded, strict=True)]
                values = [value + e for value, e in zip(values, encoded, strict=True)]
            scores = torch.stack([given["query"][i, h] @ key / math.sqrt(WIDTH) for key in keys])
            alpha = scores.softmax(0)
            weights[slots.start : slots.stop, h] = alpha
            out[i, h] = sum(a * value for a, value in zip(alpha, values, strict=True))
    return out, weights


def gradients(out: Tensor, given: dict[str, Tensor]) -> dict[str, Tensor]:
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(9)).to(out.dtype)
    found = torch.autograd.grad((out * direction).sum(), list(given.values()), allow_unused=True)
    return {
        name: torch.zeros_like(tensor) if grad is None else grad
        for (name, tensor), grad in zip(given.items(), found, strict=True)
    }


@pytest.mark.parametrize("edges", [False, True], ids=["plain", "edge features"])
@pytest.mark.parametrize("name", HOPS)
@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_attention_follows_the_equations(backend: Any, name: str, edges: bool) -> None:
    given = operands(HOPS[name], edges=edges)
    with torch.no_grad():
        got = attend(HOPS[name], given, backend=backend)
        out, weights = by_loops(HOPS[name], given)
    torch.testing.assert_close(got, out, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(weigh(HOPS[name], given), weights, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("edges", [False, True], ids=["plain", "edge features"])
@pytest.mark.parametrize("name", HOPS)
def test_backends_agree_on_outputs_and_all_gradients(
    name: str, edges: bool, dropout: float
) -> None:
    given = operands(HOPS[name], edges=edges)
    options = {"dropout": dropout, "seed": 5}
    expected = attend(HOPS[name], given, backend="reference", **options)
    got = attend(HOPS[name], given, backend="sparse", **options)
    torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-12)
    theirs = gradients(expected, given)
    for operand, grad in gradients(got, given).items():
        torch.testing.assert_close(grad, theirs[operand], rtol=1e-10, atol=1e-12)
        assert bool(torch.isfinite(grad).all()), operand


@pytest.mark.parametrize("edges", [False, True], ids=["plain", "edge features"])
@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_dropout_draws_from_the_numbers_of_a_hop(backend: Any, edges: bool) -> None:
    """Edges in another order have the same results if each keeps its number."""
    hop = HOPS["square"]
    given = operands(hop, edges=edges)
    options: dict[str, Any] = {"backend": backend, "dropout": 0.5, "seed": 1}
    numbers = torch.randint(-(2**63), 2**63 - 1, (hop.num_edges,))
    out = attend(hop.with_numbers(numbers), given, **options)
    assert not torch.allclose(out, attend(hop, given, **options))

    order = torch.argsort(hop.target * hop.num_edges - torch.arange(hop.num_edges))
    other = Hop(hop.indptr, hop.source[order], hop.num_sources).with_numbers(numbers[order])
    assert not torch.equal(other.source, hop.source)
    moved = dict(given)
    if edges:
        moved["edge_attr"] = given["edge_attr"].detach()[order].requires_grad_()
    again = attend(other, moved, **options)
    torch.testing.assert_close(again, out)
    grads, expected = gradients(again, moved), gradients(out, given)
    if edges:
        expected["edge_attr"] = expected["edge_attr"][order]
    for name, grad in grads.items():
        torch.testing.assert_close(grad, expected[name], msg=name)

    slots = torch.arange(hop.num_edges)
    torch.testing.assert_close(
        attend(hop.with_numbers(slots), given, **options), attend(hop, given, **options)
    )


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("edges", [False, True], ids=["plain", "edge features"])
@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_gradients_equal_finite_differences(backend: Any, edges: bool, dropout: float) -> None:
    hop = hop_of(3, 4, [(0, 1), (0, 2), (0, 2), (2, 0), (2, 3)])
    given = operands(hop, edges=edges)

    def out(*tensors: Tensor) -> Tensor:
        by_name = dict(zip(given, tensors, strict=True))
        return attend(hop, by_name, backend=backend, dropout=dropout, seed=1)

    assert torch.autograd.gradcheck(out, tuple(given.values()))


def test_weights_of_the_in_edges_of_each_target_sum_to_one() -> None:
    hop = HOPS["targets without in-edges"]
    weights = weigh(hop, operands(hop, edges=True))
    sums = torch.zeros(hop.num_targets, HEADS).double().index_add(0, hop.target, weights)
    has_edges = (hop.indptr.diff() > 0).double()
    torch.testing.assert_close(sums, has_edges[:, None].expand_as(sums))


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_a_target_without_in_edges_receives_zeros(backend: Any) -> None:
    hop = HOPS["targets without in-edges"]
    out = attend(hop, operands(hop, edges=True), backend=backend)
    assert bool((out[3:] == 0).all())
    assert bool((out[:3] != 0).any())


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_large_scores_do_not_overflow(backend: Any) -> None:
    hop = HOPS["square"]
    given = operands(hop, edges=True, dtype=torch.float32)
    given["query"] = (given["query"].detach() * 1e4).requires_grad_()
    out = attend(hop, given, backend=backend)
    assert bool(torch.isfinite(out).all())
    assert all(bool(torch.isfinite(grad).all()) for grad in gradients(out, given).values())


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_the_seed_decides_which_weights_are_dropped(backend: Any) -> None:
    hop = HOPS["square"]
    given = operands(hop, edges=False)
    first, again, other = (
        attend(hop, given, backend=backend, dropout=0.5, seed=seed) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_keeps_the_mean_and_is_independent_for_each_edge_head_and_seed(rate: float) -> None:
    like = torch.zeros(0, dtype=torch.float64)
    hop = Hop(torch.tensor([0, 20_000]), torch.arange(20_000), 20_000)
    masks = [dropout_factors(hop, 4, rate, seed, like) for seed in (0, 1, 12345)]
    for factors in masks:
        assert factors is not None
        assert factors.shape == (20_000, 4)
        values = factors.unique()
        torch.testing.assert_close(values, torch.tensor([0.0, 1 / (1 - rate)]).double())
        # Five standard deviations of a mean over 80,000 draws.
        assert abs(float(factors.mean()) - 1) < 5 * math.sqrt(rate / (1 - rate) / 80_000)
        correlation = torch.corrcoef(factors.T) - torch.eye(4)
        assert float(correlation.abs().max()) < 0.05
    both = torch.corrcoef(torch.stack([m.flatten() for m in masks if m is not None]))
    assert float((both - torch.eye(3)).abs().max()) < 0.05
    assert dropout_factors(hop, 4, 0.0, 0, like) is None


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("edges", [False, True], ids=["plain", "edge features"])
@pytest.mark.parametrize("backend", [name for name in CPU_BACKENDS if name != "reference"])
def test_single_precision_errs_at_most_twice_as_much_as_the_reference(
    backend: Any, edges: bool, dropout: float
) -> None:
    # Root mean square over seeds, because the largest error of one seed is random.
    hop = hop_of(30, 60, random_edges(30, 60, 400) + [(3, s) for s in range(60)])
    error: dict[str, Counter[str]] = {"reference": Counter(), backend: Counter()}

    def results(given: dict[str, Tensor], backend: Any) -> dict[str, Tensor]:
        out = attend(hop, given, backend=backend, dropout=dropout, seed=2)
        return {"out": out.detach()} | gradients(out, given)

    for seed in range(8):
        given = operands(hop, edges=edges, seed=seed, dtype=torch.float32)
        exact = {name: tensor.detach().double().requires_grad_() for name, tensor in given.items()}
        truth = results(exact, "reference")
        for name, total in error.items():
            for operand, got in results(given, name).items():
                total[operand] += float((got - truth[operand]).square().sum())
    for operand, squares in error[backend].items():
        assert math.sqrt(squares) <= 2 * math.sqrt(error["reference"][operand]), operand


@pytest.mark.parametrize("edges", [False, True], ids=["plain", "edge features"])
@pytest.mark.parametrize("width", [32, 64, 128, 40, 1, 17])
@pytest.mark.parametrize("wide", [False, True], ids=["int32", "int64"])
def test_the_native_core_works_for_every_width_index_type_and_instruction_set(
    wide: bool, width: int, edges: bool
) -> None:
    """In single precision, which has the fast paths; the hub has more edges than a block."""
    if not native.available():
        pytest.skip("the native core is not built here")
    hop = hop_of(12, 70, random_edges(12, 70, 150) + [(3, s) for s in range(70)])
    if wide:
        hop = Hop(hop.indptr.long(), hop.source.long(), hop.num_sources)
    generator = torch.Generator().manual_seed(width)

    def rows(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).requires_grad_()

    given = {"query": rows(12, 2, width), "key": rows(70, 2, width), "value": rows(70, 2, width)}
    if edges:
        given |= {"edge_weight": rows(2, width, 9), "edge_attr": rows(hop.num_edges, 9)}

    def results(backend: Any) -> dict[str, Tensor]:
        out = attend(hop, given, backend=backend, dropout=0.2, seed=4)
        return {"out": out.detach()} | gradients(out, given)

    expected = results("reference")
    best = native.instruction_set()
    try:
        for instructions in native.INSTRUCTION_SETS:
            native.limit_instruction_set(instructions)
            for name, got in results("native").items():
                torch.testing.assert_close(got, expected[name], rtol=1e-3, atol=1e-4, msg=name)
    finally:
        native.limit_instruction_set(best)


@pytest.mark.parametrize("edges", [False, True], ids=["plain", "edge features"])
@pytest.mark.parametrize("name", HOPS)
@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_int64_hops_give_the_results_and_gradients_of_int32_hops(
    backend: Any, name: str, edges: bool
) -> None:
    hop = HOPS[name]
    long = Hop(hop.indptr.long(), hop.source.long(), hop.num_sources)
    given = operands(hop, edges=edges)
    out, expected = (attend(h, given, backend=backend) for h in (long, hop))
    assert torch.equal(out, expected)
    theirs = gradients(expected, given)
    for operand, grad in gradients(out, given).items():
        assert torch.equal(grad, theirs[operand]), operand


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    hop = hop_of(3000, 3000, random_edges(3000, 3000, 9000))
    given = operands(hop, edges=False, dtype=torch.float32)

    def results(threads: int) -> list[Tensor]:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            out = attend(hop, given, backend="auto", dropout=0.2)
            return [out.detach(), *gradients(out, given).values()]
        finally:
            torch.set_num_threads(before)

    for one, other in zip(results(1), results(2), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0 if native.available() else 1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("backend", ["native", "triton"])
def test_a_score_of_minus_infinity_is_a_weight_of_zero(backend: Any, dtype: torch.dtype) -> None:
    if backend == "native" and not native.available():
        pytest.skip("the native core is not built here")
    if backend == "triton":
        pytest.importorskip("triton")
    hop = hop_of(1, 40, [(0, s) for s in range(40)])  # the first blocks have no other score
    key = torch.zeros(40, 1, 2, dtype=dtype)
    key[:39] = -torch.inf
    value = torch.full((40, 1, 2), 7.0, dtype=dtype)
    value[39] = 1.0
    query = torch.ones(1, 1, 2, dtype=dtype)
    device = "cuda" if backend == "triton" and torch.cuda.is_available() else "cpu"
    query, key, value = (rows.to(device) for rows in (query, key, value))
    out = graph_attention(query, key, value, hop.to(device), backend=backend)
    torch.testing.assert_close(out, torch.ones_like(out))


def test_mismatched_operands_are_refused_before_a_kernel_reads_them() -> None:
    hop = hop_of(4, 11, random_edges(4, 11, 20))
    good = operands(hop, edges=True)
    wrong = {
        "query": torch.zeros(5, HEADS, WIDTH),
        "key": torch.zeros(3, HEADS, WIDTH),
        "value": torch.zeros(11, 1, WIDTH),
        "edge_weight": torch.zeros(HEADS, WIDTH, 300),
        "edge_attr": torch.zeros(4, EDGE_WIDTH),
    }
    for name, tensor in wrong.items():
        with pytest.raises(ValueError, match=rf"{name} has shape .* it needs"):
            attend(hop, {**good, name: tensor.double()})
    with pytest.raises(ValueError, match="width 0"):
        attend(hop, {**good, "edge_attr": torch.zeros(hop.num_edges, 0).double()})
    for dropout in (-0.1, 1.0):
        with pytest.raises(ValueError, match="dropout must be"):
            attend(hop, good, dropout=dropout)


class LargestOutput(TorchDispatchMode):
    """Record the size of the largest tensor that any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                dense = leaf.layout == torch.strided
                self.numel = max(self.numel, leaf.numel() if dense else leaf._nnz())
        return result


def largest_output(backend: Any, *, edges: bool, dropout: float) -> tuple[int, int]:
    hop = hop_of(50, 50, random_edges(50, 50, 2000))
    given = operands(hop, edges=edges)
    given.pop("edge_bias", None)
    if edges:
        given["edge_attr"].requires_grad_(False)
    with LargestOutput() as largest:
        out = attend(hop, given, backend=backend, dropout=dropout, seed=3)
        out.sum().backward()
    return largest.numel, hop.num_edges


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("edges", [False, True], ids=["plain", "edge features"])
def test_no_tensor_is_larger_than_edges_by_heads(edges: bool, dropout: float) -> None:
    largest, num_edges = largest_output("sparse", edges=edges, dropout=dropout)
    assert num_edges <= largest <= num_edges * HEADS
    # The recorder works: the reference builds the messages of a head, E × D.
    assert largest_output("reference", edges=edges, dropout=dropout)[0] >= num_edges * WIDTH


def test_auto_chooses_a_backend_and_an_unknown_name_is_refused_with_a_suggestion() -> None:
    assert choose_backend("auto") in BACKENDS
    with pytest.raises(BackendError, match=r"'sparce'.*did you mean 'sparse'"):
        choose_backend("sparce")


def test_an_edge_encoder_needs_edge_features() -> None:
    given = operands(HOPS["square"], edges=True)
    del given["edge_attr"]
    with pytest.raises(ValueError, match="the hop has no edge features"):
        attend(HOPS["square"], given)


def test_edge_features_without_an_encoder_are_ignored(random_graph: Maker) -> None:
    hop = random_graph(edge_features=2).hop
    given = operands(hop, edges=False, dtype=torch.float32)
    with_attr = graph_attention(hop=hop, **given)
    assert torch.equal(with_attr, graph_attention(hop=hop.with_edge_attr(None), **given))
