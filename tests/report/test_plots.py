"""What plots show of runs, and what they leave out."""

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
    assert ">0</text>" not in drawn.partition("<rect")[2]  # bins begin where nodes are


def test_where_every_bin_has_few_nodes_the_largest_is_drawn(folder: Path) -> None:
    group = with_nodes(gather(folder), [0, 1, 1], [True, True, False])
    drawn = plots.accuracy_by([(0, group)], "known_neighbors", "known in-neighbors")
    assert "g, 1 or more: 50.0% of 2 nodes" in drawn


@pytest.mark.parametrize("values", [[0.0], [1.0], [0.0, 1.0], [0.99, 1.0], [0.004, 0.01]])
def test_no_axis_of_scores_goes_beyond_what_scores_can_be(values: list[float]) -> None:
    for axis in (plots._percent(values, ""), plots._percent(plots._spread(values), "")):
        assert 0 <= axis.low <= min(values)
        assert max(values) <= axis.high <= 1
        assert len(axis.ticks) >= 2


def test_a_deviation_reaches_no_score_that_cannot_be() -> None:
    assert plots._either_way(0.99, 0.05) == (pytest.approx(0.94), 1.0)
    assert plots._either_way(0.01, 0.05) == (0.0, pytest.approx(0.06))


def test_of_a_crowd_there_are_lines_and_marks_alone() -> None:
    band = [(0.0, 0.1, 0.9)]
    series = [
        Series(f"{k}", k, [(0.0, 0.5)], band, marks=[Mark(0, 0.5, "w", (0.1, 0.9))])
        for k in range(plots.CROWD + 1)
    ]
    assert plots._uncrowded(series[1:]) == series[1:]
    crowd = plots._uncrowded(series)
    assert not any(one.band or one.marks[0].ends for one in crowd)
    assert plots._heights(crowd) == [0.5] * 2 * len(series)  # bands widen no axis
