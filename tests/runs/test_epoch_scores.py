"""Scores of epochs on validation nodes alone."""

from typing import Any

import pytest

from unimp.config.recipe import Recipe
from unimp.data.synthetic import synthetic_task
from unimp.runs.experiment import run
from unimp.training.loop import Epoch

SETTINGS: dict[str, Any] = {
    "task.name": "synthetic",
    "task.scale": 0.05,
    "model.width": 8,
    "train.epochs": 6,
    "train.eval_every": 2,
    "train.device": "cpu",
}


def epochs_of(**settings: Any) -> tuple[list[Epoch], dict[str, float]]:
    """The epochs of a training, and the scores after it."""
    epochs: list[Epoch] = []
    done = run(Recipe(name="small").with_settings({**SETTINGS, **settings}), on_epoch=epochs.append)
    return epochs, done.metrics["scores"]["train"]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"model.propagated_labels": True, "train.select": "loss"},
        {"model.name": "gcn", "model.norm": "batch"},
        {"model.name": "gat"},
        {"model.name": "mlp"},
        {"model.name": "appnp"},
        {"task.name": "synthetic", "batch.regime": "partition", "batch.parts": 2},
        {"batch.regime": "neighbors", "batch.fanout": [3]},
        {"batch.regime": "neighbors", "batch.fanout": [3], "train.eval_neighbors": "sampled"},
    ],
    ids=str,
)
def test_scoring_only_validation_nodes_does_not_change_training_or_final_scores(
    settings: dict[str, Any],
) -> None:
    every, final = epochs_of(**settings)
    alone, same = epochs_of(**settings, **{"train.eval_nodes": "val"})
    assert [epoch.loss for epoch in alone] == [epoch.loss for epoch in every]
    assert final == same
    for one, other in zip(alone, every, strict=True):
        expected = dict(other.scores or {})
        expected.pop("test", None)
        assert dict(one.scores or {}) == pytest.approx(expected)
    assert sum(epoch.scores is not None for epoch in alone) == 4


def test_without_validation_labels_the_scored_nodes_do_not_matter() -> None:
    task = synthetic_task(
        num_nodes=100, num_edges=300, num_classes=3, num_features=4, split_shares=(0.5, 0.0, 0.5)
    )
    options = {name: value for name, value in SETTINGS.items() if not name.startswith("task.")}
    found = []
    for nodes in ("all", "val"):
        epochs: list[Epoch] = []
        done = run(task, settings={**options, "train.eval_nodes": nodes}, on_epoch=epochs.append)
        found.append(([epoch.loss for epoch in epochs], done.metrics["scores"]))
    assert found[0] == found[1]
