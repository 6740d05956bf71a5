"""Norms of hidden layers: layer, batch and none, in every model that has hidden layers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unimp.config.choices import ALL
from unimp.config.options import BatchOptions
from unimp.config.recipe import Recipe, load_recipe
from unimp.data.npz import save_npz
from unimp.data.synthetic import synthetic_task
from unimp.inference.logits import predict_logits
from unimp.model.layers import BatchNorm
from unimp.model.masked_labels import MaskedLabels
from unimp.model.mlp import MLP
from unimp.model.node_model import NodeModel
from unimp.model.registry import build_model
from unimp.model.unimp import UniMP
from unimp.ops.sampling import sample_hops
from unimp.runs.experiment import run
from unimp.runs.loading import load_run
from unimp.tasks.labels import reveal_only
from unimp.tasks.task import Task
from unimp.training.batching import make_batches
from unimp.training.masks import Masks

NAMES = ["unimp", "gcn", "gat", "sage", "mlp", "appnp", "gcn-lpa"]
NORMS = ["layer", "batch", "none"]


@pytest.fixture(scope="module")
def task() -> Task:
    sizes = {"num_nodes": 80, "num_edges": 300, "num_classes": 3, "num_features": 5}
    return synthetic_task(**sizes, edge_features=2)


def model_of(name: str, norm: str, task: Task, *settings: str) -> NodeModel:
    """A model whose running statistics are not those of a fresh one."""
    torch.manual_seed(0)
    small = ["model.width=4", "model.propagation_steps=3", f"model.name={name}"]
    recipe = Recipe().with_settings([*small, f"model.norm={norm}", *settings])
    model = build_model(recipe.model, task.sizes)
    for module in model.modules():
        if isinstance(module, BatchNorm):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
    return model.eval()


def observed_of(task: Task) -> Tensor:
    return reveal_only(task.split.train, task.labels)


def logits_of(model: NodeModel, task: Task, **options: Any) -> Tensor:
    return predict_logits(model, model.prepare(task.graph), observed_of(task), **options)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", NAMES)
def test_the_norm_changes_the_logits_but_not_that_regimes_agree(
    name: str, norm: str, task: Task
) -> None:
    model = model_of(name, norm, task)
    whole = logits_of(model, task)
    others = [logits_of(model_of(name, other, task), task) for other in NORMS if other != norm]
    assert not any(torch.allclose(other, whole) for other in others)
    torch.testing.assert_close(logits_of(model, task, chunk_edges=23), whole, rtol=1e-4, atol=1e-5)
    graph = model.prepare(task.graph)
    seeds = torch.tensor([7, 3, 60])
    nodes, hops = sample_hops(graph, seeds, [ALL] * model.num_layers, seed=0)
    with torch.no_grad():
        part = model(graph.x[nodes], observed_of(task)[nodes], hops)  # type: ignore[index]
    torch.testing.assert_close(part[: len(seeds)], whole[seeds], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", NAMES)
def test_in_training_rows_interact_exactly_if_the_model_states_it(
    name: str, norm: str, task: Task
) -> None:
    settings = ("model.dropout=0", "model.input_dropout=0", "model.propagation_steps=1")
    model = model_of(name, norm, task, *settings, "model.layers=2").train()
    graph = model.prepare(task.graph)
    known = torch.zeros(80, dtype=torch.bool)
    known[task.split.train] = True
    masks = Masks(known, 0.5, redraw="run", seed=0)
    hidden = masks.at(1, 0).hidden
    found = []
    for prune in (False, True):
        batches = make_batches(
            graph,
            task.labels,
            masks,
            BatchOptions(regime="full", prune=prune),
            num_layers=model.num_layers,
        )
        (batch,) = batches.epoch(1)
        with torch.no_grad():
            found.append(model(batch.x, batch.observed, batch.hops)[batch.hidden])
    assert len(found[0]) == int(hidden.sum())
    assert torch.allclose(*found, rtol=1e-4, atol=1e-5) == (not model.mixes_rows)
    assert model.mixes_rows == (norm == "batch")


def test_a_wrapped_model_mixes_rows_as_the_model_does(task: Task) -> None:
    sizes = task.sizes.with_width(8)
    assert MaskedLabels(MLP(sizes, norm="batch"), task.sizes, width=8, inputs="X").mixes_rows
    assert not MaskedLabels(MLP(sizes), task.sizes, width=8, inputs="X").mixes_rows


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("residual", ["none", "simple", "gated"])
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_a_hidden_layer_is_layer_then_norm_then_relu(
    backend: Any, residual: Any, norm: Any, task: Task
) -> None:
    """Whether the steps are fused or not; the last layer of a linear head is also a hidden one."""
    torch.manual_seed(0)
    options: dict[str, Any] = {"residual": residual, "gate": "all", "head": "linear"}
    model = UniMP(task.sizes, layers=2, width=4, norm=norm, backend=backend, **options).eval()
    graph = task.graph
    with torch.no_grad():
        h = model.embed(graph.x, observed_of(task))
        for index in range(2):
            expected = F.relu(model.norms[index](model.layers[index](h, graph.hop)))
            h = model.propagate(h, graph.hop, index)
            torch.testing.assert_close(h, expected)
        assert bool((h == 0).any())
        assert isinstance(model.head, nn.Linear)
        torch.testing.assert_close(model.read_out(h), model.head(h))


def test_the_last_layer_of_a_linear_head_is_followed_by_dropout(task: Task) -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = {"layers": 1, "width": 32, "input_dropout": 0.0, "head": "linear"}
    model = UniMP(task.sizes, dropout=0.5, **options).train()
    h = model.embed(task.graph.x, observed_of(task))
    dropped = (model.propagate(h, task.graph.hop, 0) == 0).double().mean()
    assert dropped - (model.eval().propagate(h, task.graph.hop, 0) == 0).double().mean() > 0.15


def test_a_batch_of_one_row_uses_the_running_statistics() -> None:
    norm = BatchNorm(3)
    assert norm.running_mean is not None
    norm.running_mean.fill_(2.0)
    row = torch.tensor([[1.0, 2.0, 3.0]])
    expected = norm.eval()(row)
    torch.testing.assert_close(norm.train()(row), expected)
    torch.testing.assert_close(norm.running_mean, torch.full((3,), 2.0))


@pytest.mark.parametrize("norm", ["batch", "none"])
@pytest.mark.parametrize("name", NAMES)
def test_bf16_is_close_to_single_precision(name: str, norm: str, task: Task) -> None:
    model = model_of(name, norm, task)
    exact, rough = (logits_of(model, task, precision=p) for p in ("fp32", "bf16"))
    scale = float(exact.abs().max())
    torch.testing.assert_close(rough, exact, rtol=0.1, atol=0.05 * scale)


@pytest.mark.parametrize("regime", ["full", "partition", "neighbors"])
@pytest.mark.parametrize("norm", ["batch", "none"])
@pytest.mark.parametrize("name", NAMES)
def test_every_regime_trains_and_can_be_loaded(
    name: str, norm: str, regime: str, task: Task, tmp_path: Path
) -> None:
    save_npz(task, tmp_path / "task.npz")
    settings = [
        f"model.name={name}", f"model.norm={norm}", f"batch.regime={regime}", "batch.parts=2",
        "batch.batch_size=5", "batch.fanout=[2]", "model.width=4", "model.propagation_steps=2",
        "model.edge_dropout=0.3", "train.epochs=2", "train.device=cpu", "model.head=linear",
    ]  # fmt: skip
    done = run(load_recipe(str(tmp_path / "task.npz"), settings), out=tmp_path / "run")
    assert not done.metrics["failed"]
    again = load_run(tmp_path / "run", device="cpu")
    assert torch.equal(again.predict(), done.predict())


@pytest.mark.parametrize("name", ["unimp", "gcn", "gat", "sage"])
def test_fifteen_layers_with_a_batch_norm_and_a_residual_learn(name: str, tmp_path: Path) -> None:
    sizes = {"num_nodes": 300, "num_edges": 1500, "num_classes": 3, "num_features": 20}
    task = synthetic_task(**sizes, homophily=0.9, split_shares=(0.6, 0.2, 0.2))
    save_npz(task, tmp_path / "task.npz")
    settings = [
        f"model.name={name}", "model.norm=batch", "model.residual=simple", "model.layers=15",
        "model.head=linear", "model.width=32", "model.dropout=0", "train.epochs=40",
        "train.lr=3e-3", "train.device=cpu", "train.eval_every=10",
    ]  # fmt: skip
    losses: list[float] = []
    done = run(
        load_recipe(str(tmp_path / "task.npz"), settings),
        on_epoch=lambda epoch: losses.append(epoch.loss),
    )
    assert not done.metrics["failed"]
    assert sum(losses[-5:]) < 0.3 * sum(losses[:5])  # with LayerNorm it hardly falls
    assert done.metrics["scores"]["train"]["val"] > 0.5  # chance is a third
