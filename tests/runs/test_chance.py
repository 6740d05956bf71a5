"""Permuted labels teach nothing: whatever learned from them must score at the level of chance.

A leak of hidden labels anywhere between the members and the student would raise these scores.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import unimp
from unimp.ensemble import portfolio
from unimp.runs.run import Run
from unimp.tasks.task import Task

NAMES = ["label-propagation", "ridge", "trees", "gcn", "unimp"]
SHORT = {"train.epochs": 12, "model.width": 16}


@pytest.fixture(scope="module")
def task() -> Task:
    return unimp.load_task("synthetic", scale=0.1)


def permuted(task: Task) -> Task:
    """The task with train and validation labels in a random order, each among themselves."""
    draw, labels = torch.Generator().manual_seed(1), task.labels.clone()
    for nodes in (task.split.train, task.split.val):
        labels[nodes] = labels[nodes[torch.randperm(len(nodes), generator=draw)]]
    return replace(task, labels=labels)


def trained(task: Task, folder: Path) -> Run:
    settings = {
        "train.device": "cpu",
        "ensemble.portfolio": "good",
        "ensemble.members": NAMES,
        "ensemble.refit": "always",
        "ensemble.jobs": 1,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(portfolio, "FRAME", {**portfolio.FRAME, **SHORT})
        return unimp.run(task, out=folder, settings=settings, report=False)


def scores(run: Run) -> Iterator[tuple[str, float]]:
    for member in run.metrics["ensemble"]["members"]:
        yield member["name"], member["test"]
    for protocol, found in run.metrics["scores"].items():
        yield f"ensemble, {protocol}", found["test"]
    student = run.distill(settings={**SHORT, "train.device": "cpu"})
    yield "student", student.metrics["scores"]["train"]["test"]


def test_members_ensemble_refit_and_student_learn_nothing_from_permuted_labels(
    task: Task, tmp_path: Path
) -> None:
    known = task.labels[torch.cat((task.split.train, task.split.test))]
    largest = float(torch.bincount(known[known >= 0]).max()) / int((known >= 0).sum())
    # Four standard errors of a guess that is always the most frequent class
    limit = largest + 4 * math.sqrt(largest * (1 - largest) / task.split.test.numel())
    found = dict(scores(trained(permuted(task), tmp_path / "permuted")))
    assert {"ensemble, train", "ensemble, refit", "student", *NAMES} <= found.keys()
    assert all(test <= limit for test in found.values()), (limit, found)
    # The same ensemble learns from the right labels, so its settings are not what limits it.
    right = trained(task, tmp_path / "right").metrics["scores"]
    assert min(right["train"]["test"], right["refit"]["test"]) > limit + 0.05
