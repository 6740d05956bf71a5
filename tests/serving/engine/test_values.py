"""What the service shows about a node, depending on what the run was trained on."""

from pathlib import Path

import pytest
import torch
from small_runs import SETTINGS, table_run

import unimp
from unimp.serving.engine.applied import Applied
from unimp.serving.engine.values import NodeValues
from unimp.serving.store import Store


def values_of(run: unimp.Run, folder: Path) -> NodeValues:
    with Store(folder) as store:
        applied = Applied(run, store.reader)
    return NodeValues(applied)


def test_numbers_and_categories_are_computed_back_if_the_table_is_gone(tmp_path: Path) -> None:
    run = table_run(tmp_path)
    lines = (tmp_path / "nodes.csv").read_text().splitlines()[1:]
    for path in tmp_path.glob("*.csv"):
        path.unlink()
    values = values_of(run, tmp_path)
    for line in lines:
        name, size, kind, _ = line.split(",")
        found = values.of(name)
        assert list(found) == ["size", "kind"]
        assert found["size"] == pytest.approx(float(size), abs=1e-4)
        assert found["kind"] == kind


def test_features_without_names_are_numbered_and_zeros_are_left_out(tmp_path: Path) -> None:
    x = torch.zeros(12, 30)
    x[3, 4], x[3, 17] = 1.0, 0.25
    edges = torch.stack((torch.arange(11), torch.arange(1, 12)))
    task = unimp.Task(
        "ring",
        unimp.Graph.from_edges(edges, num_nodes=12, x=x),
        torch.arange(12) % 2,
        unimp.Split(torch.arange(6), torch.arange(6, 9), torch.arange(9, 12)),
        "accuracy",
        num_classes=2,
    )
    run = unimp.run(task, settings=SETTINGS, out=tmp_path / "run", progress=False)
    values = values_of(run, tmp_path)
    assert values.of("3") == {"5": 1, "18": 0.25}
    assert values.of("2") == {}
