"""Options of training as a run uses them: selection by loss, averages, dropped edges, leaks."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from unimp.data.synthetic import synthetic_task
from unimp.runs.experiment import run
from unimp.runs.run import Run
from unimp.tasks.labels import reveal_only
from unimp.tasks.task import Task
from unimp.training.batching import make_batches
from unimp.training.objective import masked_label_loss

SETTINGS = [
    "model.width=4", "model.layers=2", "train.epochs=6", "train.lr=0.02", "train.device=cpu",
    "batch.regime=full",
]  # fmt: skip


def some_task(**options: Any) -> Task:
    sizes: dict[str, Any] = {
        "num_nodes": 120,
        "num_edges": 400,
        "num_classes": 3,
        "num_features": 5,
    }
    return synthetic_task(**{**sizes, "split_shares": (0.4, 0.3, 0.3), **options})


def trained(task: Task, *settings: str, **options: Any) -> Run:
    return run(task, settings=[*SETTINGS, *settings], **options)


@pytest.mark.parametrize("multilabel", [0, 3])
def test_the_validation_loss_is_recorded_and_chooses_the_epoch(
    multilabel: int, tmp_path: Path
) -> None:
    task = some_task(multilabel_tasks=multilabel, missing_share=0.2 if multilabel else 0.0)
    done = trained(task, "train.select=loss", out=tmp_path / "run")
    lines = (tmp_path / "run" / "history.jsonl").read_text().splitlines()
    recorded = [json.loads(line)["val_loss"] for line in lines]
    assert len(set(recorded)) == 6
    assert done.metrics["best_epoch"] == 1 + recorded.index(min(recorded))
    logits = done.outputs(reveal_only(task.split.train, task.labels))
    found = masked_label_loss(logits, task.labels, task.split.val).item()
    assert found == pytest.approx(min(recorded), rel=1e-5)


def test_by_default_no_validation_loss_is_computed(tmp_path: Path) -> None:
    trained(some_task(), out=tmp_path / "run")
    assert "val_loss" not in (tmp_path / "run" / "history.jsonl").read_text()


def test_selection_by_loss_without_validation_labels_keeps_the_last_epoch() -> None:
    done = trained(some_task(split_shares=(0.5, 0.0, 0.5)), "train.select=loss")
    assert done.metrics["best_epoch"] == 6


@pytest.mark.parametrize(
    "settings",
    [
        ["train.select=loss", "model.norm=batch"],
        ["train.ema=0.9", "train.schedule=cosine"],
        ["model.edge_dropout=0.4", "model.name=sage"],
        ["model.norm=none", "model.head=linear"],
    ],
    ids=" ".join,
)
def test_test_labels_change_neither_weights_nor_predictions(settings: list[str]) -> None:
    task = some_task()
    labels = task.labels.clone()
    labels[task.split.test] = (labels[task.split.test] + 1) % 3
    one, other = (trained(t, *settings) for t in (task, replace(task, labels=labels)))
    assert one.metrics["best_epoch"] == other.metrics["best_epoch"]
    states = zip(one.model.state_dict().values(), other.model.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in states)
    given = reveal_only(task.split.train, task.labels)
    assert torch.equal(one.outputs(given), other.outputs(given))
    changed = task.labels.clone()
    changed[task.split.train] = (changed[task.split.train] + 1) % 3
    third = trained(replace(task, labels=changed), *settings)
    assert not torch.equal(third.outputs(given), one.outputs(given))  # train labels do count


@pytest.mark.parametrize(
    "setting",
    ["train.ema=0.5", "train.schedule=cosine", "model.edge_dropout=0.3", "model.norm=batch"],
)
def test_each_option_changes_the_result_and_repeats_with_the_seed(setting: str) -> None:
    task = some_task()
    given = reveal_only(task.split.train, task.labels)
    plain, one, again = (trained(task, *s).outputs(given) for s in ([], [setting], [setting]))
    assert torch.equal(one, again)
    assert not torch.equal(one, plain)


def test_a_full_batch_is_pruned_unless_it_is_small_or_rows_interact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pruned: list[bool] = []

    def noted(*arguments: Any, **options: Any) -> Any:
        pruned.append(arguments[3].prune)
        return make_batches(*arguments, **options)

    monkeypatch.setattr("unimp.runs.fitting.make_batches", noted)
    trained(some_task(), "train.epochs=1")  # a small graph
    monkeypatch.setattr("unimp.runs.preparation.SMALL_GRAPH", 0)
    for norm in ("layer", "none", "batch"):
        trained(some_task(), f"model.norm={norm}", "train.epochs=1")
    assert pruned == [False, True, True, False]
