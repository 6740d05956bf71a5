"""Properties of all models: regimes agree, inputs, and parity with PyG."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from unimp.config.choices import ALL
from unimp.config.options import BatchOptions
from unimp.config.recipe import Recipe, load_recipe
from unimp.data.npz import save_npz
from unimp.data.synthetic import synthetic_task
from unimp.graph.features import rows_of
from unimp.graph.graph import Graph
from unimp.graph.hop import Hop
from unimp.inference.logits import predict_logits
from unimp.model.gat import GATLayer
from unimp.model.gcn import GCNLayer, convolve, with_convolution_weights
from unimp.model.gcn_lpa import GCNLPA, KEY_WIDTH
from unimp.model.node_model import NodeModel
from unimp.model.registry import build_model
from unimp.model.solved_model import KnownLabels
from unimp.model.table import MODELS
from unimp.model.trees import Trees
from unimp.ops.sampling import sample_hops
from unimp.runs.experiment import run
from unimp.runs.loading import load_run
from unimp.tasks.labels import mask_of, reveal_only
from unimp.tasks.task import Task
from unimp.training.batching import BatchChanges, make_batches
from unimp.training.masks import Masks

NAMES = [name for name in MODELS if name != "label-propagation"]


@pytest.fixture(scope="module")
def task() -> Task:
    sizes = {"num_nodes": 80, "num_edges": 300, "num_classes": 3, "num_features": 5}
    return synthetic_task(**sizes, edge_features=2)


def model_of(name: str, task: Task, *settings: str) -> NodeModel:
    torch.manual_seed(0)
    small = ["model.width=4", "model.propagation_steps=3", f"model.name={name}", *settings]
    model = build_model(Recipe().with_settings(small).model, task.sizes)
    if isinstance(model, Trees):  # many trees from many labels depend on all inputs
        nodes = torch.arange(len(task.labels))
        known = KnownLabels(task.labels, nodes, nodes[:0], task.metric)
        model.solve(model.prepare(task.graph), known, seed=0)
    return model.double().eval()


def logits_of(model: NodeModel, task: Task, observed: Tensor, **options: Any) -> Tensor:
    return predict_logits(model.float(), model.prepare(task.graph), observed, **options)


@pytest.mark.parametrize("name", NAMES)
def test_chunks_of_layers_give_the_full_batch(name: str, task: Task) -> None:
    observed = reveal_only(task.split.train, task.labels)
    model = model_of(name, task)
    whole = logits_of(model, task, observed)
    assert whole.shape == (80, 3)
    torch.testing.assert_close(logits_of(model, task, observed, chunk_edges=23), whole)


@pytest.mark.parametrize("name", NAMES)
def test_exhaustive_neighbors_give_the_full_batch(name: str, task: Task) -> None:
    observed = reveal_only(task.split.train, task.labels)
    model = model_of(name, task).float()
    graph = model.prepare(task.graph)
    seeds = torch.tensor([7, 3, 60])
    nodes, hops = sample_hops(graph, seeds, [ALL] * model.num_layers, seed=0)
    with torch.no_grad():
        features = rows_of(model.features(graph, observed), nodes)
        part = model(features, observed[nodes], hops)
    whole = logits_of(model, task, observed)
    torch.testing.assert_close(part[: len(seeds)], whole[seeds], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_renumbering_the_nodes_permutes_the_logits(name: str, task: Task) -> None:
    order = torch.randperm(80, generator=torch.Generator().manual_seed(1))
    observed = reveal_only(task.split.train, task.labels)
    model = model_of(name, task)
    renumbered = task.graph.renumber(order)
    other = predict_logits(model.float(), model.prepare(renumbered), observed[order])
    torch.testing.assert_close(other, logits_of(model, task, observed)[order])


@pytest.mark.parametrize("name", NAMES)
def test_labels_influence_exactly_the_models_that_use_labels(name: str, task: Task) -> None:
    model = model_of(name, task)
    none = torch.full_like(task.labels, -1)
    moved = logits_of(model, task, reveal_only(task.split.train, task.labels))
    assert torch.equal(moved, logits_of(model, task, none)) == (not model.takes_labels)


@pytest.mark.parametrize("multilabel", [0, 4])
@pytest.mark.parametrize("name", NAMES)
def test_hidden_labels_influence_neither_logits_nor_regularizer(name: str, multilabel: int) -> None:
    sizes = {"num_nodes": 80, "num_edges": 300, "num_classes": 3, "num_features": 5}
    task = synthetic_task(**sizes, edge_features=2, multilabel_tasks=multilabel)
    model = model_of(name, task).float()
    graph = model.prepare(task.graph)
    masks = Masks(mask_of(task.split.train, 80), 0.5, redraw="epoch", seed=0)
    observed = masks.at(1, 0).observed

    def outputs(changed: Tensor) -> list[Tensor]:
        """The outputs of a training batch if the labels of some nodes are others."""
        others = 1 - task.labels.clamp(min=0) if multilabel else (task.labels + 1) % 3
        labels = torch.where(changed[:, None] if multilabel else changed, others, task.labels)
        layers = model.num_layers
        propagate = model.propagated if model.takes_propagated_labels else None
        batches = make_batches(
            graph,
            labels,
            masks,
            BatchOptions(regime="full", prune=False),
            num_layers=layers,
            changes=BatchChanges(propagate=propagate),
        )
        (batch,) = batches.epoch(1)
        given = (batch.x, batch.observed, batch.hops)
        with torch.no_grad():
            return [model(*given)] + (
                [model.regularizer(*given)] if model.regularizer_weight else []
            )

    before = outputs(torch.zeros(80, dtype=torch.bool))
    for one, other in zip(before, outputs(~observed), strict=True):
        assert torch.equal(one, other)
    same = all(map(torch.equal, before, outputs(observed)))
    assert same == (not model.learns_from_labels)


@pytest.mark.parametrize("inputs", ["X,A", "A,Y", "X,A,Y"])
@pytest.mark.parametrize("name", ["gcn", "gat"])
def test_only_the_chosen_inputs_influence_the_output(name: str, inputs: str, task: Task) -> None:
    model = model_of(name, task, f"model.inputs={inputs}")
    observed = reveal_only(task.split.train, task.labels)
    graph = model.prepare(task.graph)
    other = graph.with_features(graph.x + 1.0)  # type: ignore[operator]
    base = predict_logits(model.float(), graph, observed)
    assert torch.equal(predict_logits(model, other, observed), base) == ("X" not in inputs)
    none = torch.full_like(observed, -1)
    assert torch.equal(predict_logits(model, graph, none), base) == ("Y" not in inputs)


def test_the_gcn_layer_equals_pygs_gcnconv(task: Task) -> None:
    nn = pytest.importorskip("torch_geometric.nn", reason="parity needs torch_geometric")
    graph = task.graph.symmetrize()
    layer, theirs = GCNLayer(5, 7).double(), nn.GCNConv(5, 7).double()
    with torch.no_grad():
        torch.nn.init.normal_(layer.bias)
        theirs.lin.weight.copy_(layer.linear.weight)
        theirs.bias.copy_(layer.bias)
    h = graph.x.double()  # type: ignore[union-attr]
    loops = graph.without_self_loops().deduplicate()
    clean = with_convolution_weights(loops)
    torch.testing.assert_close(
        layer(h, clean.hop), theirs(h, loops.edge_index), rtol=1e-6, atol=1e-6
    )
    narrow, wide = GCNLayer(5, 3), GCNLayer(5, 9)  # summed after and before the product
    assert narrow(graph.x, clean.hop).shape == (80, 3)
    assert wide(graph.x, clean.hop).shape == (80, 9)


def test_sampled_neighbors_give_an_unbiased_estimate_of_a_convolution(task: Task) -> None:
    graph = with_convolution_weights(task.graph)
    h = torch.randn(80, 2, generator=torch.Generator().manual_seed(0))
    seeds = torch.arange(80)
    draws = []
    for seed in range(1500):
        nodes, (hop,) = sample_hops(graph, seeds, [2], seed=seed)
        draws.append(convolve(h[nodes], hop))
    mean, exact = torch.stack(draws).mean(0), convolve(h, graph.hop)
    error = torch.stack(draws).std(0) / len(draws) ** 0.5
    assert bool(((mean - exact).abs() <= 5 * error + 1e-5).all())


@pytest.mark.parametrize("concat", [True, False])
def test_the_gat_layer_equals_pygs_gatconv(concat: bool, task: Task) -> None:
    """The bias is added after the sum and does not enter the attention scores."""
    nn = pytest.importorskip("torch_geometric.nn", reason="parity needs torch_geometric")
    torch.manual_seed(0)
    layer = GATLayer(5, 4, heads=3, concat=concat).double()
    theirs = nn.GATConv(5, 4, 3, concat=concat, add_self_loops=False).double()
    with torch.no_grad():
        torch.nn.init.normal_(layer.bias)
        theirs.lin.weight.copy_(layer.value.weight)
        theirs.att_dst.copy_(layer.of_target[None])
        theirs.att_src.copy_(layer.of_source[None])
        theirs.bias.copy_(layer.bias)
    graph = task.graph
    h = graph.x.double()  # type: ignore[union-attr]
    expected, (_, weights) = theirs(h, graph.edge_index, return_attention_weights=True)
    torch.testing.assert_close(layer(h, graph.hop), expected)
    torch.testing.assert_close(layer.attention_weights(h, graph.hop), weights.detach())
    assert sum(p.numel() for p in layer.parameters()) == sum(p.numel() for p in theirs.parameters())


def test_appnp_is_personalized_pagerank_of_a_perceptron(task: Task) -> None:
    model = model_of("appnp", task, "model.teleport=0.2").float()
    graph = model.prepare(task.graph)
    loops = torch.zeros(80, 80, dtype=torch.float64)
    loops.index_put_((graph.target.long(), graph.source.long()), torch.ones(()).double(), True)
    spread = loops / (loops.sum(1, keepdim=True) * loops.sum(0)).sqrt()
    none = torch.full((80,), -1)
    start = model.embed(graph.x, none).detach().double()[:, :3]
    z = start
    for _ in range(3):
        z = 0.8 * spread @ z + 0.2 * start
    found = predict_logits(model, graph, none)
    torch.testing.assert_close(found, z.float(), rtol=1e-4, atol=1e-5)


def test_propagated_labels_are_probabilities_and_train_the_edge_weights(
    task: Task,
) -> None:
    model = model_of("gcn-lpa", task).float()
    graph = model.prepare(task.graph)
    observed = reveal_only(task.split.train[::2], task.labels)
    hops = [graph.hop] * model.num_layers
    spread = model.regularizer(graph.x, observed, hops)
    torch.testing.assert_close(spread.exp().sum(1), torch.ones(80), rtol=1e-3, atol=1e-3)
    even = model.regularizer(graph.x, torch.full_like(observed, -1), hops)
    torch.testing.assert_close(even.exp(), torch.full((80, 3), 1 / 3))
    (-spread.mean()).backward()
    grads = [p.grad for p in model.direction.parameters()]  # type: ignore[union-attr]
    assert any(grad is not None and bool((grad != 0).any()) for grad in grads)


def test_learned_edge_weights_are_bounded(task: Task) -> None:
    model = model_of("gcn-lpa", task).float()
    assert isinstance(model, GCNLPA)
    graph = model.prepare(task.graph)
    assert isinstance(graph.x, Tensor)
    with torch.no_grad():
        model.direction.weight.mul_(100.0)  # however far training goes
        weight = model.edge_weights(model.embed(graph.x, task.labels)[:, -KEY_WIDTH:], graph.hop)
    even = 1.0 / graph.in_degree[graph.target.long()].double()
    assert float((weight[:, 0] / even).min()) > math.exp(-2)
    sums = torch.zeros(80).index_add(0, graph.target.long(), weight[:, 0])
    torch.testing.assert_close(sums, torch.ones(80))


def test_binary_tasks_propagate_the_share_of_positives() -> None:
    sizes = {"num_nodes": 40, "num_edges": 160, "num_classes": 3, "num_features": 5}
    task = synthetic_task(**sizes, multilabel_tasks=4)
    model = model_of("gcn-lpa", task).float()
    graph = model.prepare(task.graph)
    hops = [graph.hop] * model.num_layers
    observed = torch.full((40, 4), -1, dtype=torch.int8)
    assert bool((model.regularizer(graph.x, observed, hops) == 0).all())  # as likely as not
    observed[::2] = task.labels[::2]
    observed[::2, 0], observed[::2, 1] = 1, 0  # all that arrives is 1, or 0
    share = torch.sigmoid(model.regularizer(graph.x, observed, hops)).detach()
    reached = share[:, 0] != 0.5
    assert bool(reached.any())
    torch.testing.assert_close(share[reached, 0], torch.ones(int(reached.sum())))
    assert float(share[reached, 1].max()) < 1e-5
    assert bool(((share >= 0) & (share <= 1)).all())


@pytest.mark.parametrize("multilabel", [0, 4])
@pytest.mark.parametrize("regime", ["full", "partition", "neighbors"])
@pytest.mark.parametrize("name", NAMES)
def test_every_model_trains_in_every_regime_and_can_be_loaded(
    name: str, regime: str, multilabel: int, tmp_path: Path
) -> None:
    sizes = {"num_nodes": 80, "num_edges": 300, "num_classes": 3, "num_features": 5}
    task = synthetic_task(**sizes, edge_features=2, multilabel_tasks=multilabel)
    save_npz(task, tmp_path / "task.npz")
    settings = [
        f"model.name={name}", f"batch.regime={regime}", "batch.parts=2", "batch.batch_size=16",
        "batch.fanout=[3]", "model.width=4", "model.propagation_steps=2", "train.epochs=2",
        "train.device=cpu",
    ]  # fmt: skip
    done = run(load_recipe(str(tmp_path / "task.npz"), settings), out=tmp_path / "run")
    assert not done.metrics["failed"]
    again = load_run(tmp_path / "run", device="cpu")
    assert torch.equal(again.predict(), done.predict())


def test_a_convolution_in_bf16_does_not_round_its_weights() -> None:
    """A hub of 2,000 in-edges: weights rounded to bf16 would all be wrong by the same factor."""
    leaves = torch.arange(1, 2001)
    hub = torch.zeros(2000, dtype=torch.int64)
    graph = Graph.from_edges(torch.stack((leaves, hub)), num_nodes=2001)
    hop = with_convolution_weights(graph).hop
    ones = torch.ones(2001, 1)
    exact = convolve(ones, hop)
    rough = convolve(ones.bfloat16(), hop).float()
    torch.testing.assert_close(rough[0], exact[0], rtol=4e-3, atol=0)
    assert hop.edge_attr is not None
    assert float((hop.edge_attr.bfloat16().float() / hop.edge_attr - 1).abs().max()) > 1e-4


@pytest.mark.parametrize("name", NAMES)
def test_bf16_is_close_to_single_precision(name: str, task: Task) -> None:
    observed = reveal_only(task.split.train, task.labels)
    model = model_of(name, task)
    exact = logits_of(model, task, observed)
    rough = logits_of(model, task, observed, precision="bf16")
    assert rough.dtype == torch.float32
    torch.testing.assert_close(rough, exact, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "trees"])  # no gradients
def test_int64_hops_train_as_int32_hops_do(name: str, task: Task) -> None:
    model = model_of(name, task).float()
    graph = model.prepare(task.graph)
    observed = reveal_only(task.split.train, task.labels)
    hop = graph.hop
    long = Hop(hop.indptr.long(), hop.source.long(), hop.num_sources, hop.edge_attr)
    found = []
    for one in (hop, long):
        model.zero_grad()
        x = model.features(graph, observed)
        model(x, observed, [one] * model.num_layers).square().sum().backward()
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert len(found[0]) > 0
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
