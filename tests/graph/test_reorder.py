"""The order of nodes in memory: neighbors come together, and nobody sees other node numbers."""

import gc
import importlib
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet
import pytest
import torch
from torch import Tensor

from unimp.config.recipe import Recipe
from unimp.data.npz import save_npz
from unimp.errors import RecipeError
from unimp.graph import reorder as module
from unimp.graph.graph import Graph
from unimp.graph.reorder import node_order, reorder
from unimp.runs.experiment import run
from unimp.runs.run import Run, load_run
from unimp.runs.scoring import score_split
from unimp.tasks.labels import Split, reveal_only
from unimp.tasks.task import Task

NODES = 120
REGIMES = {
    "full": ["batch.regime=full"],
    "whole": ["batch.regime=full", "batch.prune=false"],
    "partition": ["batch.regime=partition", "batch.parts=3"],
    "neighbors": ["batch.regime=neighbors", "batch.batch_size=20", "batch.fanout=[3]"],
    "chunks": ["batch.regime=full", "inference.chunk_edges=60"],
    "parts": ["batch.regime=full", "inference.regime=partition", "inference.parts=1"],
}
SETTINGS = [
    "train.device=cpu",
    "model.width=8",
    "model.layers=2",
    "train.epochs=4",
    "train.lr=0.01",
]


def scattered_rings() -> Graph:
    """Two rings whose nodes are numbered at random, two pairs, and ten nodes without edges."""
    generator = torch.Generator().manual_seed(0)
    number = torch.randperm(NODES, generator=generator)
    one, other = torch.arange(60), torch.arange(60, 106)
    source = torch.cat((one, other, torch.tensor([106, 108])))
    target = torch.cat((one.roll(1), other.roll(1), torch.tensor([107, 109])))
    return Graph.from_edges(
        number[torch.stack((source, target))],
        x=torch.randn(NODES, 6, generator=generator),
        edge_attr=torch.randn(len(source), 2, generator=generator),
    )


def some_task() -> Task:
    labels = torch.arange(NODES) % 3
    nodes = torch.randperm(NODES, generator=torch.Generator().manual_seed(1))
    split = Split(nodes[:60], nodes[60:90], nodes[90:])
    return Task("rings", scattered_rings().symmetrize(), labels, split, "accuracy", 3)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("task") / "rings.npz"
    save_npz(some_task(), path)
    return path


def run_of(path: Path, *settings: str, out: Path | None = None) -> Run:
    recipe = Recipe(name="small").with_settings([f"task.name={path}", *SETTINGS, *settings])
    return run(recipe, out=out)


def in_order(done: Run, order: str) -> Run:
    """The same trained model, its graph otherwise in memory."""
    recipe = done.recipe.with_settings([f"task.order={order}"])
    return Run(recipe, done.seed, done.task, done.model, done.metrics, done.device)


def reach(graph: Graph) -> float:
    """The mean distance in memory along an edge."""
    return float((graph.source.long() - graph.target.long()).abs().double().mean())


@pytest.fixture(params=["rcm", "metis"])
def how(request: pytest.FixtureRequest) -> Any:
    if request.param == "metis":
        pytest.importorskip("pymetis", reason="pymetis is not installed: unimp[metis]")
    return request.param


def test_neighbors_come_to_lie_near_one_another(how: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART", 12)
    graph = scattered_rings()
    assert reach(reorder(graph, how).graph) < reach(graph) / 3


def test_components_and_nodes_without_edges_each_keep_their_place_once(how: Any) -> None:
    order = node_order(scattered_rings(), how)
    assert order.sort().values.tolist() == list(range(NODES))


@pytest.mark.parametrize("edges", [[[], []], [[2, 2, 0], [2, 2, 0]]], ids=["none", "loops"])
def test_a_graph_without_neighbors_has_an_order_too(how: Any, edges: list[list[int]]) -> None:
    graph = Graph.from_edges(torch.tensor(edges, dtype=torch.int64), num_nodes=3)
    assert sorted(node_order(graph, how).tolist()) == [0, 1, 2]


def test_an_edge_named_many_times_is_an_edge(random_graph: Callable[..., Graph]) -> None:
    once = random_graph().deduplicate()
    many = Graph.from_edges(once.edge_index.repeat(1, 256), num_nodes=once.num_nodes)
    assert torch.equal(node_order(many, "rcm"), node_order(once, "rcm"))


def test_the_order_is_the_same_each_time(how: Any) -> None:
    assert torch.equal(node_order(scattered_rings(), how), node_order(scattered_rings(), how))


def test_rows_go_there_and_come_back(how: Any) -> None:
    graph = scattered_rings()
    reordered = reorder(graph, how)
    assert isinstance(graph.x, Tensor)
    assert isinstance(reordered.graph.x, Tensor)
    assert torch.equal(reordered.to_here(graph.x), reordered.graph.x)
    assert torch.equal(reordered.to_task(reordered.graph.x), graph.x)


def test_as_given_is_the_graph_itself() -> None:
    graph = scattered_rings()
    assert reorder(graph, "given").graph is graph
    rows = torch.rand(NODES)
    assert reorder(graph, "given").to_here(rows) is rows
    assert reorder(graph, "given").to_task(rows) is rows


def test_what_was_found_is_kept_as_long_as_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Graph] = []

    def counted(graph: Graph, how: Any) -> Tensor:
        found.append(graph)
        return node_order(graph, how)

    monkeypatch.setattr(module, "node_order", counted)
    graph = scattered_rings()
    assert reorder(graph, "rcm").graph is reorder(graph, "rcm").graph
    assert len(found) == 1
    found.clear()
    gone = weakref.ref(reorder(graph, "rcm").graph)
    del graph
    gc.collect()
    assert gone() is None


