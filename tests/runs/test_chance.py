"""Permuted labels teach nothing: whatever learned from them must score at the level of chance.

A leak of hidden labels anywhere between the members and the student would raise these scores.
"""

import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import unimp
from unimp.config.run_files import MEMBERS
from unimp.ensemble.portfolio import Member, settings_of
from unimp.ensemble.selection import choose_weights
from unimp.runs import members, trained_members
from unimp.runs.run import Run
from unimp.tasks.task import Task

PROPAGATED = ["gcn", "unimp", "sage-structure"]  # members with propagated labels
NAMES = ["label-propagation", "ridge", "trees", "grand-2", "appnp", "gat", *PROPAGATED]
SHORT = {"train.epochs": 12, "model.width": 16}
SETTINGS = {
    "train.device": "cpu",
    "ensemble.portfolio": "best",
    "ensemble.members": NAMES,
    "ensemble.copies": 1,
    "ensemble.jobs": 1,
}


@pytest.fixture(scope="module", autouse=True)
def short_trainings() -> Iterator[None]:
    """Trainings are short, and every member is trained and keeps some weight."""

    def weights(given: Sequence[Tensor], *more: Any) -> Tensor:
        return (choose_weights(given, *more) + 1) / (1 + len(given))

    def short(member: Member, task: Task) -> dict[str, Any]:
        return {**settings_of(member, task), **(SHORT if member.by_gradient else {})}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(members, "settings_of", short)
        patch.setattr(members, "why_left_out", lambda *given: "")
        patch.setattr(trained_members, "choose_weights", weights)
        yield


@pytest.fixture(scope="module")
def task() -> Task:
    return unimp.load_task("synthetic", scale=0.1)


@pytest.fixture(scope="module")
def limit(task: Task) -> float:
    """Four standard errors above a guess that is always the most frequent class."""
    known = task.labels[torch.cat((task.split.train, task.split.test))]
    largest = float(torch.bincount(known[known >= 0]).max()) / int((known >= 0).sum())
    return largest + 4 * math.sqrt(largest * (1 - largest) / task.split.test.numel())


def permuted(task: Task) -> Task:
    """The task with train and validation labels in a random order, each among themselves."""
    draw, labels = torch.Generator().manual_seed(1), task.labels.clone()
    for nodes in (task.split.train, task.split.val):
        labels[nodes] = labels[nodes[torch.randperm(len(nodes), generator=draw)]]
    return replace(task, labels=labels)


def trained(task: Task, folder: Path, **more: Any) -> Run:
    settings = {**SETTINGS, "ensemble.refit": "never", **more}
    return unimp.run(task, out=folder, settings=settings, report=False)


def refitted(
    task: Task, folder: Path, again_in: Path, names: list[str], folds: int
) -> dict[str, float]:
    """The test scores after a refit: of the ensemble, and of each model, the mean over folds."""
    for name in names:
        shutil.copytree(folder / MEMBERS / name, again_in / MEMBERS / name)
    more = {"ensemble.refit": "always", "ensemble.folds": folds, "ensemble.members": names}
    run = trained(task, again_in, **more)
    assert not run.metrics["ensemble"]["not_refitted"]
    observed, test, found = run.observed_labels(reveal="train+val"), task.split.test, {}
    for member in run.members:
        right = member.outputs(observed)[test].argmax(1) == task.labels[test]
        found.setdefault(member.recipe.model.name, []).append(float(right.float().mean()))
    scores = {model: sum(of_folds) / len(of_folds) for model, of_folds in found.items()}
    return {"ensemble": run.metrics["scores"]["refit"]["test"], **scores}


@pytest.fixture(scope="module")
def of_permuted(task: Task, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(permuted(task), tmp_path_factory.mktemp("permuted") / "run").folder


@pytest.fixture(scope="module")
def of_right(task: Task, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(task, tmp_path_factory.mktemp("right") / "run").folder


def test_members_ensemble_and_student_learn_nothing_from_permuted_labels(
    of_permuted: Path, of_right: Path, limit: float
) -> None:
    run = unimp.load_run(of_permuted, device="cpu")
    found = {row["name"]: row["test"] for row in run.metrics["ensemble"]["members"]}
    found |= {protocol: of["test"] for protocol, of in run.metrics["scores"].items()}
    student = run.distill(settings={**SHORT, "train.device": "cpu"})
    found["student"] = student.metrics["scores"]["train"]["test"]
    assert {"train", "train+val", *NAMES} <= found.keys()
    assert all(test <= limit for test in found.values()), (limit, found)
    # The same ensemble learns from the right labels, so its settings are not what limits it.
    right = unimp.load_run(of_right, device="cpu").metrics["scores"]
    assert right["train"]["test"] > limit + 0.05


@pytest.mark.parametrize("folds", [0, 5])
def test_a_refit_learns_nothing_from_permuted_labels(
    folds: int, task: Task, of_permuted: Path, of_right: Path, limit: float, tmp_path: Path
) -> None:
    """With 0 folds, the members are trained once on train and validation labels."""
    found = refitted(permuted(task), of_permuted, tmp_path / "permuted", NAMES, folds)
    assert len(found) == 1 + len(NAMES)
    assert all(test <= limit for test in found.values()), (limit, found)
    right = refitted(task, of_right, tmp_path / "right", ["ridge", "gcn"], folds)
    assert right["ensemble"] > limit + 0.05
