"""What charts show of runs, and what they leave out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from unimp.report import plots
from unimp.report.charts import Mark, Series
from unimp.report.evidence import Evidence, ScoredNodes
from unimp.report.groups import Group
from unimp.runs.evidence import gather


def with_nodes(run: Evidence, neighbors: list[int], right: list[bool]) -> Group:
    """The run with such nodes in its test set."""
    label = np.zeros(len(neighbors), np.int64)
    nodes = ScoredNodes(
        "test",
        ("a", "b"),
        label,
        np.full(len(neighbors), 0.7),
        np.where(right, 0, 1),
        known_neighbors=np.array(neighbors),
    )
    return Group("g", (replace(run, nodes=nodes),))


def test_a_bin_of_few_nodes_has_a_bar_and_no_share(folder: Path) -> None:
    run = gather(folder)
    group = with_nodes(run, [1] * 3 + [2] * 40, [True] * 3 + [True, False] * 20)
    drawn = plots.accuracy_by([(0, group)], "known_neighbors", "known in-neighbors")
    assert "g, 2 or more: 50.0% of 40 nodes" in drawn
    assert "<title>1: 3 nodes</title>" in drawn
    assert "g, 1: " not in drawn
    assert ">0</text>" not in drawn.partition("<rect")[2]  # bins start at the first node


def test_if_every_bin_has_few_nodes_the_largest_is_drawn(folder: Path) -> None:
    group = with_nodes(gather(folder), [0, 1, 1], [True, True, False])
    drawn = plots.accuracy_by([(0, group)], "known_neighbors", "known in-neighbors")
    assert "g, 1 or more: 50.0% of 2 nodes" in drawn


@pytest.mark.parametrize("values", [[0.0], [1.0], [0.0, 1.0], [0.99, 1.0], [0.004, 0.01]])
def test_an_axis_of_scores_stays_within_0_and_100_percent(values: list[float]) -> None:
    for axis in (plots._percent(values, ""), plots._percent(values, "", least=0.05)):
        assert 0 <= axis.low <= min(values)
        assert max(values) <= axis.high <= 1
        assert len(axis.ticks) >= 2


def test_a_deviation_stays_within_the_range_of_scores() -> None:
    high, low = plots._either_way([1.0, 0.96]), plots._either_way([0.0, 0.04])
    assert high == (pytest.approx(0.98 - 0.04 / 2**0.5), 1.0)
    assert low == (0.0, pytest.approx(0.02 + 0.04 / 2**0.5))
    assert plots._either_way([0.5]) is None


def test_many_series_have_only_lines_and_marks() -> None:
    band = [(0.0, 0.1, 0.9)]
    series = [
        Series(f"{k}", k, [(0.0, 0.5)], band, marks=[Mark(0, 0.5, "w", (0.1, 0.9))])
        for k in range(plots.CROWD + 1)
    ]
    assert plots._uncrowded(series[1:]) == series[1:]
    crowd = plots._uncrowded(series)
    assert not any(one.band or one.marks[0].ends for one in crowd)
    assert plots._heights(crowd) == [0.5] * 2 * len(series)  # bands do not widen the axis
