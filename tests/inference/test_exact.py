"""Exact inference: every chunk size gives the logits of the full batch, in bounded memory."""

import itertools
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor

from unimp.data.synthetic import synthetic_task
from unimp.graph.graph import Graph
from unimp.graph.hop import Hop
from unimp.inference.exact import exact_logits, target_chunks
from unimp.inference.logits import predict_logits, probabilities
from unimp.model.mlp import MLP
from unimp.model.node_model import NodeModel
from unimp.model.unimp import UniMP
from unimp.tasks.labels import reveal_only
from unimp.tasks.task import Task


def some_task(**options: Any) -> Task:
    sizes = {"num_nodes": 90, "num_edges": 300, "num_classes": 3, "num_features": 5}
    return synthetic_task(**{**sizes, "edge_features": 2, **options})


def with_hub_and_isolated_nodes() -> Graph:
    """A graph in which node 7 receives from all others and nodes 20 to 29 have no in-edges."""
    generator = torch.Generator().manual_seed(0)
    hub = torch.stack((torch.arange(30), torch.full((30,), 7)))
    others = torch.randint(0, 20, (2, 40), generator=generator)
    x = torch.randn(30, 5, generator=generator)
    edges = torch.cat((hub, others), 1)
    attr = torch.randn(edges.shape[1], 2, generator=generator)
    return Graph.from_edges(edges, x=x, edge_attr=attr).deduplicate()


def model_for(task: Task, **options: Any) -> UniMP:
    torch.manual_seed(0)
    return UniMP(task.sizes, **{"layers": 3, "width": 8, "heads": 2, **options})


@torch.no_grad()
def full_batch(model: NodeModel, graph: Graph, observed: Tensor) -> Tensor:
    model.eval()
    logits: Tensor = model(graph.x, observed, [graph.hop] * model.num_layers)
    return logits


class Recording:
    """Record the hops of each call of `propagate`."""

    def __init__(self, model: NodeModel, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hops: list[Hop] = []
        self.layers: list[int] = []
        inner = model.propagate

        def propagate(h: Tensor, hop: Hop, index: int) -> Tensor:
            assert h.shape[0] == hop.num_sources
            self.hops.append(hop)
            self.layers.append(index)
            return inner(h, hop, index)

        monkeypatch.setattr(model, "propagate", propagate)


@pytest.mark.parametrize("chunk_edges", [1, 7, 100, 10_000])
@pytest.mark.parametrize("head", ["average", "linear"])
def test_every_chunk_size_gives_the_logits_of_the_full_batch(chunk_edges: int, head: Any) -> None:
    task = some_task()
    observed = reveal_only(task.split.train, task.labels)
    model = model_for(task, head=head)
    logits = exact_logits(model, task.graph, observed, chunk_edges=chunk_edges)
    expected = full_batch(model, task.graph, observed)
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("chunk_edges", [1, 7, 29])
def test_hubs_larger_than_a_chunk_and_isolated_nodes_are_supported(chunk_edges: int) -> None:
    graph = with_hub_and_isolated_nodes()
    assert int(graph.in_degree[7]) > chunk_edges
    model = model_for(some_task())
    observed = torch.arange(30) % 4 - 1
    logits = exact_logits(model, graph, observed, chunk_edges=chunk_edges)
    assert bool(torch.isfinite(logits).all())
    expected = full_batch(model, graph, observed)
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)


