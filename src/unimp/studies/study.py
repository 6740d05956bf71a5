"""What a study is: its cells, and what their results come to beside the paper's."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from scipy import stats

from unimp.studies.cells import Cell, Subject
from unimp.studies.paper import Number
from unimp.tasks.metrics import mean_and_std

BySeed = Mapping[int, float]
"""One number for each seed."""


@dataclass
class Outcome:
    """What the runs of one cell came to: metrics, or why there are none."""

    cell: Cell
    metrics: dict[int, Mapping[str, Any]] = field(default_factory=dict)  # by seed
    manifests: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)

    def scores(self, part: str, protocol: str = "train") -> BySeed:
        """Scores of val or test by seed; none where the protocol or set is not there."""
        found = {s: m["scores"].get(protocol, {}).get(part) for s, m in self.metrics.items()}
        return {seed: value for seed, value in sorted(found.items()) if value is not None}

    @property
    def remark(self) -> str:
        """Why results are missing; empty if none is."""
        if self.cell.unfit:
            return self.cell.unfit
        return "; ".join(f"seed {seed} failed: {text}" for seed, text in self.failures.items())


Outcomes = Mapping[str, Outcome]
"""By the name of the cell."""


@dataclass(frozen=True)
class Column:
    """A column of numbers: scores in percent, plain numbers, or counts."""

    key: str
    title: str
    kind: Literal["score", "number", "count"] = "score"


@dataclass(frozen=True)
class Row:
    """A line of a table: its words, our numbers by column and seed, and the paper's by column."""

    words: tuple[str, ...]
    ours: Mapping[str, BySeed] = field(default_factory=dict)
    paper: Mapping[str, Number] = field(default_factory=dict)
    remark: str = ""


@dataclass(frozen=True)
class Table:
    head: tuple[str, ...]  # titles of the words
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Point:
    """A place on a curve, with the values of each seed; `x_by_seed` where x is measured too.

    Points of one `mark` have the same marker in every series, where markers are not the series'.
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
    """Curves over x, or points if both are measured."""

    kind: Literal["lines", "points"]
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    ticks: tuple[tuple[float, str], ...] = ()  # of x, where numbers do not say it
    level: Series | None = None  # a constant to compare with, as a horizontal line
    marked_x: tuple[tuple[float, str], ...] = ()  # vertical lines
    counts: tuple[tuple[float, int], ...] = ()  # nodes behind each x, as bars below
    counts_label: str = ""


Verdict = Literal["yes", "no", "not clear", "not measured"]


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, what we found, and whether that agrees."""

    sentence: str
    place: str
    ours: str
    agrees: Verdict


@dataclass(frozen=True)
class Findings:
    """What a study found."""

    tables: tuple[Table, ...]
    figure: Figure | None = None
    claims: tuple[Claim, ...] = ()
    notes: tuple[str, ...] = ()
    protocol: str = (
        "test score at the best validation epoch; train labels are inputs when scoring, where the "
        "model takes labels; mean ± unbiased standard deviation over seeds"
    )
    uses_task: bool = True  # False: the study has a small task of its own
    judged: str = ""  # when a claim agrees; empty: as VERDICT says


@dataclass(frozen=True)
class Study:
    """A table or figure of the paper: which runs it needs, and what follows from them."""

    name: str
    title: str
    place: str  # in the paper
    cells: Callable[[Subject], Sequence[Cell]]
    conclude: Callable[[Subject, Outcomes], Findings]
    also: tuple[str, ...] = ()  # other names it answers to

    @property
    def heading(self) -> str:
        return self.title[0].upper() + self.title[1:]


def mean(values: BySeed) -> float:
    """The mean over seeds; NaN of none."""
    return mean_and_std(list(values.values()))[0] if values else math.nan


def deviation(values: BySeed) -> float:
    """The unbiased standard deviation over seeds; NaN of fewer than two."""
    return mean_and_std(list(values.values()))[1] if values else math.nan


def score_text(values: BySeed) -> str:
    """Mean ± unbiased deviation in percent; a dash of none, or of what is no number."""
    if not math.isfinite(mean(values)):
        return "–"
    spread = deviation(values)
    return f"{100 * mean(values):.2f}" + ("" if math.isnan(spread) else f" ± {100 * spread:.2f}")


def number_text(values: BySeed) -> str:
    """Mean ± unbiased deviation; a dash of none, or of what is no number."""
    if not math.isfinite(mean(values)):
        return "–"
    spread = deviation(values)
    return f"{mean(values):.4f}" + ("" if math.isnan(spread) else f" ± {spread:.4f}")


def points_text(difference: float) -> str:
    """A difference of scores in points, with its sign; a dash of what is no number."""
    return f"{100 * difference:+.2f}" if math.isfinite(difference) else "–"


@dataclass(frozen=True)
class Gap:
    """A difference over seeds, its standard error (NaN of one seed), and how many they are."""

    mean: float
    error: float
    seeds: int

    @property
    def sign(self) -> int:
        """1 or −1 where the difference is clear, else 0; of one seed none is."""
        if math.isnan(self.error) or abs(self.mean) <= standard_errors(self.seeds) * self.error:
            return 0
        return 1 if self.mean > 0 else -1


CLEAR = 0.95
"""How sure a difference must be to be a clear one."""

VERDICT = (
    f"Agrees: *yes* where every difference, paired by seed, is other than zero at {CLEAR:.0%} (a "
    "t-test: of two seeds only what is large beside their spread), *no* where one is as clearly "
    "the other way round, else *not clear*; one seed makes nothing clear."
)


def standard_errors(seeds: int) -> float:
    """How many standard errors from zero the mean over so many seeds must be to be clear."""
    return float(stats.t.ppf((1 + CLEAR) / 2, seeds - 1)) if seeds > 1 else math.inf


def gap(first: BySeed, second: BySeed) -> Gap | None:
    """The first less the second, seed by seed; None where they share none."""
    return from_zero({seed: first[seed] - second[seed] for seed in first if seed in second})


def from_zero(values: BySeed) -> Gap | None:
    """How far numbers are from zero over seeds; None where none is a number."""
    values = {seed: value for seed, value in values.items() if math.isfinite(value)}
    if not values:
        return None
    return Gap(mean(values), deviation(values) / math.sqrt(len(values)), len(values))


def verdict(gaps: Sequence[Gap]) -> Verdict:
    """Whether all differences are over zero: clearly, clearly not, or neither."""
    signs = [g.sign for g in gaps]
    if not signs:
        return "not measured"
    return "no" if -1 in signs else ("yes" if 0 not in signs else "not clear")


def comparison(sentence: str, place: str, better: Sequence[tuple[str, BySeed, BySeed]]) -> Claim:
    """A claim that in each of some pairs the first scores more: (words, first, second)."""
    found = [(words, gap(first, second)) for words, first, second in better]
    told = [f"{words} {points_text(g.mean)}" for words, g in found if g is not None]
    gaps = [g for _, g in found if g is not None]
    return Claim(sentence, place, ", ".join(told), verdict(gaps))
