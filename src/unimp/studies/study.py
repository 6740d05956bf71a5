"""The parts of a study: its cells, the numbers they give, and the comparison with the paper."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator
from scipy.special import stdtrit

from unimp.studies.cells import Cell, Subject
from unimp.studies.paper import Number
from unimp.tasks.means import mean_and_std

# JSON has no NaN: a number that is not defined is stored as null.
BySeed = Mapping[int, Annotated[float, BeforeValidator(lambda v: math.nan if v is None else v)]]
"""One number per seed."""


@dataclass
class Outcome:
    """The results of the runs of one cell, by seed, or why there are none."""

    cell: Cell
    metrics: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    manifests: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)

    def scores(self, part: str, protocol: str = "train") -> BySeed:
        """Validation or test scores by seed; empty if the protocol or the set does not exist."""
        found = {s: m["scores"].get(protocol, {}).get(part) for s, m in self.metrics.items()}
        return {seed: value for seed, value in sorted(found.items()) if value is not None}

    @property
    def remark(self) -> str:
        """Why results are missing; empty if all are there."""
        if self.cell.unfit:
            return self.cell.unfit
        return "; ".join(f"seed {seed} failed: {text}" for seed, text in self.failures.items())


Outcomes = Mapping[str, Outcome]
"""The outcomes of the cells of a study, in their order, by the name of the cell."""


@dataclass(frozen=True)
class Column:
    """A column of numbers: scores in percent, plain numbers, or counts."""

    key: str
    title: str
    kind: Literal["score", "number", "count"] = "score"


@dataclass(frozen=True)
class Row:
    """A row of a table: its words, our numbers by column and seed, and the paper's by column."""

    words: tuple[str, ...]
    ours: Mapping[str, BySeed] = field(default_factory=dict)
    paper: Mapping[str, Number] = field(default_factory=dict)
    remark: str = ""


@dataclass(frozen=True)
class Table:
    head: tuple[str, ...]  # titles of the columns of words
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Point:
    """A point of a curve, with one y per seed, and one x per seed where x is measured as well.

    Points with the same `mark` have the same marker in every series.
    """

    x: float
    y: BySeed
    x_by_seed: BySeed | None = None
    mark: str = ""


@dataclass(frozen=True)
class Series:
    label: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Figure:
    """Curves over x, or a scatter plot if x and y are both measured."""

    kind: Literal["lines", "points"]
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    ticks: tuple[tuple[float, str], ...] = ()  # texts on the x axis, instead of numbers
    level: Series | None = None  # a horizontal line to compare with
    marked_x: tuple[tuple[float, str], ...] = ()  # vertical lines
    counts: tuple[tuple[float, int], ...] = ()  # number of nodes for each x, as bars below
    counts_label: str = ""


Verdict = Literal["yes", "no", "not clear", "not measured"]


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, our measurement, and whether the two agree."""

    sentence: str
    place: str
    ours: str
    agrees: Verdict


@dataclass(frozen=True)
class Findings:
    """The result of a study."""

    tables: tuple[Table, ...]
    figure: Figure | None = None
    claims: tuple[Claim, ...] = ()
    notes: tuple[str, ...] = ()
    protocol: str = (
        "test score at the epoch with the best validation score; models that take labels receive "
        "the train labels as inputs when they are scored; mean ± unbiased standard deviation over "
        "seeds"
    )
    uses_task: bool = True  # False: the study generates its own small task
    judged: str = ""  # when a claim agrees; empty: as VERDICT states


@dataclass(frozen=True)
class Study:
    """A table or figure of the paper: the runs that it needs, and the findings from them."""

    name: str
    title: str
    place: str  # in the paper
    cells: Callable[[Subject], Sequence[Cell]]
    conclude: Callable[[Subject, Outcomes], Findings]
    also: tuple[str, ...] = ()  # other names for it

    @property
    def heading(self) -> str:
        return self.title[0].upper() + self.title[1:]


def study(
    name: str, title: str, place: str, *also: str, cells: Callable[[Subject], Sequence[Cell]]
) -> Callable[[Callable[[Subject, Outcomes], Findings]], Study]:
    """Decorate the function that concludes the findings of a study; it becomes the `Study`."""
    return lambda conclude: Study(name, title, place, cells, conclude, also)


def mean(values: BySeed) -> float:
    """The mean over seeds; NaN if there are none."""
    return mean_and_std(list(values.values()))[0] if values else math.nan


def deviation(values: BySeed) -> float:
    """The unbiased standard deviation over seeds; NaN for fewer than two."""
    return mean_and_std(list(values.values()))[1] if values else math.nan


def points_text(difference: float) -> str:
    """A difference of scores in points, with its sign; a dash if it is not finite."""
    return f"{100 * difference:+.2f}" if math.isfinite(difference) else "–"


CONFIDENCE = 0.95
"""Confidence level at which a difference counts as clear."""

VERDICT = (
    "A claim agrees (*yes*) if every difference, paired by seed, is greater than zero in a "
    f"two-sided t-test at {CONFIDENCE:.0%}. *No* means that at least one difference is clearly "
    "smaller than zero. Everything else is *not clear*, and so is every difference of a single "
    "seed."
)


@dataclass(frozen=True)
class Gap:
    """A mean difference over seeds, its standard error (NaN for one seed), and how many seeds."""

    mean: float
    error: float
    seeds: int

    @property
    def sign(self) -> int:
        """1 or −1 if a two-sided t-test finds the difference clear, else 0."""
        if self.seeds < 2:
            return 0
        needed = float(stdtrit(self.seeds - 1, (1 + CONFIDENCE) / 2)) * self.error
        return 0 if abs(self.mean) <= needed else round(math.copysign(1, self.mean))


def gap(first: BySeed, second: BySeed) -> Gap | None:
    """The first minus the second, paired by seed; None if they have no seed in common."""
    return gap_from_zero({seed: first[seed] - second[seed] for seed in first if seed in second})


def gap_from_zero(values: BySeed) -> Gap | None:
    """The distance of numbers from zero over seeds; None if none of them is finite."""
    values = {seed: value for seed, value in values.items() if math.isfinite(value)}
    if not values:
        return None
    return Gap(mean(values), deviation(values) / math.sqrt(len(values)), len(values))


def verdict(gaps: Sequence[Gap | None]) -> Verdict:
    """Whether all measured differences are greater than zero: clearly, clearly not, or unclear."""
    signs = [g.sign for g in gaps if g is not None]
    if not signs:
        return "not measured"
    return "no" if -1 in signs else ("yes" if 0 not in signs else "not clear")


def comparisons(
    place: str, pairs: Mapping[str, Sequence[tuple[str, BySeed, BySeed]]]
) -> tuple[Claim, ...]:
    """Claims that the first scores higher than the second in each pair (words, first, second).

    pairs: the pairs that each sentence of the paper compares.
    """
    claims = []
    for sentence, those in pairs.items():
        gaps = [(words, gap(first, second)) for words, first, second in those]
        ours = ", ".join(f"{words} {points_text(g.mean)}" for words, g in gaps if g is not None)
        claims.append(Claim(sentence, place, ours, verdict([g for _, g in gaps])))
    return tuple(claims)
