"""What is compared in the benchmark of ensembles: scores of one set as pairs of the same split."""

from __future__ import annotations

import json
import math
from statistics import mean, stdev
from typing import Any, NamedTuple

from scipy.stats import t as student_t

from results import FOLDER
from strength_sets import ENSEMBLE, OF_LABELS
from unimp.ensemble.portfolio import COPY, OWN

Row = dict[str, Any]
Rows = dict[str, list[Row]]

SHORT = 10
"""A training that the time limit ended before this epoch is not shown as a member. Compiling
kernels for the first time may take longer than the share of time of one member."""

SIMPLE = ("label-propagation", "ridge", "mlp", "gcn", "gat", "appnp")
"""The members that count as simple baselines."""


QUICK = ("label-propagation", "sign", "ridge", "ridge-hops", "gcn")
GOOD = (
    *QUICK,
    *("sign-features", "mlp", "trees", "grand-2", "grand-8", "unimp", "appnp", "unimp-features"),
    *("gcn-deep-labels", "gcn-deep", OWN),
)
BEFORE = {"quick": QUICK, "good": (*GOOD, *(f"{name}{COPY}2" for name in GOOD))}
"""The members of `quick` and `good` in rows that do not name them."""


def seconds_of(row: Row, preset: str) -> float:
    """The seconds of training of all members of a preset."""
    names = row.get("parts", BEFORE)[preset]
    return float(sum(m["seconds"] for m in row["members"] if m["name"] in names))


class Gain(NamedTuple):
    """What something gains on one set: points on average over pairs of the same split and seed."""

    points: float
    error: float  # the standard error; not a number for a single pair
    better: int  # the number of pairs with a gain
    pairs: int

    @classmethod
    def of(cls, differences: list[float]) -> Gain:
        points = [100 * difference for difference in differences]
        error = stdev(points) / math.sqrt(len(points)) if len(points) > 1 else math.nan
        return cls(mean(points), error, sum(p > 0 for p in points), len(points))

    @property
    def is_clear(self) -> bool:
        """Whether a t-test at 95 % finds a difference from zero."""
        if self.pairs < 2:
            return False
        return abs(self.points) > float(student_t.ppf(0.975, self.pairs - 1)) * self.error

    def __str__(self) -> str:
        error = f" ± {self.error:.2f}" if math.isfinite(self.error) else ""
        return f"{self.points:+.2f}{error} ({self.better}/{self.pairs})"

    def marked(self) -> str:
        """The text of the gain, in bold if it is clear."""
        return f"**{self}**" if self.is_clear else str(self)


def tests_of(row: Row) -> dict[str, float]:
    """The test scores of the members that were trained for more than a few epochs."""
    return {
        m["name"]: m["test"]
        for m in row["members"]
        if not m["cut_short"] or m["epochs"] is None or m["epochs"] >= SHORT
    }


def scores_of(of_set: list[Row], member: str) -> list[float]:
    """The test scores of a member; none if less than half of the splits have one."""
    found = [tests[member] for row in of_set if member in (tests := tests_of(row))]
    return found if 2 * len(found) >= len(of_set) else []


def chosen_member(row: Row) -> dict[str, Any]:
    """The member of an ensemble with the best validation score."""
    scored = [m for m in row["members"] if m["val"] is not None]
    found: dict[str, Any] = max(scored, key=lambda m: m["val"])
    return found


def has_features(of_set: list[Row]) -> bool:
    """Whether the graph has node features: only then is an MLP trained."""
    return any("mlp" in (m["name"] for m in row["members"]) for row in of_set)


def lever_gains(rows: Rows, lever: str) -> dict[str, Gain]:
    """What a lever gains on each set on which it has members."""
    found = {}
    for name, of_set in rows.items():
        pairs = [
            r["best"]["test"]
            - (chosen_member(r)["test"] if lever == ENSEMBLE else r["without"][lever]["test"])
            for r in of_set
            if lever == ENSEMBLE or r["without"].get(lever)
        ]
        if pairs:
            found[name] = Gain.of(pairs)
    return found


def gain_of_labels(of_set: list[Row]) -> Gain | None:
    """What labels as inputs gain for UniMP alone."""
    pairs = [
        tests["unimp"] - tests["unimp-features"]
        for tests in map(tests_of, of_set)
        if {"unimp", "unimp-features"} <= tests.keys()
    ]
    return Gain.of(pairs) if pairs else None


def gain_of_shown(of_set: list[Row]) -> Gain | None:
    """What validation labels as further inputs gain for `best`, without training."""
    pairs = [r["shown"] - r["best"]["test"] for r in of_set if r["shown"] is not None]
    return Gain.of(pairs) if pairs else None


def labels_of_ensemble(rows: Rows) -> dict[str, Gain]:
    """What labels as inputs gain for `best` on graphs with features."""
    found = lever_gains(rows, OF_LABELS)
    return {name: gain for name, gain in found.items() if has_features(rows[name])}


def best_simple(of_set: list[Row]) -> str:
    """The simple baseline with the best mean test score."""
    return max(SIMPLE, key=lambda name: mean(scores_of(of_set, name) or [0.0]))


def over_simple(of_set: list[Row], preset: str) -> Gain:
    """What a preset gains over the best simple baseline."""
    name = best_simple(of_set)
    pairs = [
        r[preset]["test"] - tests[name]
        for r in of_set
        if r[preset] and name in (tests := tests_of(r))
    ]
    return Gain.of(pairs)


def between_presets(rows: Rows, better: str, worse: str) -> dict[str, Gain]:
    return {
        name: Gain.of([r[better]["test"] - r[worse]["test"] for r in of_set if r[worse]])
        for name, of_set in rows.items()
    }


WORTH = 0.005
"""A student keeps a share of a gain if the gain is at least this much."""


def kept_by_students(rows: Rows) -> dict[str, float]:
    """The share of the gain of `best` over `unimp` that a student keeps."""
    found = {}
    for name, of_set in rows.items():
        for row in of_set:
            start = tests_of(row).get("unimp")
            if "student" in row and start is not None and row["best"]["test"] - start >= WORTH:
                found[name] = (row["student"] - start) / (row["best"]["test"] - start)
    return found


# The UniMP before this benchmark: set → file in results, and inputs.
EARLIER = {
    "blogcatalog": ("small", "A,Y"),
    "debian": ("debian", "X,A,Y + edge features"),
    "debian-tags": ("debian-tags", "X,A,Y + edge features"),
    "arxiv-labels": ("arxiv-labels", "A,Y"),
    "arxiv-guesses": ("arxiv-guesses", "X,A,Y"),
}


def earlier_scores(name: str) -> dict[int, float]:
    """The test scores of the earlier UniMP, by seed; empty if none are stored."""
    file, inputs = EARLIER.get(name, ("small", "X,A,Y"))
    stored = json.loads((FOLDER / f"{file}.json").read_text("utf-8"))
    if file == "small":
        return {r["seed"]: r["test"] for r in stored if (r["set"], r["inputs"]) == (name, inputs)}
    runs = next(r["runs"] for r in stored["rows"] if (r["model"], r["inputs"]) == ("UniMP", inputs))
    return {r["seed"]: r["scores"]["train"]["test"] for r in runs}


def over_earlier(rows: Rows) -> dict[str, Gain]:
    """What `best` gains over the earlier UniMP, on the same splits and seeds."""
    found = {}
    for name, of_set in rows.items():
        scores = earlier_scores(name)
        pairs = [r["best"]["test"] - scores[r["seed"]] for r in of_set if r["seed"] in scores]
        if pairs:
            found[name] = Gain.of(pairs)
    return found
