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
"""A member is started only if it gets at least this part of its expected time."""
EPOCHS = 150
"""The number of epochs that a member is expected to train."""


class TimeShares:
    """The time of an ensemble, divided among its members in proportion to their costs.

    If the time is too short for all members, it is divided only among the first of the remaining
    members, as many as are expected to finish. A few fully trained models are better than many
    that were cut short. The other members are trained only if time is left.
    """

    def __init__(self, limit: float, jobs: int, expected: float | None = None) -> None:
        """limit: seconds for all members together; 0: no limit. jobs: the number of members that
        are trained at the same time. expected: seconds of a member of cost 1; None: not known.
        """
        self.limit, self.jobs = limit, jobs
        self._paces = [] if expected is None else [expected]  # seconds per unit of cost
        self._started = 0

    def add(self, member: Member, seconds: float) -> None:
        """Record the seconds of a member that was trained by gradient descent."""
        self._paces.append(seconds / member.cost)

    def of_first(self, members: Sequence[Member], spent: float) -> float | None:
        """Seconds that the first of the remaining members may take; None: no limit.

        spent: seconds that have passed.
        """
        if not self.limit:
            return None
        left = (1 - SHARE_AFTER) * self.limit - spent
        share = members[0].cost / sum(member.cost for member in self._that_finish(members, left))
        return min(left, SLACK * self.jobs * share * left)

    def is_enough(self, member: Member, seconds: float | None) -> bool:
        """Whether to start a member that may take this many seconds.

        The first `jobs` members that train by gradient descent are always started if any time is
        left, so that no process is idle. Call it once per member, because it counts these.
        """
        if seconds is None:
            return True
        if seconds <= 0 or not member.by_gradient:
            return seconds > 0
        self._started += 1
        if self._started <= self.jobs or not self._paces:
            return True
        return seconds >= ENOUGH * member.cost * median(self._paces)

    def _that_finish(self, members: Sequence[Member], left: float) -> Sequence[Member]:
        """The first of these members, as many as are expected to finish in this time; at least one."""
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
