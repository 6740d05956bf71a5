"""Small runs that the tests of pages share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from unimp.graph.graph import Graph
from unimp.runs.experiment import run
from unimp.runs.reporting import write_comparison, write_report
from unimp.tasks.labels import Split
from unimp.tasks.task import Task

SMALL = ["task.scale=0.05", "train.epochs=4", "model.width=4"]
NASTY = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run and its page."""
    place = tmp_path_factory.mktemp("report") / "run"
    done = run("synthetic", seed=3, out=place, settings=SMALL)
    write_report(place, done)
    return place


@pytest.fixture(scope="session")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs: two seeds with labels as inputs, two without, one of label propagation."""
    place = tmp_path_factory.mktemp("several")
    for seed in (0, 1):
        run("synthetic", seed=seed, out=place / f"seed-{seed}", settings=SMALL)
        settings = [*SMALL, "model.inputs=X,A"]
        run("synthetic", seed=seed, out=place / "no-labels" / f"seed-{seed}", settings=settings)
    settings = [*SMALL, "model.name=label-propagation"]
    run("synthetic", out=place / "propagation", settings=settings)
    write_comparison([place])
    return place


def binary_task(num_nodes: int = 60) -> Task:
    """Three binary tasks on a ring, two of them with names that are markup."""
    generator = torch.Generator().manual_seed(0)
    nodes = torch.arange(num_nodes)
    graph = Graph.from_edges(torch.stack((nodes, (nodes + 1) % num_nodes)))
    x = torch.randn(num_nodes, 3, generator=generator)
    parts = torch.randperm(num_nodes, generator=generator).split(num_nodes // 3)
    return Task(
        "binary",
        graph.with_features(x).symmetrize(),
        (x > 0).to(torch.int8),
        Split(*parts[:3]),
        "rocauc",
        num_classes=3,
        class_names=("plain", NASTY, "'&\""),
    )


@pytest.fixture
def own_task() -> Task:
    """Binary tasks that are not in the catalog: stored in the folder of each run."""
    return binary_task()


@pytest.fixture(scope="session")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of binary tasks."""
    place = tmp_path_factory.mktemp("binary") / "run"
    done = run(binary_task(), out=place, settings=["train.epochs=3", "model.width=4"])
    write_report(place, done)
    return place


@pytest.fixture(scope="session")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More recipes of binary tasks than charts show, with long names."""
    place = tmp_path_factory.mktemp("crowd")
    for width in range(1, 10):
        settings = ["train.epochs=1", f"model.width={width}", f"model.attention_dropout=0.{width}"]
        run(binary_task(), out=place / f"{width}", settings=settings)
    write_comparison([place], label_rates=False)
    return place
