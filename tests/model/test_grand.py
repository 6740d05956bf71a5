"""GRAND: random propagation, the perceptron after it, and training with consistency."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import scipy.sparse as sp
import torch
from torch import Tensor

from unimp.config.recipe import Recipe
from unimp.data.synthetic import synthetic_task
from unimp.errors import ModelError
from unimp.graph.graph import Graph
from unimp.inference.logits import predict_logits
from unimp.model.gcn import convolve
from unimp.model.grand import GRAND
from unimp.model.registry import build_model
from unimp.runs.experiment import run
from unimp.tasks.task import Sizes, Split, Task

Maker = Callable[..., Graph]
SIZES = Sizes(features=6, edge_features=0, classes=4, multilabel=False)
NONE = torch.full((30,), -1)
CONSISTENT = ["train.samples=2", "train.consistency=1"]


def some_model(**options: Any) -> GRAND:
    torch.manual_seed(0)
    return GRAND(SIZES, **{"width": 8, "steps": 3, **options})


def dense_logits(model: GRAND, graph: Graph, x: Tensor) -> Tensor:
    """The equation with dense matrices, in double precision and without dropout."""
    edges = torch.zeros(graph.num_nodes, graph.num_nodes, dtype=torch.float64)
    ends = (graph.target.long(), graph.source.long())
    edges.index_put_(ends, torch.ones((), dtype=torch.float64), accumulate=True)
    spread = edges / (edges.sum(1, keepdim=True) * edges.sum(0)).sqrt()
    rows = x.double()
    total = rows
    for _ in range(model.num_layers):
        rows = spread @ rows
        total = total + rows
    weights = (p.detach().double() for p in model.parameters())
    w1, b1, w2, b2 = weights
    hidden = torch.relu(total / (model.num_layers + 1) @ w1.T + b1)
    return hidden @ w2.T + b2


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_without_drops_grand_is_its_equation(
    random_graph: Maker, steps: int, training: bool
) -> None:
    model = some_model(steps=steps, drop_node=0.0, input_dropout=0.0, dropout=0.0).train(training)
    graph = model.prepare(random_graph(features=6))
    assert isinstance(graph.x, Tensor)
    found = model(graph.x, NONE, [graph.hop] * steps)
    torch.testing.assert_close(found.double(), dense_logits(model, graph, graph.x))


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_propagated_features_are_the_equation_of_the_authors(
    random_graph: Maker, norm: str
) -> None:
    """Rows are propagated first; the norm and the dropout of the inputs follow."""
    model = some_model(propagated_rows="features", norm=norm, drop_node=0.0).eval()
    if norm == "batch":  # statistics that are not those of a new layer
        model.input_norm.running_mean.add_(0.3)  # type: ignore[operator, union-attr]
        model.input_norm.running_var.mul_(4.0)  # type: ignore[operator, union-attr]
    graph = model.prepare(random_graph(features=6))
    assert isinstance(graph.x, Tensor)
    rows = graph.x
    total = rows
    for _ in range(3):
        rows = convolve(rows, graph.hop)
        total = total + rows
    expected = model.head(model.norm(torch.relu(model.encoder(model.input_norm(total / 4)))))
    found = model(graph.x, NONE, [graph.hop] * 3)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("mixed", [False, True], ids=["fp32", "bf16"])
def test_features_are_propagated_in_training_as_in_inference(
    random_graph: Maker, mixed: bool
) -> None:
    options = {"drop_node": 0.0, "input_dropout": 0.0, "dropout": 0.0}
    model = some_model(propagated_rows="features", **options)
    graph = model.prepare(random_graph(features=6))
    assert isinstance(graph.x, Tensor)
    before, expected = graph.x.clone(), model.eval()(graph.x, NONE, [graph.hop] * 3)
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        found = model.train()(graph.x, NONE, [graph.hop] * 3)
    allowed = {"rtol": 0.05, "atol": 0.05} if mixed else {}
    torch.testing.assert_close(found.float(), expected, **allowed)
    assert torch.equal(graph.x, before)  # rows are written in place, but not those of the graph


def test_sparse_features_are_made_dense_to_be_propagated(random_graph: Maker) -> None:
    graph = random_graph(features=6)
    assert isinstance(graph.x, Tensor)
    sparse = graph.with_features(sp.csr_array(graph.x.numpy()))
    model = some_model(propagated_rows="features").eval()
    found = [model(g.x, NONE, [g.hop] * 3) for g in map(model.prepare, (graph, sparse))]
    assert torch.equal(*found)


def test_without_edges_grand_is_a_perceptron() -> None:
    x = torch.randn(30, 6, generator=torch.Generator().manual_seed(0))
    model, without = some_model(steps=3).eval(), some_model(steps=0).eval()
    graph = model.prepare(Graph.from_edges(torch.empty(2, 0, dtype=torch.int64), x=x))
    found = predict_logits(model, graph, NONE)
    torch.testing.assert_close(found, without(x, NONE, []).detach())
    hidden = torch.relu(without.encoder(x))
    torch.testing.assert_close(found, without.head(hidden).detach())


def test_dropped_nodes_lose_all_features_and_the_mean_stays(random_graph: Maker) -> None:
    model = some_model(drop_node=0.3, input_dropout=0.0)
    x = random_graph(features=6).x
    whole = model.eval().embed(x, NONE)
    model.train()
    draws = torch.stack([model.embed(x, NONE) for _ in range(4000)]).detach()
    dropped = (draws == 0).all(-1)
    assert bool(((draws == 0).any(-1) == dropped).all())  # a node is dropped as a whole
    assert float(dropped.float().mean()) == pytest.approx(0.3, abs=0.01)
    torch.testing.assert_close(draws[0][~dropped[0]], whole[~dropped[0]] / 0.7)
    torch.testing.assert_close(draws.mean(0), whole, rtol=0.05, atol=0.05)


def test_features_are_dropped_before_the_first_weights(random_graph: Maker) -> None:
    model = some_model(drop_node=0.0, input_dropout=0.5)
    x = random_graph(features=6).x
    whole = model.eval().embed(x, NONE)
    model.train()
    draws = torch.stack([model.embed(x, NONE) for _ in range(4000)]).detach()
    assert not torch.equal(draws[0], draws[1])
    torch.testing.assert_close(draws.mean(0), whole, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("norm", ["none", "layer", "batch"])
@pytest.mark.parametrize("training", [False, True])
def test_sparse_features_give_the_logits_and_gradients_of_dense_ones(
    random_graph: Maker, training: bool, norm: str
) -> None:
    """If all entries are stored, dropout also draws the same numbers."""
    graph = random_graph(features=6)
    assert isinstance(graph.x, Tensor)
    sparse = graph.with_features(sp.csr_array(graph.x.numpy()))
    found = []
    for given in (graph, sparse):
        model = some_model(input_dropout=0.3, norm=norm).train(training)
        placed = model.prepare(given)
        torch.manual_seed(1)
        logits = model(placed.x, NONE, [placed.hop] * 3)
        logits.square().sum().backward()
        found.append([logits, *(p.grad for p in model.parameters())])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


def test_a_batch_norm_depends_on_other_rows_in_training_only(random_graph: Maker) -> None:
    model = some_model(norm="batch", steps=0, drop_node=0.0, input_dropout=0.0, dropout=0.0)
    x = random_graph(features=6).x
    other = torch.cat((x[:15], x[15:] * 3))  # type: ignore[index]
    assert model.mixes_rows
    assert not torch.allclose(model(x, NONE, [])[:15], model(other, NONE, [])[:15])
    model.eval()
    assert torch.equal(model(x, NONE, [])[:15], model(other, NONE, [])[:15])


def test_the_norm_of_grand_is_none_unless_it_is_set() -> None:
    def norm_of(*settings: str) -> str:
        recipe = Recipe().with_settings(["model.name=grand", *settings])
        return type(build_model(recipe.model, SIZES).norm).__name__

    assert norm_of() == "Identity"
    assert norm_of("model.norm=layer") == "LayerNorm"
    assert norm_of("model.norm=batch") == "BatchNorm"


def test_a_task_without_features_is_refused() -> None:
    with pytest.raises(ModelError, match="GRAND needs node features"):
        GRAND(replace(SIZES, features=0))


def small_task(**options: Any) -> Task:
    sizes = {"num_nodes": 200, "num_edges": 800, "num_classes": 3, "num_features": 8}
    return synthetic_task(**{**sizes, **options})


def trained(task: Task, *settings: str, epochs: int = 6) -> list[Tensor]:
    """The weights after the last epoch, which is the only one that is scored."""
    fixed = [
        "model.heads=1", "model.width=8", "model.layers=2", "model.propagation_steps=2",
        f"train.epochs={epochs}", f"train.eval_from={epochs}", "train.lr=0.01", "batch.parts=2",
        "batch.batch_size=16", "batch.fanout=[3]", "train.device=cpu",
    ]  # fmt: skip
    done = run(task, settings=[*fixed, *settings])
    return [p.detach() for p in done.model.parameters()]


def equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("multilabel", [0, 4])
@pytest.mark.parametrize("regime", ["full", "partition", "neighbors"])
@pytest.mark.parametrize("name", ["grand", "unimp"])
def test_labels_of_val_and_test_never_reach_training_with_consistency(
    name: str, regime: str, multilabel: int
) -> None:
    task = small_task(multilabel_tasks=multilabel)
    labels = task.labels.clone()
    unseen = torch.cat((task.split.val, task.split.test))
    labels[unseen] = labels[unseen.roll(1)]
    assert not torch.equal(labels, task.labels)
    settings = [f"model.name={name}", f"batch.regime={regime}", *CONSISTENT]
    expected = trained(task, *settings)
    assert equal(trained(replace(task, labels=labels), *settings), expected)
    labels = task.labels.clone()
    labels[task.split.train] = labels[task.split.train.roll(1)]
    assert not equal(trained(replace(task, labels=labels), *settings), expected)


@pytest.mark.parametrize("prune", ["true", "false"])
def test_consistency_covers_nodes_without_known_labels(prune: str) -> None:
    """A node that no path connects to a known label changes the weights only with consistency."""
    task = small_task(num_edges=200)
    x = task.graph.x
    assert isinstance(x, Tensor)
    graph = Graph.from_edges(task.graph.edge_index, num_nodes=200, x=x)
    reached = torch.zeros(200, dtype=torch.bool)
    reached[task.split.train] = True
    for _ in range(3):
        reached[graph.source[reached[graph.target.long()]].long()] = True
    alone = int(torch.nonzero(~reached)[0])
    other_x = x.clone()
    other_x[alone] += 1.0
    one = replace(task, graph=graph)
    other = replace(task, graph=graph.with_features(other_x))
    settings = ["model.name=grand", f"batch.prune={prune}"]
    assert equal(trained(one, *settings), trained(other, *settings))
    assert not equal(trained(one, *settings, *CONSISTENT), trained(other, *settings, *CONSISTENT))


def test_several_passes_and_consistency_change_training() -> None:
    task = small_task()
    found = [
        trained(task, "model.name=grand", "batch.prune=false", *more)
        for more in (
            [],
            ["train.samples=2"],
            CONSISTENT,
            [*CONSISTENT, "train.sharpening=0.2"],
            [*CONSISTENT, "train.consistency_warmup=0"],
        )
    ]
    assert not any(equal(found[i], found[j]) for i in range(5) for j in range(i))


def test_consistency_makes_predictions_confident_and_equal() -> None:
    """Without it, a mean of few labels leaves the other nodes undecided."""
    task = small_task()

    def disagreement(*more: str) -> float:
        settings = ["model.name=grand", "batch.prune=false", "train.samples=4", *more]
        fixed = ["model.heads=1", "model.width=16", "model.propagation_steps=2", "train.lr=0.01"]
        done = run(task, settings=[*fixed, *settings, "train.epochs=60", "train.device=cpu"])
        model, graph = done.model.train(), done.model.prepare(task.graph)
        hops, none = [graph.hop] * 2, torch.full((200,), -1)
        with torch.no_grad():
            draws = torch.stack([model(graph.x, none, hops).softmax(-1) for _ in range(20)])
        return float(draws.var(0).sum(-1).mean() / draws.mean(0).amax(-1).mean())

    consistent = disagreement("train.consistency=10", "train.consistency_warmup=0")
    assert consistent < 0.7 * disagreement()


def task_of_words(seed: int) -> Task:
    """A graph of documents with many words per row, so that a new model is confident by chance."""
    draw, nodes = torch.Generator().manual_seed(seed), 600
    labels = torch.randint(6, (nodes,), generator=draw)
    preferred = torch.rand(6, 800, generator=draw) < 0.25
    chance = torch.where(preferred[labels], 0.13, 0.1)
    x = (torch.rand(nodes, 800, generator=draw) < chance).float()
    is_like = labels[:, None] == labels
    joined = torch.rand(nodes, nodes, generator=draw) < torch.where(is_like, 0.02, 0.002)
    edges = torch.nonzero(joined).t().contiguous()
    graph = Graph.from_edges(edges, num_nodes=nodes, x=x).symmetrize()
    split = Split(*torch.randperm(nodes, generator=draw).split([36, 64, 500]))
    return Task("words", graph, labels, split, "accuracy", 6)


def test_with_a_warm_up_random_predictions_do_not_become_targets() -> None:
    fixed = ["model.heads=1", "model.width=16", "model.propagation_steps=2", "train.lr=0.01"]
    fixed += ["train.samples=2", "train.consistency=0.7", "train.sharpening=0.3"]
    fixed += ["model.name=grand", "train.epochs=150", "train.device=cpu"]

    def accuracy(seed: int, warmup: int) -> float:
        settings = [*fixed, f"train.consistency_warmup={warmup}"]
        done = run(task_of_words(seed), seed=seed, settings=settings)
        return float(done.metrics["scores"]["train"]["test"])

    gains = [accuracy(seed, 100) - accuracy(seed, 0) for seed in range(3)]
    assert sum(gains) / 3 > 0.05
