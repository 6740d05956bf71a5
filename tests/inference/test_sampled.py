"""Scores from sampled neighbors, for training on large graphs."""

import pytest
import torch

from unimp.config.choices import ALL
from unimp.config.recipe import Recipe
from unimp.errors import NonFiniteError
from unimp.inference.logits import predict_logits
from unimp.inference.sampled import Surroundings, sampled_logits
from unimp.model.registry import build_model
from unimp.runs.experiment import run
from unimp.runs.preparation import task_of
from unimp.tasks.labels import reveal_only
from unimp.training.loop import Epoch

RECIPE = Recipe(name="small").with_settings(
    {
        "task.name": "synthetic",
        "task.scale": 0.05,
        "model.width": 8,
        "train.epochs": 3,
        "train.device": "cpu",
        "batch.regime": "neighbors",
        "batch.fanout": [3],
    }
)


@pytest.mark.parametrize("settings", [{}, {"model.name": "gcn"}, {"model.propagated_labels": True}])
def test_all_neighbors_give_the_exact_logits(settings: dict[str, object]) -> None:
    recipe = RECIPE.with_settings(settings)
    task = task_of(recipe, 0)
    torch.manual_seed(0)
    model = build_model(recipe.model, task.sizes)
    graph = model.prepare(task.graph)
    observed, nodes = reveal_only(task.split.train, task.labels), task.split.val
    found = sampled_logits(
        model, graph, observed, nodes, fanout=[ALL] * model.num_layers, batch_size=7, seed=0
    )
    torch.testing.assert_close(found, predict_logits(model, graph, observed)[nodes])
    cut = Surroundings.exact(model, graph, observed, nodes)
    torch.testing.assert_close(cut.logits(model, "cpu", "fp32"), found)


def test_epochs_are_scored_with_sampled_neighbors_and_the_run_exactly() -> None:
    sampled: list[Epoch] = []
    exact: list[Epoch] = []
    options = {"train.eval_neighbors": "sampled", "train.select": "loss"}
    done = run(RECIPE.with_settings(options), on_epoch=sampled.append)
    run(RECIPE, on_epoch=exact.append)
    assert all(epoch.scores and "val_loss" in epoch.scores for epoch in sampled)
    assert [epoch.loss for epoch in sampled] == [epoch.loss for epoch in exact]
    task, observed = done.task, done.observed_labels(reveal="train")
    right = (done.outputs(observed).argmax(1) == task.labels)[task.split.test]
    assert done.evaluate()["test"] == pytest.approx(float(right.double().mean()))


def test_scores_that_are_not_finite_are_refused() -> None:
    task = task_of(RECIPE, 0)
    model = build_model(RECIPE.model, task.sizes)
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    observed = reveal_only(task.split.train, task.labels)
    with pytest.raises(NonFiniteError, match=f"such as those of node {task.split.val[0]},") as bad:
        sampled_logits(
            model,
            task.graph,
            observed,
            task.split.val,
            fanout=[2] * model.num_layers,
            batch_size=50,
            seed=0,
        )
    assert bad.value.nodes == task.split.val.tolist()
