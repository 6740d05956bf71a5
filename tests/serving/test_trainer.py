"""Training again on the labels of the service."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_runs import table_run

from unimp.runs.run import Run
from unimp.serving.engine.applied import Applied
from unimp.serving.events import Label, Retraction
from unimp.serving.store import Store
from unimp.serving.trainer import gate, task_now
from unimp.tasks.labels import is_known


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return table_run(tmp_path_factory.mktemp("tables"))


def test_new_labels_are_learned_and_retracted_ones_are_not(run: Run, tmp_path: Path) -> None:
    names = run.task.node_names or ()
    gone = int(run.task.split.train[0])
    with Store(tmp_path) as store:
        store.people.add("admin", "admin")
        for n in range(0, 20, 2):
            store.write("admin", Label(node=f"n{n}", label="red"))
        store.write("admin", Retraction(node=names[gone]))
        applied = Applied(run, store.reader)
        applied.apply()
    task = task_now(applied)
    parts = (task.split.train, task.split.val, task.split.test)
    assert len(torch.cat(parts)) == len(torch.unique(torch.cat(parts)))
    assert bool(is_known(task.labels[torch.cat(parts)]).all())
    assert gone not in torch.cat(parts)
    assert len(task.split.train) == len(run.task.split.train) - 1 + 8
    assert len(task.split.val) == len(run.task.split.val) + 2


def test_a_worse_model_is_refused(run: Run) -> None:
    def with_score(value: float) -> Run:
        return replace(run, metrics={**run.metrics, "scores": {"train": {"val": value}}})

    now = run.evaluate("train")["val"]
    assert gate(run, with_score(now))[0]
    assert not gate(run, with_score(now - 0.1))[0]
    failed = replace(run, metrics={**run.metrics, "failed": True, "stopped": "NaN", "epochs": 0})
    assert not gate(run, failed)[0]
