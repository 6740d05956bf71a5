"""Hops: derived data is computed once and shared by hops with the same edges."""

from collections.abc import Callable

import pytest
import torch

from unimp.graph.graph import Graph
from unimp.graph.hop import Derived, Hop, Schedule, Transpose, cut_rows

Maker = Callable[..., Graph]


@pytest.fixture
def hop(random_graph: Maker) -> Hop:
    return random_graph(edge_features=2).hop


def test_derived_data_is_computed_on_first_use_and_reused(hop: Hop) -> None:
    assert (hop.derived.target, hop.derived.transpose, hop.derived.schedule) == (None, None, None)
    assert hop.transpose is hop.transpose
    assert hop.schedule is hop.schedule
    assert hop.source_schedule is hop.source_schedule
    assert hop.target is hop.target


def test_hops_with_other_edge_features_share_derived_data(hop: Hop) -> None:
    other = hop.with_edge_attr(None)
    assert other.edge_attr is None
    transpose = other.transpose  # computed by the one, used by the other
    assert hop.transpose is transpose
    assert hop.with_edge_attr(hop.edge_attr) is hop


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_derived_indices_have_the_type_of_the_hop(hop: Hop, dtype: torch.dtype) -> None:
    typed = Hop(hop.indptr.to(dtype), hop.source.to(dtype), hop.num_sources)
    assert typed.target.dtype == dtype
    assert {array.dtype for array in typed.transpose} == {dtype}
    assert typed.schedule.pieces.dtype == typed.source_schedule.pieces.dtype == dtype


def test_given_derived_data_is_used(hop: Hop) -> None:
    nothing = torch.empty(0)
    derived = Derived(
        target=nothing,
        transpose=Transpose(nothing, nothing, nothing),
        schedule=Schedule(nothing, nothing),
        source_schedule=Schedule(nothing, nothing),
    )
    given = Hop(hop.indptr, hop.source, hop.num_sources, None, derived)
    assert given.target is nothing
    assert given.transpose is derived.transpose
    assert given.schedule is derived.schedule
    assert given.source_schedule is derived.source_schedule


def test_moving_a_hop_moves_known_derived_data(hop: Hop) -> None:
    moved = hop.to("meta")
    assert moved.derived.transpose is None
    _ = hop.transpose, hop.schedule, hop.source_schedule
    moved = hop.to("meta")
    assert moved.transpose.slot.device.type == "meta"
    assert moved.schedule.pieces.device.type == "meta"
    assert moved.source_schedule.pieces.device.type == "meta"


def test_numbers_of_edges_stay_with_their_edges(hop: Hop) -> None:
    given = hop.with_numbers(torch.arange(hop.num_edges) * 10)
    assert given.numbers is not None
    assert given.with_edge_attr(None).numbers is given.numbers
    kept = torch.arange(hop.num_edges) % 3 == 1
    fewer, moved = given.only(kept).numbers, given.to("meta").numbers
    assert fewer is not None
    assert moved is not None
    assert torch.equal(fewer, given.numbers[kept])
    assert moved.device.type == "meta"


def test_pieces_cover_each_entry_once(hop: Hop) -> None:
    schedule = cut_rows(hop.indptr, piece=4)
    entries = [e for _, begin, end, _ in schedule.pieces.tolist() for e in range(begin, end)]
    assert sorted(entries) == list(range(hop.num_edges))
    assert max(end - begin for _, begin, end, _ in schedule.pieces.tolist()) == 4
    hubs = {row for row, *_ in schedule.hubs.tolist()}
    assert hubs == set(torch.nonzero(hop.indptr.diff() > 4).squeeze(1).tolist())


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_a_hop_with_only_some_edges_is_the_hop_of_these_edges(
    hop: Hop, share: float, dtype: torch.dtype
) -> None:
    hop = Hop(hop.indptr.to(dtype), hop.source.to(dtype), hop.num_sources, hop.edge_attr)
    kept = torch.rand(hop.num_edges, generator=torch.Generator().manual_seed(0)) < share
    fewer = hop.only(kept)
    assert fewer.num_targets == hop.num_targets
    assert torch.equal(fewer.source, hop.source[kept])
    assert torch.equal(fewer.target, hop.target[kept])
    assert fewer.edge_attr is not None
    assert hop.edge_attr is not None
    assert torch.equal(fewer.edge_attr, hop.edge_attr[kept])
    again = Hop(fewer.indptr, fewer.source, fewer.num_sources).transpose  # computed from scratch
    for found, expected in zip(fewer.transpose, again, strict=True):
        assert torch.equal(found, expected)
        assert found.dtype == dtype