def test_many_duplicate_edges_are_supported() -> None:
    edges = torch.tensor([[0, 0, 0, 1], [1, 1, 1, 0]])
    graph = Graph.from_edges(edges, x=torch.randn(2, 5), edge_attr=torch.randn(4, 2))
    model, observed = model_for(some_task(), backend="sparse"), torch.full((2,), -1)
    logits = exact_logits(model, graph, observed, chunk_edges=3)
    expected = full_batch(model_for(some_task(), backend="reference"), graph, observed)
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("chunk_edges", [1, 7, 29])
def test_a_layer_receives_at_most_chunk_edges_edges_or_a_single_target(
    chunk_edges: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, model = with_hub_and_isolated_nodes(), model_for(some_task())
    recording = Recording(model, monkeypatch)
    exact_logits(model, graph, torch.full((30,), -1), chunk_edges=chunk_edges)
    assert recording.hops
    assert all(h.num_edges <= chunk_edges or h.num_targets == 1 for h in recording.hops)
    assert any(h.num_edges > chunk_edges for h in recording.hops)  # the hub, alone
    # One layer is complete before the next begins.
    assert recording.layers == sorted(recording.layers)
    for layer in range(3):
        hops = [h for h, at in zip(recording.hops, recording.layers, strict=True) if at == layer]
        assert sum(h.num_targets for h in hops) == graph.num_nodes
        assert sum(h.num_edges for h in hops) == graph.num_edges


@pytest.mark.parametrize("chunk_edges", [1, 2, 7, 29, 10_000])
def test_chunks_cover_each_target_once_in_order(chunk_edges: int) -> None:
    graph = with_hub_and_isolated_nodes()
    chunks = list(target_chunks(graph, chunk_edges))
    assert torch.cat(chunks).tolist() == list(range(graph.num_nodes))
    assert all(chunk.numel() for chunk in chunks)


def test_chunks_are_as_large_as_allowed() -> None:
    graph = with_hub_and_isolated_nodes()
    degree = graph.in_degree
    chunks = list(target_chunks(graph, 7))
    for chunk, following in itertools.pairwise(chunks):
        assert int(degree[chunk].sum() + degree[following[0]]) + len(chunk) + 1 > 7


def test_targets_without_in_edges_also_count() -> None:
    graph = Graph.from_edges(torch.empty(2, 0, dtype=torch.int64), num_nodes=4)
    assert [chunk.tolist() for chunk in target_chunks(graph, 3)] == [[0, 1, 2], [3]]


@pytest.mark.parametrize("chunk_edges", [7, 10_000])
def test_binary_tasks_without_node_features_are_supported(chunk_edges: int) -> None:
    task = some_task(multilabel_tasks=4, num_features=0)
    observed = reveal_only(task.split.train, task.labels)
    model = model_for(task, edge_encoder="shared", head="linear", feature_encoder=True)
    logits = exact_logits(model, task.graph, observed, chunk_edges=chunk_edges)
    expected = full_batch(model, task.graph, observed)
    assert logits.shape == (90, 4)
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("chunk_edges", [7, 10_000])
def test_sparse_features_are_supported(chunk_edges: int) -> None:
    task = some_task()
    x = sp.random_array((90, 40), density=0.1, rng=np.random.default_rng(0), format="csr")
    task = task.with_graph(task.graph.with_features(x))
    observed = reveal_only(task.split.train, task.labels)
    model = model_for(task, feature_encoder=True)
    logits = exact_logits(model, task.graph, observed, chunk_edges=chunk_edges)
    expected = full_batch(model, task.graph, observed)
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("chunk_edges", [7, 10_000])
def test_a_model_without_graph_layers_is_supported(chunk_edges: int) -> None:
    task = some_task()
    observed = torch.full_like(task.labels, -1)
    model = MLP(task.sizes, width=8)
    logits = exact_logits(model, task.graph, observed, chunk_edges=chunk_edges)
    torch.testing.assert_close(logits, full_batch(model, task.graph, observed))


@pytest.mark.parametrize("options", [{"chunk_edges": 7}, {"regime": "partition", "parts": 3}])
def test_inference_uses_no_dropout_and_builds_no_gradient(options: dict[str, Any]) -> None:
    task = some_task()
    observed = reveal_only(task.split.train, task.labels)
    model = model_for(task, dropout=0.9).train()
    one = predict_logits(model, task.graph, observed, **options)
    model.train()
    assert torch.equal(one, predict_logits(model, task.graph, observed, **options))
    assert not one.requires_grad


def test_labels_that_are_not_observed_have_no_influence() -> None:
    task = some_task()
    model = model_for(task)
    changed = task.labels.clone()
    changed[task.split.test] = (changed[task.split.test] + 1) % 3
    one, other = (
        exact_logits(model, task.graph, reveal_only(task.split.train, labels), chunk_edges=50)
        for labels in (task.labels, changed)
    )
    assert torch.equal(one, other)


def test_probabilities_of_classes_sum_to_one_and_those_of_binary_tasks_are_independent() -> None:
    logits = torch.tensor([[0.0, 0.0], [2.0, -2.0]])
    assert torch.equal(probabilities(logits, multilabel=False).sum(1), torch.ones(2))
    assert torch.equal(probabilities(logits, multilabel=True), torch.sigmoid(logits))