def test_a_run_finds_its_order_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def counted(graph: Graph, how: Any) -> Tensor:
        calls.append(how)
        return node_order(graph, how)

    monkeypatch.setattr(module, "node_order", counted)
    run_of(path, "task.order=rcm").predict({0: 1})
    assert calls == ["rcm"]


def test_without_pymetis_the_extra_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def absent(name: str, package: str | None = None) -> Any:
        if name == "pymetis":
            raise ImportError(name)
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(RecipeError, match=r'pip install "unimp\[metis\]"'):
        run_of(path, "task.order=metis")


def test_parts_follow_one_another_and_their_nodes_stay_in_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def part_graph(parts: int, adjacency: Any, *, options: Any) -> Any:
        start, adjacent = adjacency
        assert len(start) == 5
        assert adjacent.tolist() == [1, 0, 2, 1]  # both ways, and no self-loop
        return SimpleNamespace(vertex_part=[1, 0, 1, 0][: len(start) - 1])

    fake = SimpleNamespace(
        part_graph=part_graph, CSRAdjacency=lambda a, b: (a, b), Options=lambda **_: None
    )
    monkeypatch.setitem(sys.modules, "pymetis", fake)
    graph = Graph.from_edges(torch.tensor([[0, 2, 3], [1, 1, 3]]), num_nodes=4)
    assert node_order(graph, "metis").tolist() == [1, 3, 0, 2]


@pytest.mark.parametrize("regime", REGIMES)
def test_predictions_are_in_the_order_of_the_task(path: Path, how: Any, regime: str) -> None:
    done = run_of(path, f"task.order={how}", *REGIMES[regime])
    given = in_order(done, "given")
    observed = reveal_only(done.task.split.train, done.task.labels)
    logits = done.logits(observed)
    torch.testing.assert_close(logits, given.logits(observed), rtol=1e-5, atol=1e-5)
    assert done.metrics["scores"]["train"] == score_split(logits, done.task, "train")
    later = {int(done.task.split.val[0]): 2}
    torch.testing.assert_close(done.predict(later), given.predict(later), rtol=1e-5, atol=1e-5)
    assert not torch.equal(done.predict(later), done.predict())


@pytest.mark.parametrize("prune", ["true", "false"])
@pytest.mark.parametrize("redraw", ["run", "epoch"])
def test_without_dropout_full_batches_learn_the_same_in_any_order(
    path: Path, how: Any, prune: str, redraw: str
) -> None:
    settings = ["model.dropout=0", "model.input_dropout=0", f"batch.prune={prune}"]
    settings += [f"mask.redraw={redraw}"]
    given, other = (run_of(path, *settings, f"task.order={order}") for order in ("given", how))
    torch.testing.assert_close(given.predict(), other.predict(), rtol=1e-3, atol=1e-4)
    # The model is no constant: in another order its predictions would be wrong.
    assert float(given.predict().std(0).min()) > 0.01


@pytest.mark.parametrize("name", ["mlp", "label-propagation"])
def test_models_of_other_kinds_run_in_any_order(path: Path, name: str) -> None:
    done = run_of(path, "task.order=rcm", f"model.name={name}")
    torch.testing.assert_close(done.predict(), in_order(done, "given").predict())


def test_a_folder_holds_the_numbers_of_the_task(path: Path, tmp_path: Path) -> None:
    done = run_of(path, "task.order=rcm", out=tmp_path / "run")
    again = load_run(tmp_path / "run", device="cpu")
    assert again.recipe.task.order == "rcm"
    assert torch.equal(again.predict(), done.predict())
    assert again.task.data_hash() == some_task().data_hash()
    table = pyarrow.parquet.read_table(tmp_path / "run" / "predictions.parquet").to_pydict()
    assert table["node"] == list(range(NODES))
    assert table["label"] == [str(label) for label in some_task().labels.tolist()]
    for node in some_task().split.test.tolist():
        assert table["prediction"][node] == str(int(done.predict()[node].argmax()))
