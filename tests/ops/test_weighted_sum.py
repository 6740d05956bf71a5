"""Weighted sums over in-edges, dot products per edge, and the softmax over in-edges."""

import pytest
import torch
from small_hops import hop_of, random_edges
from torch import Tensor

from unimp.graph.hop import Hop
from unimp.ops.weighted_sum import edge_dot, edge_softmax, weighted_sum

HOPS = {
    "square": hop_of(6, 6, random_edges(6, 6, 20)),
    "bipartite": hop_of(3, 9, random_edges(3, 9, 14)),
    "targets without in-edges": hop_of(5, 6, random_edges(2, 6, 9)),
    "duplicate edges": hop_of(3, 4, [(0, 1)] * 4 + [(0, 2), (2, 3), (2, 3)]),
    "no edges": hop_of(2, 3, []),
}
HEADS, WIDTH = 2, 3


@pytest.fixture(params=HOPS.values(), ids=HOPS)
def hop(request: pytest.FixtureRequest) -> Hop:
    found: Hop = request.param
    return found


def some(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()


def test_sums_equal_a_loop_over_edges(hop: Hop) -> None:
    weight, value = some(hop.num_edges, HEADS), some(hop.num_sources, HEADS, WIDTH)
    expected = torch.zeros(hop.num_targets, HEADS, WIDTH, dtype=torch.float64)
    for edge, (target, source) in enumerate(
        zip(hop.target.tolist(), hop.source.tolist(), strict=True)
    ):
        expected[target] += weight[edge, :, None].detach() * value[source].detach()
    torch.testing.assert_close(weighted_sum(weight, value, hop).detach(), expected)


def test_weights_of_a_target_sum_to_one(hop: Hop) -> None:
    weight = edge_softmax(some(hop.num_edges, HEADS), hop)
    total = torch.zeros(hop.num_targets, HEADS, dtype=torch.float64)
    total.index_add_(0, hop.target, weight.detach())
    reached = torch.bincount(hop.target.long(), minlength=hop.num_targets) > 0
    torch.testing.assert_close(total, reached[:, None].double().expand_as(total))


def test_gradients_equal_finite_differences(hop: Hop) -> None:
    if hop.num_edges == 0:
        pytest.skip("nothing to differentiate")
    weight, value = some(hop.num_edges, HEADS), some(hop.num_sources, HEADS, WIDTH)
    targets, sources = some(hop.num_targets, WIDTH), some(hop.num_sources, WIDTH)
    assert torch.autograd.gradcheck(lambda w, v: weighted_sum(w, v, hop), (weight, value))
    assert torch.autograd.gradcheck(lambda s: edge_softmax(s, hop), (weight,))
    assert torch.autograd.gradcheck(lambda t, s: edge_dot(t, s, hop), (targets, sources))


def test_int64_hops_give_the_gradients_of_int32_hops(hop: Hop) -> None:
    long = Hop(hop.indptr.long(), hop.source.long(), hop.num_sources)
    weight, value = some(hop.num_edges, HEADS), some(hop.num_sources, HEADS, WIDTH)
    targets, sources = some(hop.num_targets, WIDTH), some(hop.num_sources, WIDTH)

    def found(hop: Hop) -> list[Tensor]:
        outputs = (
            weighted_sum(edge_softmax(weight, hop), value, hop),
            edge_dot(targets, sources, hop),
        )
        loss = sum(out.square().sum() for out in outputs)
        assert isinstance(loss, Tensor)
        return [*outputs, *torch.autograd.grad(loss, (weight, value, targets, sources))]

    for one, other in zip(found(long), found(hop), strict=True):
        assert torch.equal(one, other)
