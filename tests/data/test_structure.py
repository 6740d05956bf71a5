"""Structural columns: what they contain, and that they follow the graph."""

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor

import unimp
from unimp.data.catalog import prepare_graph
from unimp.data.structure import (
    NUM_COLUMNS,
    structural_columns,
    with_structure,
    without_structure,
)
from unimp.data.synthetic import synthetic_task
from unimp.graph.features import SparseFeatures
from unimp.graph.graph import Graph

PATH = Graph.from_edges([list(range(9)), list(range(1, 10))], num_nodes=12)
"""A path of ten nodes from left to right, and two nodes without edges."""


def random_graph(nodes: int = 60) -> Graph:
    sizes = {"num_edges": 4 * nodes, "num_classes": 3, "num_features": 5}
    return synthetic_task(num_nodes=nodes, **sizes).graph


def test_degrees_are_logarithms_and_self_loops_do_not_count() -> None:
    columns = structural_columns(PATH.with_self_loops())
    assert torch.equal(columns, structural_columns(PATH))
    into = torch.tensor([0.0] + [1.0] * 9 + [0.0] * 2)
    torch.testing.assert_close(columns[:, 0], into.log1p())
    torch.testing.assert_close(columns[:10, 1], into[:10].flip(0).log1p())


def test_page_rank_equals_networkx() -> None:
    networkx = pytest.importorskip("networkx")
    graph = PATH
    theirs = networkx.DiGraph(graph.edge_index.t().tolist())
    theirs.add_nodes_from(range(12))
    rank = networkx.pagerank(theirs, alpha=0.85, tol=1e-12, max_iter=1000)
    expected = torch.tensor([12 * rank[node] for node in range(12)]).log()
    torch.testing.assert_close(structural_columns(graph)[:, 2], expected, rtol=1e-4, atol=1e-5)


def test_a_new_leaf_hardly_changes_the_columns_of_other_nodes() -> None:
    """Predictions of old nodes must not change because a node was added far away."""
    for leaf_at in range(0, 300, 30):
        graph = random_graph(300)
        before = structural_columns(graph)
        ends = torch.cat((graph.edge_index, torch.tensor([[leaf_at, 300], [300, leaf_at]])), 1)
        after = structural_columns(Graph.from_edges(ends.numpy(), num_nodes=301))
        others = torch.arange(300) != leaf_at
        assert float((after[:300] - before)[others].abs().max()) < 0.1


def test_renumbering_the_nodes_permutes_degrees_and_page_rank() -> None:
    graph = random_graph(300)
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0))
    moved, plain = structural_columns(graph.renumber(order)), structural_columns(graph)
    torch.testing.assert_close(moved, plain[order])


@pytest.mark.parametrize("kind", ["dense", "sparse", "none"])
def test_columns_are_appended_to_the_features_and_can_be_removed(kind: str) -> None:
    graph = random_graph()
    x = graph.x
    assert isinstance(x, Tensor)
    if kind != "dense":
        rows = None if kind == "none" else sp.csr_array(np.where(x.numpy() > 1, x.numpy(), 0))
        graph = graph.with_features(rows)
    larger = prepare_graph(graph, structure=True)
    assert larger.num_features == graph.num_features + NUM_COLUMNS
    assert isinstance(larger.x, SparseFeatures) == (kind == "sparse")
    got = larger.x
    dense = torch.from_numpy(got.to_scipy().toarray()) if isinstance(got, SparseFeatures) else got
    assert dense is not None
    torch.testing.assert_close(dense[:, graph.num_features :], structural_columns(graph))
    for one, other in zip(graph.arrays, without_structure(larger).arrays, strict=True):
        assert (one is None and other is None) or torch.equal(one, other)  # type: ignore[arg-type]


def test_tiny_graphs_have_columns() -> None:
    alone = with_structure(Graph.from_edges(np.zeros((2, 0), dtype=np.int64), num_nodes=1))
    assert torch.equal(alone.x, torch.zeros(1, NUM_COLUMNS))  # type: ignore[arg-type]
    pair = structural_columns(Graph.from_edges([[0], [1]]))
    assert bool(torch.isfinite(pair).all())


@pytest.mark.parametrize("features", [True, False])
def test_a_run_on_tables_can_be_loaded_and_extended(features: bool, tmp_path: Path) -> None:
    count = 40
    ids = [f"n{i}" for i in range(count)]
    label = [None if i % 5 == 0 else "ab"[i % 2] for i in range(count)]
    nodes = {"id": ids, "label": label, "age": [float(i % 7) for i in range(count)]}
    edges = {"source": [ids[i % count] for i in range(2 * count)],
             "target": [ids[(3 * i + 2) % count] for i in range(2 * count)]}  # fmt: skip
    given = {"age": "numeric"} if features else {}
    task = unimp.task_from_tables(nodes, edges, label="label", features=given)
    small = ["task.structure=true", "train.epochs=2", "model.width=8"]
    run = unimp.run(task, settings=small, out=tmp_path / "run", progress=False)
    assert run.task.graph.num_features == NUM_COLUMNS + len(given)
    loaded = unimp.load_run(tmp_path / "run")
    assert torch.equal(loaded.predict(), run.predict())
    new = {"id": ["x"]} | ({"age": [3.0]} if features else {})
    joined = {"source": ["x", "x"], "target": ["n3", "n8"]}
    larger = loaded.extended(new, joined)
    columns = larger.task.graph.x[:, -NUM_COLUMNS:]  # type: ignore[index]
    torch.testing.assert_close(columns, structural_columns(larger.task.graph))
    assert float(columns[-1, 0]) == pytest.approx(np.log(3))
    assert larger.predict().shape == (count + 1, 2)
    again = larger.extended({"id": ["y"]} | ({"age": [3.0]} if features else {}))
    assert again.task.graph.num_features == run.task.graph.num_features
    torch.testing.assert_close(larger.predict(), loaded.extended(new, joined).predict())
