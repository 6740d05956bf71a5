"""Axes show round numbers, and contain everything that is drawn."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unimp.report.axes import number_axis, place_axis, ticked_axis

values = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20)


@given(values)
def test_an_axis_contains_every_value(drawn: list[float]) -> None:
    axis = number_axis(drawn)
    assert axis.low <= min(drawn) + 1e-6 * abs(axis.high - axis.low)
    assert axis.high >= max(drawn) - 1e-6 * abs(axis.high - axis.low)
    assert 2 <= len(axis.ticks) <= 12
    assert axis.place(axis.low, 10, 20) == 10
    assert axis.place(axis.high, 10, 20) == pytest.approx(20)


@pytest.mark.parametrize(
    ("low", "high", "written"),
    [
        (0.0, 1.0, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (0.52, 0.57, ["0.52", "0.53", "0.54", "0.55", "0.56", "0.57"]),
        (-2.0, 2.0, ["−2", "−1", "0", "1", "2"]),
        (0.0, 50_000.0, ["0", "10k", "20k", "30k", "40k", "50k"]),
    ],
)
def test_ticks_are_round_numbers_written_short(low: float, high: float, written: list[str]) -> None:
    assert [words for _, words in number_axis([low, high]).ticks] == written


def test_shares_are_written_as_percent() -> None:
    axis = number_axis([0.5, 0.9], percent=True)
    assert [words for _, words in axis.ticks] == ["50", "60", "70", "80", "90"]


def test_an_end_that_is_given_stays_where_it_is() -> None:
    assert number_axis([1.0, 1.0], high=1.0).high == 1.0
    assert number_axis([3.0], low=0.0, high=7.0).low == 0.0
    assert number_axis([3.0], low=0.0, high=7.0).high == 7.0


def test_epochs_have_no_ticks_between_them() -> None:
    ticks = number_axis([], low=0, high=3, whole=True).ticks
    assert [words for _, words in ticks] == ["0", "1", "2", "3"]


def test_places_are_in_the_middle_of_their_room() -> None:
    axis = place_axis(["a", "b"])
    assert [axis.place(value, 0, 100) for value, _ in axis.ticks] == [25, 75]


def test_an_axis_with_given_ticks_has_a_small_margin() -> None:
    even = ticked_axis([(1, "1"), (10, "10"), (100, "100")])
    assert even.place(55, 0, 1) - even.place(10, 0, 1) == pytest.approx(45 / 99 / 1.08)
