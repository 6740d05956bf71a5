"""The time limit is divided among all members, or among the first ones if the time is short."""

import pytest

from unimp.ensemble.portfolio import Member
from unimp.runs.time_shares import TimeShares


def members(*costs: float, by_gradient: bool = True) -> list[Member]:
    return [
        Member(f"member-{n}", "family", {}, (), cost, by_gradient=by_gradient)
        for n, cost in enumerate(costs)
    ]


def shares(limit: float, jobs: int, pace: float) -> TimeShares:
    times = TimeShares(limit, jobs)
    times.expect(pace)
    return times


def test_a_member_that_was_cut_short_does_not_make_others_look_faster() -> None:
    times, (member, cheap) = shares(100.0, 1, 50.0), members(1, 0.5)
    times.add(member, 10.0, cut_short=True)
    assert times.pace == 50.0
    times.add(cheap, 1.0, cut_short=False)  # it uses no edges
    assert times.pace == 50.0
    times.add(member, 10.0, cut_short=False)
    times.add(member, 10.0, cut_short=False)
    assert times.pace == 30.0


def test_without_a_limit_every_member_has_as_much_time_as_it_needs() -> None:
    times = shares(0.0, 2, 10.0)
    assert times.of_first(members(1, 1), 5.0) is None
    assert times.is_enough(members(1)[0], None)


def test_members_share_the_remaining_time_by_their_costs() -> None:
    one, two = (TimeShares(100.0, jobs).of_first(members(1, 2, 7), 10.0) for jobs in (1, 2))
    assert one == pytest.approx(2 * 80 / 10)  # the factor 2 is SLACK
    assert two == pytest.approx(2 * 2 * 80 / 10)
    assert TimeShares(100.0, 50).of_first(members(1, 2, 7), 10.0) == pytest.approx(80)


def test_a_member_that_is_solved_may_take_half_of_the_remaining_time() -> None:
    times = shares(100.0, 1, 30.0)
    later = [*members(0.1, by_gradient=False), *members(1, 1)]
    assert times.of_first(later, 10.0) == pytest.approx(40)


def test_short_time_is_divided_among_the_first_members_that_can_finish() -> None:
    slow = shares(100.0, 1, 30.0)
    assert slow.of_first(members(1, 1, 1, 1, 1, 1), 0.0) == pytest.approx(2 * 90 / 3)
    assert slow.of_first(members(4, 1), 0.0) == pytest.approx(90)  # no member is expected to finish
    fast = shares(100.0, 1, 1.0)
    assert fast.of_first(members(1, 1, 1, 1, 1, 1), 0.0) == pytest.approx(2 * 90 / 6)


def test_measured_times_replace_the_expected_one() -> None:
    times, later = shares(100.0, 1, 1.0), members(2, 2, 2, 2)
    before = times.of_first(later, 0.0)
    for _ in range(3):
        times.add(later[0], 80.0, cut_short=False)
    assert before == pytest.approx(2 * 90 / 4)
    assert times.of_first(later, 0.0) == pytest.approx(90)


def test_a_member_is_not_started_if_too_little_time_is_left() -> None:
    times, (member,) = shares(100.0, 2, 50.0), members(2)
    assert not times.is_enough(member, 5.0)
    assert times.is_enough(member, 40.0)
    assert not times.is_enough(member, 0.0)
    (solved,) = members(1, by_gradient=False)
    assert times.is_enough(solved, 1.0)
    assert not times.is_enough(solved, 0.0)
