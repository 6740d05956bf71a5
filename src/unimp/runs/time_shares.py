"""How much of the time limit each member of an ensemble may take."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from unimp.config.recipe import Recipe
from unimp.ensemble.portfolio import Member
from unimp.errors import UnimpError
from unimp.runs.estimate import estimate
from unimp.runs.preparation import model_of
from unimp.tasks.task import Task

SHARE_AFTER = 0.1
"""The part of the time limit that is reserved for scoring and writing the ensemble."""
SHARE_OF_SOLVED = 0.5
"""The largest part of the remaining time for a member that the training loop does not train. Most
of these members take seconds. Their time cannot be predicted from their cost: for example, the
first one on a GPU also has to start CUDA."""
SLACK = 2.0
"""A member may take this many times its share of the remaining time; most stop earlier."""
ENOUGH = 0.2
"""A member is started only if it gets at least this part of its expected time."""
BEST_EPOCH = 110
"""The best epoch of a member, as expected; it stops when its patience has ended."""
TYPICAL = 1.0
"""The least cost of a member whose time shows how long others take; cheaper ones use no edges."""


class TimeShares:
    """The time of an ensemble, divided among its members in proportion to their costs.

    If the time is too short for all members, it is divided only among the first of the remaining
    members, as many as are expected to finish. A few fully trained models are better than many
    that were cut short. The other members are trained only if time is left.
    """

    def __init__(self, limit: float, jobs: int) -> None:
        """limit: seconds for all members together; 0: no limit. jobs: the number of members that
        are trained at the same time.
        """
        self.limit, self.jobs = limit, jobs
        self._paces: list[float] = []  # seconds per unit of cost

    @property
    def pace(self) -> float:
        """The seconds that a member of cost 1 is expected to take; 0: not known."""
        return median(self._paces) if self._paces else 0.0

    def expect(self, pace: float | None) -> None:
        """Record the seconds that a member of cost 1 should take, if they are known."""
        self._paces += [] if pace is None else [pace]

    def add(self, member: Member, seconds: float, *, cut_short: bool) -> None:
        """Record the seconds of a member that the training loop trained."""
        if member.cost >= TYPICAL:
            pace = seconds / member.cost
            self._paces.append(max(pace, self.pace) if cut_short else pace)

    def of_first(self, members: Sequence[Member], spent: float) -> float | None:
        """Seconds that the first of the remaining members may take; None: no limit.

        spent: seconds that have passed.
        """
        if not self.limit:
            return None
        left = (1 - SHARE_AFTER) * self.limit - spent
        if not members[0].by_gradient:
            return SHARE_OF_SOLVED * left
        share = members[0].cost / sum(member.cost for member in self._that_finish(members, left))
        return min(left, SLACK * self.jobs * share * left)

    def is_enough(self, member: Member, seconds: float | None) -> bool:
        """Whether to start a member that may take this many seconds."""
        if seconds is None or seconds <= 0:
            return seconds is None
        return not member.by_gradient or seconds >= ENOUGH * member.cost * self.pace

    def _that_finish(self, members: Sequence[Member], left: float) -> Sequence[Member]:
        """The first members that are expected to finish in this time; at least one."""
        if not self.pace:
            return members
        cost, count = 0.0, 0
        for member in members:
            cost += member.cost
            if count and cost * self.pace > self.jobs * left:
                break
            count += 1
        return members[:count]


def expected_pace(member: Member, recipe: Recipe, task: Task) -> float | None:
    """Estimate the seconds of a member of cost 1 on CPU, from a few steps of this one.

    recipe and task: those of the member. None: they cannot be estimated.
    """
    options = recipe.train
    epochs = options.epochs
    if options.patience:
        epochs = min(epochs, BEST_EPOCH + options.patience)
    whole = {"train.epochs": epochs, "train.patience": 0, "train.time_limit": 0.0}
    recipe = recipe.with_settings(whole)
    try:
        found = estimate(recipe, model_of(recipe, task), task, "cpu")
    except UnimpError:  # the training of this member will report the error
        return None
    return None if found.seconds is None else found.seconds / member.cost
