"""Which runs are one row of the results."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import pytest

from unimp.report.evidence import find_runs, gather
from unimp.report.groups import compare, differing, in_ranges
from unimp.report.markup import mean_text


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([0], "0"),
        ([2, 0, 1], "0–2"),
        ([0, 1, 3, 5, 6, 7], "0–1, 3, 5–7"),
        ([4, 4, 5], "4–5 (3 runs)"),
    ],
)
def test_seeds_are_told_as_ranges(numbers: list[int], words: str) -> None:
    assert in_ranges(numbers) == words


def test_seeds_of_a_recipe_are_one_group_and_recipes_are_told_apart(several: Path) -> None:
    (one,) = compare([gather(place) for place in find_runs([several])])
    sizes = {group.name: len(group.runs) for group in one.groups}
    assert sizes == {
        "synthetic": 2,
        "synthetic, model.inputs=X,A": 2,
        "synthetic, model.name=label-propagation": 1,
    }
    assert differing([group.recipe for group in one.groups]) == ["model.name", "model.inputs"]


def test_the_deviation_over_seeds_is_the_unbiased_one(several: Path) -> None:
    (one,) = compare([gather(place) for place in find_runs([several])])
    (group,) = [group for group in one.groups if group.name == "synthetic"]
    values = group.scores("test")
    mean, std = 100 * statistics.mean(values), 100 * statistics.stdev(values)
    assert mean_text(values) == f"{mean:.2f} ± {std:.2f}"
    assert mean_text(values[:1]) == f"{100 * values[0]:.2f}"
    assert mean_text([]) == "–"


def test_tasks_are_compared_each_for_itself(several: Path, binary: Path) -> None:
    both = compare([gather(several / "seed-0"), gather(binary)])
    assert [(one.task, one.metric) for one in both] == [
        ("synthetic", "accuracy"),
        ("binary", "rocauc"),
    ]
    assert not math.isnan(both[0].groups[0].mean("test"))
