"""Tasks of Figure (b): a share of the train labels, exact in number and nested."""

from pathlib import Path

import pytest
import torch

from unimp.config.recipe import load_recipe
from unimp.data.catalog import load_task
from unimp.runs.loading import load_run
from unimp.studies.cells import Cell, Subject
from unimp.studies.execution import Job, settings_beside_task, train_cell, with_train_share
from unimp.studies.figures import TRAIN_SHARES


@pytest.mark.parametrize("seed", [0, 7])
def test_shares_are_exact_and_nested(seed: int) -> None:
    task = load_task("synthetic", scale=0.0997)
    before: set[int] = set()
    for share in TRAIN_SHARES:
        part = with_train_share(task, share, seed=seed)
        train = set(part.split.train.tolist())
        assert len(train) == round(share * task.split.train.numel())
        assert before < train <= set(task.split.train.tolist())
        assert torch.equal(part.split.val, task.split.val)
        assert torch.equal(part.split.test, task.split.test)
        before = train
    assert before == set(task.split.train.tolist())


def test_another_seed_keeps_other_labels() -> None:
    task = load_task("synthetic", scale=0.1)
    one, two = (with_train_share(task, 0.5, seed=seed).split.train for seed in (0, 1))
    assert not torch.equal(one, two)


def test_all_options_but_the_task_become_settings() -> None:
    recipe = load_recipe("products-paper", ["train.lr=0.02"])
    again = load_recipe("synthetic", settings_beside_task(Cell("unimp", recipe)))
    for section in ("model", "mask", "batch", "train", "inference", "smooth"):
        assert getattr(again, section) == getattr(recipe, section)


def test_a_trained_share_knows_only_its_labels(small_subject: Subject, tmp_path: Path) -> None:
    cell = small_subject.cell(train_share=0.5)
    ended = train_cell(Job(cell, 3, tmp_path / "run"))
    assert not ended.failure
    whole = load_task(small_subject.recipe.task.name)
    wanted = with_train_share(whole, 0.5, seed=3).split.train
    run = load_run(tmp_path / "run")
    assert torch.equal(run.task.split.train, wanted)
    assert run.seed == 3
    assert run.recipe.model == cell.recipe.model
