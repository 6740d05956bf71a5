"""How much of the time limit each member of an ensemble may take."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from unimp.ensemble.portfolio import Member

SHARE_AFTER = 0.1
"""The part of the time limit that is reserved for scoring and writing the ensemble."""
SLACK = 2.0
"""A member may take this many times its share of the remaining time; most stop earlier."""
ENOUGH = 0.2
"""A member is not started in less than this part of the time that it is expected to take."""
EPOCHS = 150
"""The number of epochs after which a member is expected to stop."""


class TimeShares:
    """The time of an ensemble, divided among its members in proportion to their costs.

    If time is too short for all members, it is divided among the next ones that can be expected to
    finish, because a few trained models are better than many that were cut short. The others are
    trained if time is left.
    """

    def __init__(self, limit: float, jobs: int, expected: float | None = None) -> None:
        """limit: seconds for all members, of which `jobs` are trained at the same time; 0: no
        limit. expected: seconds of a member of cost 1; None: not known.
        """
        self.limit, self.jobs = limit, jobs
        self._paces = [] if expected is None else [expected]  # seconds per unit of cost
        self._started = 0

    def add(self, member: Member, seconds: float) -> None:
        """Take note of how long the training of a member by gradient descent took."""
        self._paces.append(seconds / member.cost)

    def of_first(self, members: Sequence[Member], spent: float) -> float | None:
        """Seconds for the first of the remaining members after `spent` seconds; None: no limit."""
        if not self.limit:
            return None
        left = (1 - SHARE_AFTER) * self.limit - spent
        share = members[0].cost / sum(member.cost for member in self._that_finish(members, left))
        return min(left, SLACK * self.jobs * share * left)

    def is_enough(self, member: Member, seconds: float | None) -> bool:
        """Whether a member should be started if it may take so many seconds."""
        if seconds is None:
            return True
        if seconds <= 0 or not member.by_gradient:
            return seconds > 0
        self._started += 1
        if self._started <= self.jobs or not self._paces:  # time should not remain unused
            return True
        return seconds >= ENOUGH * member.cost * median(self._paces)

    def _that_finish(self, members: Sequence[Member], left: float) -> Sequence[Member]:
        """As many of the next members as can be expected to finish in this time; at least one."""
        if not self._paces:
            return members
        costs = self.jobs * left / max(median(self._paces), 1e-9)
        count = 0
        for member in members:
            costs -= member.cost
            count += costs >= 0 or count == 0
            if costs < 0:
                break
        return members[:count]
