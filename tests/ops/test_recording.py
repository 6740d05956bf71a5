"""Which calls are recorded, which recording a call may use, and how long recordings are kept."""

import gc
import weakref

import pytest
import torch

from unimp.graph.hop import Hop
from unimp.ops import recording
from unimp.ops.recording import WARMUP, CallKey, Recordings, Slot


def hop() -> Hop:
    return Hop(torch.tensor([0, 1]), torch.tensor([0]), 1)


def key_of(edges: Hop, *, width: int = 4, address: int = 0, dropout: float = 0.0) -> CallKey:
    return CallKey(weakref.ref(edges), (width,), (address,), (dropout,))


def call(recordings: Recordings[str], key: CallKey, place: int = 0) -> Slot[str] | None:
    """One call of a layer: on a free slot, normal (None), or recorded now."""
    slot = recordings.free_slot(key, (place,))
    if slot is None:
        plan = recordings.plan(key, (place,))
        slot = None if plan is None else recordings.add(key, "recording", plan)
    return slot


def recorded(recordings: Recordings[str], key: CallKey) -> Slot[str]:
    """The slot of a call that is repeated until it is recorded."""
    for _ in range(WARMUP):
        assert call(recordings, key) is None
    slot = call(recordings, key)
    assert slot is not None
    return slot


def test_a_call_is_recorded_after_it_was_seen_several_times() -> None:
    edges, recordings = hop(), Recordings[str]()
    slot = recorded(recordings, key_of(edges))
    assert call(recordings, key_of(edges)) is slot
    assert len(recordings) == 1


@pytest.mark.parametrize("other", [{"width": 5}, {"address": 8}, {"dropout": 0.5}])
def test_a_call_with_other_inputs_weights_or_settings_has_its_own_recording(
    other: dict[str, int],
) -> None:
    edges, recordings = hop(), Recordings[str]()
    slot = recorded(recordings, key_of(edges))
    assert recorded(recordings, key_of(edges, **other)) is not slot
    assert call(recordings, key_of(edges)) is slot


def test_equal_edges_of_another_hop_are_other_edges() -> None:
    edges, others, recordings = hop(), hop(), Recordings[str]()
    recorded(recordings, key_of(edges))
    assert call(recordings, key_of(others)) is None


def test_calls_that_change_all_the_time_are_never_recorded() -> None:
    recordings = Recordings[str]()
    for width in range(1000):
        edges = hop()
        assert call(recordings, key_of(edges)) is None
        assert call(recordings, key_of(edges, width=width)) is None
    assert len(recordings._seen) <= recording.MOST_CANDIDATES


def test_a_slot_is_busy_until_its_backward_pass() -> None:
    edges, recordings = hop(), Recordings[str]()
    key = key_of(edges)
    slot = recorded(recordings, key)
    use = slot.take()
    assert call(recordings, key) is None
    use.is_finished = True
    assert call(recordings, key) is slot


def test_a_slot_is_free_again_if_the_result_of_its_forward_pass_is_freed() -> None:
    edges, recordings = hop(), Recordings[str]()
    key = key_of(edges)
    slot = recorded(recordings, key)
    use = slot.take()
    assert not slot.is_free
    del use
    assert call(recordings, key) is slot


def test_a_layer_that_is_used_twice_per_step_gets_a_second_slot() -> None:
    edges, recordings = hop(), Recordings[str]()
    key = key_of(edges)
    first = recorded(recordings, key)
    use = first.take()
    second = recorded(recordings, key)
    assert second is not first
    del use


def test_a_later_forward_pass_replaces_what_an_earlier_one_saved() -> None:
    edges, recordings = hop(), Recordings[str]()
    slot = recorded(recordings, key_of(edges))
    first = slot.take()
    assert slot.holds(first)
    second = slot.take()
    assert slot.holds(second)
    assert not slot.holds(first)


def test_recordings_in_use_are_not_replaced() -> None:
    edges, recordings = hop(), Recordings[str]()
    keys = [key_of(edges, width=width) for width in range(recording.MOST_SLOTS + 1)]
    for _ in range(50):
        for key in keys:
            call(recordings, key)
    assert len(recordings) == recording.MOST_SLOTS
    slots = list(recordings._slots)
    for _ in range(50):
        for key in keys:
            call(recordings, key)
    assert recordings._slots == slots


def test_an_idle_recording_makes_room() -> None:
    edges, recordings = hop(), Recordings[str]()
    for width in range(recording.MOST_SLOTS):
        recorded(recordings, key_of(edges, width=width))
    for _ in range(recording.IDLE):
        for width in range(1, recording.MOST_SLOTS):
            assert call(recordings, key_of(edges, width=width)) is not None
    recorded(recordings, key_of(edges, width=100))
    assert len(recordings) == recording.MOST_SLOTS
    assert call(recordings, key_of(edges, width=1)) is not None
    assert call(recordings, key_of(edges, width=0)) is None


def test_recordings_of_freed_edges_are_dropped() -> None:
    recordings = Recordings[str]()
    edges, kept = hop(), hop()
    recorded(recordings, key_of(edges))
    del edges
    gc.collect()
    assert call(recordings, key_of(kept)) is None
    assert len(recordings) == 0


def test_nothing_is_recorded_after_a_recording_failed() -> None:
    edges, recordings = hop(), Recordings[str]()
    recordings.give_up()
    for _ in range(3 * WARMUP):
        assert call(recordings, key_of(edges)) is None


def test_inputs_that_stay_are_read_in_place_until_they_move() -> None:
    edges, recordings = hop(), Recordings[str]()
    key = key_of(edges)
    slot = recorded(recordings, key)
    assert slot.places == (0,)
    assert call(recordings, key, place=0) is slot
    moved = call(recordings, key, place=1)
    assert moved is not None
    assert moved.places is None
    assert [call(recordings, key, place=place) for place in (0, 1, 2)] == [moved] * 3
    assert len(recordings) == 1


def test_inputs_that_move_are_copied() -> None:
    edges, recordings = hop(), Recordings[str]()
    key = key_of(edges)
    for turn in range(WARMUP):
        assert call(recordings, key, place=turn % 2) is None
    slot = call(recordings, key, place=1)
    assert slot is not None
    assert slot.places is None


def test_a_busy_slot_is_not_replaced_if_inputs_move() -> None:
    edges, recordings = hop(), Recordings[str]()
    key = key_of(edges)
    slot = recorded(recordings, key)
    use = slot.take()
    assert call(recordings, key, place=1) is None
    assert slot.holds(use)
    use.is_finished = True
    assert call(recordings, key, place=0) is slot
