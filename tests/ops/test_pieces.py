"""Attention in pieces equals attention over all in-edges at once."""

import numpy as np
import pytest
import torch
from torch import Tensor

from unimp.graph.hop import Hop
from unimp.ops import native
from unimp.ops.attention import graph_attention
from unimp.ops.pieces import AttentionInPieces

pytestmark = pytest.mark.skipif(not native.available(), reason="the native core is not built")


def random_hop(rng: np.random.Generator, targets: int, sources: int, edge_width: int) -> Hop:
    degree = rng.integers(0, 40, targets) * (rng.random(targets) < 0.7)
    indptr = np.concatenate(([0], np.cumsum(degree))).astype(np.int32)
    source = rng.integers(0, sources, indptr[-1]).astype(np.int32)
    attr = torch.from_numpy(rng.standard_normal((len(source), edge_width))).float()
    return Hop(
        torch.from_numpy(indptr),
        torch.from_numpy(source),
        sources,
        attr if edge_width else None,
    )


def piece_of(hop: Hop, chosen: Tensor) -> Hop:
    before = torch.nn.functional.pad(chosen.cumsum(0, dtype=torch.int32), (1, 0))
    attr = None if hop.edge_attr is None else hop.edge_attr[chosen]
    return Hop(before[hop.indptr.long()], hop.source[chosen], hop.num_sources, attr)


@pytest.mark.parametrize("pieces", [1, 2, 7])
@pytest.mark.parametrize("edge_width", [0, 1, 5])
@pytest.mark.parametrize("scale", [1.0, 60.0])  # large scores need the running maximum
def test_pieces_in_any_number_give_the_same_messages(
    pieces: int, edge_width: int, scale: float
) -> None:
    rng = np.random.default_rng(pieces + 10 * edge_width)
    hop = random_hop(rng, 30, 50, edge_width)
    heads, width, features = 3, 5, 11
    h = torch.from_numpy(rng.standard_normal((50, features))).float()
    query, key, value, bias, edge_bias = (
        torch.from_numpy(rng.standard_normal(shape)).float()
        for shape in (
            (30, heads, width),
            (heads, width, features),
            (heads, width, features),
            (heads, width),
            (heads, width),
        )
    )
    query *= scale
    edge = torch.from_numpy(rng.standard_normal((heads, width, edge_width))).float()
    edge_weight = edge if edge_width else None
    attention = AttentionInPieces(query, key, edge_weight)
    part = torch.from_numpy(rng.integers(0, pieces, hop.num_edges))
    for number in range(pieces):
        attention.add(h, piece_of(hop, part == number))
    whole_bias = bias + edge_bias if edge_width else bias
    found = attention.finish(value, whole_bias, edge_weight)
    expected = graph_attention(
        query.double(),
        torch.einsum("hdf,sf->shd", key, h).double(),
        (torch.einsum("hdf,sf->shd", value, h) + bias).double(),
        hop,
        edge_weight=None if edge_weight is None else edge_weight.double(),
        edge_bias=edge_bias.double() if edge_width else None,
        backend="reference",
    )
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4 * scale)


def test_a_target_without_in_edges_receives_nothing() -> None:
    attention = AttentionInPieces(torch.ones(2, 1, 3), torch.ones(1, 3, 4), None)
    nothing = Hop(torch.zeros(3, dtype=torch.int32), torch.zeros(0, dtype=torch.int32), 5)
    attention.add(torch.ones(5, 4), nothing)
    found = attention.finish(torch.ones(1, 3, 4), torch.ones(1, 3), None)
    assert torch.equal(found, torch.zeros(2, 1, 3))
