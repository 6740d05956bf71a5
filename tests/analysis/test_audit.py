"""Audits: a label is judged by the others, and labels made wrong come first."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from unimp.analysis.audit import FOLDS, audit, named_rows, write_audit
from unimp.config.recipe import load_recipe
from unimp.data.synthetic import synthetic_task
from unimp.errors import TaskError
from unimp.runs.experiment import run
from unimp.runs.preparation import task_of
from unimp.runs.run import Run
from unimp.tasks.task import Task


def spoiled(task: Task, share: float = 0.05) -> tuple[Task, Tensor]:
    generator = torch.Generator().manual_seed(1)
    known = task.split.train
    which = known[torch.randperm(len(known), generator=generator)[: round(share * len(known))]]
    labels = task.labels.clone()
    shift = torch.randint(1, task.num_classes, (len(which),), generator=generator)
    labels[which] = (labels[which] + shift) % task.num_classes
    return replace(task, labels=labels), which


@pytest.fixture(scope="module")
def wrong() -> tuple[Run, Tensor]:
    """A run on a small task, some of whose train labels are wrong, and whose they are."""
    task, which = spoiled(
        synthetic_task(
            num_nodes=600,
            num_edges=3000,
            num_classes=4,
            num_features=8,
            feature_signal=1.5,
            homophily=0.8,
            split_shares=(0.4, 0.2, 0.4),
            seed=0,
        )
    )
    settings = ["model.width=8", "model.layers=2", "train.epochs=25", "train.lr=2e-2"]
    return run(task, settings=[*settings, "train.device=cpu"]), which


@pytest.mark.parametrize("folds", [0, 10])
def test_most_labels_made_wrong_are_among_the_first_tenth(
    wrong: tuple[Run, Tensor], folds: int
) -> None:
    done, which = wrong
    found = audit(done.hold(), done.task, done.task.split.train, chances=done.chances, folds=folds)
    assert sorted(found.node.tolist()) == sorted(done.task.split.train.tolist())
    head = found.node[: round(0.1 * len(found))]
    assert float(torch.isin(which, head).double().mean()) >= 0.6
    assert found.folds == folds


def test_a_label_is_judged_with_itself_hidden_and_all_others_seen(
    wrong: tuple[Run, Tensor],
) -> None:
    done, _ = wrong
    train = done.task.split.train
    found = audit(done.hold(), done.task, train[:5], chances=done.chances, folds=0)
    for k, node in enumerate(found.node.tolist()):
        observed = done.observed_with(None)
        observed[node] = -1
        chances = done.chances(done.scores(observed)[[node]])[0]
        given = int(done.task.labels[node])
        assert int(found.given[k]) == given
        assert float(found.p_given[k]) == pytest.approx(float(chances[given]), abs=1e-5)
        chances[given] = -1
        assert int(found.suggested[k]) == int(chances.argmax())
        assert float(found.p_suggested[k]) == pytest.approx(float(chances.max()), abs=1e-5)
    assert (found.margin.diff() <= 0).all()
    assert found.disagreements == int((found.p_suggested > found.p_given).sum())


def test_a_group_is_hidden_as_one(wrong: tuple[Run, Tensor]) -> None:
    done, _ = wrong
    task = replace(done.task, groups=torch.arange(600) // 3)
    siblings = task.split.train[(task.split.train // 3).argsort(stable=True)][:12]
    grouped = audit(done.hold(), task, siblings, chances=done.chances, folds=0, by_group=True)
    for k, node in enumerate(grouped.node.tolist()):
        observed = done.observed_with(None)
        observed[siblings[siblings // 3 == node // 3]] = -1
        chances = done.chances(done.scores(observed)[[node]])[0]
        expected = float(chances[int(task.labels[node])])
        assert float(grouped.p_given[k]) == pytest.approx(expected, abs=1e-5)
    with pytest.raises(TaskError, match="no groups"):
        audit(done.hold(), done.task, siblings, chances=done.chances, by_group=True)


def test_where_hiding_each_alone_would_take_long_labels_are_hidden_in_folds(
    wrong: tuple[Run, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    done, _ = wrong
    train = done.task.split.train
    assert audit(done.hold(), done.task, train, chances=done.chances).folds == 0
    monkeypatch.setattr("unimp.analysis.audit.MOST_EDGES", 1000)
    told: list[tuple[int, int]] = []
    found = audit(
        done.hold(), done.task, train, chances=done.chances, on_part=lambda *part: told.append(part)
    )
    assert found.folds == FOLDS
    assert told == [(k + 1, FOLDS) for k in range(FOLDS)]


def test_every_known_entry_of_binary_tasks_is_a_row() -> None:
    recipe = load_recipe("synthetic-proteins", ["task.scale=0.001", "model.width=4"])
    task = task_of(recipe, 0)
    torch.manual_seed(0)
    done = Run(recipe, 0, task, recipe.build_model(task.sizes).eval(), {}, "cpu")
    nodes = task.split.train[:3]
    found = audit(done.hold(), task, nodes, chances=done.chances, folds=0)
    assert len(found) == int((task.labels[nodes] >= 0).sum())
    assert found.task is not None
    given = task.labels[found.node, found.task].long()
    assert torch.equal(found.given, given)
    assert torch.equal(found.suggested, 1 - given)
    assert torch.allclose(found.p_given + found.p_suggested, torch.ones(len(found)))


@pytest.mark.parametrize("name", ["audit.csv", "audit.parquet"])
def test_the_table_goes_by_the_tasks_own_names(
    wrong: tuple[Run, Tensor], tmp_path: Path, name: str
) -> None:
    import pyarrow.csv
    import pyarrow.parquet

    done, _ = wrong
    task = replace(
        done.task,
        node_names=tuple(f"n{i}" for i in range(600)),
        class_names=("red", "green", "blue", "gray"),
    )
    found = audit(done.hold(), task, task.split.train[:20], chances=done.chances)
    assert write_audit(tmp_path / name, task, found, count=7) == 7
    read = pyarrow.csv.read_csv if name.endswith("csv") else pyarrow.parquet.read_table
    rows = read(tmp_path / name).to_pylist()
    assert rows == list(named_rows(task, found, 7))
    assert [row["rank"] for row in rows] == list(range(1, 8))
    assert rows[0]["node"] == f"n{int(found.node[0])}"
    assert rows[0]["given"] in task.class_names
    assert list(rows[0]) == [
        *("rank", "node", "given", "suggested", "p_given", "p_suggested", "margin")
    ]
