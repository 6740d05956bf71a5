"""Exact inference with states in files equals exact inference in memory."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from unimp.data.synthetic import synthetic_task
from unimp.errors import ArgumentError, OutputError
from unimp.graph.graph import Graph
from unimp.inference import ranges
from unimp.inference.logits import predict_logits
from unimp.inference.ranges import SharedWork, logits_in_ranges, ranges_of, widths_of
from unimp.model.mlp import MLP
from unimp.model.node_model import NodeModel
from unimp.model.unimp import UniMP
from unimp.tasks.labels import reveal_only
from unimp.tasks.task import Sizes, Task

PLENTY = 1 << 40


def random_graph(seed: int, *, edge_width: int = 0, features: int = 6) -> Graph:
    """A graph with a hub, nodes without in-edges and duplicate edges, as it is mapped from disk."""
    rng = np.random.default_rng(seed)
    nodes = int(rng.integers(20, 120))
    edges = rng.integers(0, nodes, (2, int(rng.integers(0, 6 * nodes))))
    edges[1][edges[1] % 5 == 0] = 3  # a hub, and a fifth of the nodes without in-edges
    attr = rng.standard_normal((edges.shape[1], edge_width)) if edge_width else None
    x = rng.standard_normal((nodes, features)) if features else None
    graph = Graph.from_edges(edges, num_nodes=nodes, x=x, edge_attr=attr)
    return replace(
        graph,
        indptr=graph.indptr.long(),
        source=graph.source.int(),
        edge_id=None,
        edge_attr=graph.edge_attr_of(None),
    )


def in_files(
    model: NodeModel, graph: Graph, observed: Tensor, memory: int, chunk_edges: int = 9, **more: Any
) -> Tensor:
    widths = widths_of(model.eval(), graph, observed, "cpu")
    return logits_in_ranges(
        model, graph, observed, widths, chunk_edges=chunk_edges, memory=memory, **more
    )


@torch.no_grad()
def full_batch(model: NodeModel, graph: Graph, observed: Tensor) -> Tensor:
    model.eval()
    logits: Tensor = model(
        model.features(graph, observed), observed, [graph.hop] * model.num_layers
    )
    return logits


def assert_equal(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


# Small limits divide the nodes into many stripes and blocks, the smallest into a few nodes each.
LIMITS = [2_000, 30_000, 200_000, PLENTY]


@pytest.mark.parametrize("memory", LIMITS)
@pytest.mark.parametrize("seed", range(6))
def test_every_memory_limit_gives_the_logits_of_the_full_batch(seed: int, memory: int) -> None:
    rng = np.random.default_rng(seed)
    edge_width = int(rng.choice([0, 1, 3, 9]))
    graph = random_graph(seed, edge_width=edge_width)
    torch.manual_seed(seed)
    model = UniMP(
        Sizes(features=6, classes=4, edge_features=edge_width, multilabel=False),
        layers=int(rng.integers(1, 4)),
        width=int(rng.integers(1, 20)),
        heads=int(rng.integers(1, 4)),
        residual=str(rng.choice(["none", "simple", "gated"])),  # type: ignore[arg-type]
        gate=str(rng.choice(["last", "all"])),  # type: ignore[arg-type]
        norm=str(rng.choice(["layer", "batch", "none"])),  # type: ignore[arg-type]
        head=str(rng.choice(["average", "linear"])),  # type: ignore[arg-type]
    )
    for weight in model.parameters():  # initial biases of 0 would hide errors
        torch.nn.init.normal_(weight, std=0.3)
    observed = torch.from_numpy(rng.integers(-1, 4, graph.num_nodes))
    expected = full_batch(model, graph, observed)
    chunk_edges = [1, 7, 1000][seed % 3]
    assert_equal(in_files(model, graph, observed, memory, chunk_edges), expected)


@pytest.mark.parametrize("memory", [1, 100_000, PLENTY])
@pytest.mark.parametrize("layer", ["gat", "gcn", "sage"])
def test_layers_that_need_all_in_edges_at_once_are_supported(layer: Any, memory: int) -> None:
    task = synthetic_task(num_nodes=90, num_edges=300, num_classes=3, num_features=5)
    torch.manual_seed(0)
    model = UniMP(task.sizes, layers=2, width=8, heads=2, layer=layer)
    graph, observed = model.prepare(task.graph), reveal_only(task.split.train, task.labels)
    assert_equal(in_files(model, graph, observed, memory), full_batch(model, graph, observed))


@pytest.mark.parametrize("memory", [6_000, 60_000, PLENTY])
@pytest.mark.parametrize("tasks", [0, 5])
def test_propagated_labels_are_supported(tasks: int, memory: int) -> None:
    task = synthetic_task(
        num_nodes=90, num_edges=300, num_classes=5, num_features=5, multilabel_tasks=tasks
    )
    torch.manual_seed(0)
    model = UniMP(task.sizes, layers=2, width=8, heads=2, propagated_labels=True)
    observed = reveal_only(task.split.train, task.labels)
    found = in_files(model, task.graph, observed, memory)
    assert_equal(found, full_batch(model, task.graph, observed))


@pytest.mark.parametrize("memory", [1, PLENTY])
def test_sparse_and_missing_features_and_models_without_layers_are_supported(memory: int) -> None:
    task = synthetic_task(num_nodes=60, num_edges=200, num_classes=3, num_features=0)
    observed = reveal_only(task.split.train, task.labels)
    model: NodeModel = UniMP(task.sizes, layers=2, width=8, heads=2)
    found = in_files(model, task.graph, observed, memory)
    assert_equal(found, full_batch(model, task.graph, observed))
    task = synthetic_task(num_nodes=60, num_edges=200, num_classes=3, num_features=4)
    model = MLP(task.sizes, width=8)
    found = in_files(model, task.graph, observed, memory)
    assert_equal(found, full_batch(model, task.graph, observed))


def small_task() -> tuple[Task, UniMP, Tensor]:
    task = synthetic_task(num_nodes=90, num_edges=300, num_classes=3, num_features=5)
    torch.manual_seed(0)
    model = UniMP(task.sizes, layers=2, width=8, heads=2)
    return task, model, reveal_only(task.split.train, task.labels)


def test_labels_that_are_not_observed_have_no_influence() -> None:
    task, model, _ = small_task()
    changed = task.labels.clone()
    changed[task.split.test] = (changed[task.split.test] + 1) % 3
    one, other = (
        in_files(model, task.graph, reveal_only(task.split.train, labels), 30_000)
        for labels in (task.labels, changed)
    )
    assert torch.equal(one, other)


@pytest.mark.parametrize(("memory", "way"), [(8_000, "streamed"), (10_000_000, None)])
def test_predictions_choose_files_by_the_memory_limit_and_print_it(
    memory: int, way: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    task, model, observed = small_task()
    ranges._print_choice.cache_clear()
    with caplog.at_level(logging.INFO, "unimp.inference"):
        found = predict_logits(model, task.graph, observed, chunk_edges=50, memory=memory)
    assert_equal(found, full_batch(model, task.graph, observed))
    assert (way in caplog.text) if way else not caplog.text


def open_files() -> int:
    found = Path("/proc/self/fd")
    return len(list(found.iterdir())) if found.exists() else 0


@pytest.mark.parametrize("fails", [False, True])
def test_no_file_is_left(fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task, model, observed = small_task()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    if fails:
        monkeypatch.setattr(model, "read_out", lambda h: 1 / 0 if len(h) > 1 else h)
        with pytest.raises(ZeroDivisionError):
            in_files(model, task.graph, observed, PLENTY)
    else:
        before = open_files()
        for _ in range(3):
            assert in_files(model, task.graph, observed, 30_000).isfinite().all()
        assert open_files() <= before + 1
    assert not list(tmp_path.iterdir())


def test_a_disk_without_space_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    task, model, observed = small_task()
    usage = type("Usage", (), {"free": 100})
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage)
    with pytest.raises(OutputError, match="TMPDIR"):
        in_files(model, task.graph, observed, 30_000)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 500])
def test_ranges_cover_each_node_once_with_about_equal_in_edges(seed: int, ranks: int) -> None:
    graph = random_graph(seed)
    found = [ranges_of(graph, rank, ranks) for rank in range(ranks)]
    assert [node for part in found for node in part] == list(range(graph.num_nodes))
    cost = graph.in_degree + 1
    for part in found:
        most = int(cost.sum()) / ranks + int(cost.max()) + 1
        assert int(cost[part.start : part.stop].sum()) <= most


def test_several_ranks_need_a_folder_and_a_barrier(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError):
        SharedWork(0, 2, folder=tmp_path)
    with pytest.raises(ArgumentError):
        SharedWork(0, 2, barrier=lambda: None)
    with pytest.raises(ArgumentError):
        SharedWork(2, 2)


def _rank(rank: int, ranks: int, folder: str) -> None:
    """Compute in one of several processes, and compare with the full batch."""
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks)
    try:
        shared = SharedWork(rank, ranks, dist.barrier, Path(folder) / "shared")
        for propagated in (False, True):
            torch.manual_seed(0)
            model = UniMP(
                Sizes(features=6, classes=4, edge_features=2, multilabel=False),
                layers=3,
                width=8,
                heads=2,
                propagated_labels=propagated,
            )
            graph = random_graph(1, edge_width=2)
            observed = torch.arange(graph.num_nodes) % 5 - 1
            expected = full_batch(model, graph, observed)
            for memory in (50_000, PLENTY):
                found = predict_logits(
                    model, graph, observed, chunk_edges=20, memory=memory, shared=shared
                )
                assert_equal(found, expected)
        dist.barrier()
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("ranks", [2, 4])
def test_several_processes_compute_the_logits_together(ranks: int, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    torch.multiprocessing.spawn(_rank, (ranks, str(tmp_path)), nprocs=ranks)
    assert not list((tmp_path / "shared").iterdir())
