"""Audits: a label is judged by the others, and wrong labels come first."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from unimp.analysis.audit import FOLDS, audit
from unimp.config.recipe import load_recipe
from unimp.data.synthetic import synthetic_task
from unimp.errors import TaskError
from unimp.model.registry import build_model
from unimp.runs.experiment import run
from unimp.runs.preparation import task_of
from unimp.runs.run import Run
from unimp.tasks.names import class_names
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
    """A run on a small task, some of whose train labels are wrong, and these nodes."""
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
def test_most_wrong_labels_are_among_the_first_tenth(wrong: tuple[Run, Tensor], folds: int) -> None:
    done, which = wrong
    found = audit(
        done.incremental(),
        done.task,
        done.task.split.train,
        chances=done.probabilities_of,
        folds=folds,
    )
    assert sorted(found.nodes.tolist()) == sorted(done.task.split.train.tolist())
    head = found.nodes[: round(0.1 * len(found))]
    assert float(torch.isin(which, head).double().mean()) >= 0.6
    assert found.folds == folds


def test_a_label_is_predicted_from_all_others(
    wrong: tuple[Run, Tensor],
) -> None:
    done, _ = wrong
    train, inputs = done.task.split.train, done.observed_labels(reveal="train")
    engine = done.incremental(inputs)
    found = audit(engine, done.task, train[:5], chances=done.probabilities_of, folds=0)
    rows = found.to_pylist()
    for k, node in enumerate(found.nodes.tolist()):
        observed = inputs.clone()
        observed[node] = -1
        chances = done.probabilities_of(done.outputs(observed)[[node]])[0]
        given = int(done.task.labels[node])
        assert int(rows[k]["given"]) == given
        assert rows[k]["p_given"] == pytest.approx(float(chances[given]), abs=1e-5)
        chances[given] = -1
        assert int(rows[k]["suggested"]) == int(chances.argmax())
        assert rows[k]["p_suggested"] == pytest.approx(float(chances.max()), abs=1e-5)
    margins = found["margin"].to_pylist()
    assert margins == sorted(margins, reverse=True)
    assert found.disagreements == sum(row["p_suggested"] > row["p_given"] for row in rows)


def test_a_group_is_hidden_together(wrong: tuple[Run, Tensor]) -> None:
    done, _ = wrong
    task = replace(done.task, groups=torch.arange(600) // 3)
    siblings = task.split.train[(task.split.train // 3).argsort(stable=True)][:12]
    inputs = done.observed_labels(reveal="train")
    engine = done.incremental(inputs)
    grouped = audit(engine, task, siblings, chances=done.probabilities_of, folds=0, by_group=True)
    rows = grouped.to_pylist()
    for k, node in enumerate(grouped.nodes.tolist()):
        observed = inputs.clone()
        observed[siblings[siblings // 3 == node // 3]] = -1
        chances = done.probabilities_of(done.outputs(observed)[[node]])[0]
        expected = float(chances[int(task.labels[node])])
        assert rows[k]["p_given"] == pytest.approx(expected, abs=1e-5)
    with pytest.raises(TaskError, match="no groups"):
        audit(engine, done.task, siblings, chances=done.probabilities_of, by_group=True)


def test_if_hiding_each_label_alone_takes_too_long_labels_are_hidden_in_folds(
    wrong: tuple[Run, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    done, _ = wrong
    train = done.task.split.train
    assert audit(done.incremental(), done.task, train, chances=done.probabilities_of).folds == 0
    monkeypatch.setattr("unimp.analysis.audit.MAX_EDGES", 1000)
    parts: list[tuple[int, int]] = []
    found = audit(
        done.incremental(),
        done.task,
        train,
        chances=done.probabilities_of,
        on_part=lambda *part: parts.append(part),
    )
    assert found.folds == FOLDS
    assert parts == [(k + 1, FOLDS) for k in range(FOLDS)]


def test_every_known_entry_of_binary_tasks_is_a_row() -> None:
    recipe = load_recipe("synthetic-proteins", ["task.scale=0.001", "model.width=4"])
    task = task_of(recipe, 0)
    torch.manual_seed(0)
    done = Run(recipe, 0, task, build_model(recipe.model, task.sizes).eval(), {}, "cpu")
    nodes = task.split.train[:3]
    found = audit(done.incremental(), task, nodes, chances=done.probabilities_of, folds=0)
    assert len(found) == int((task.labels[nodes] >= 0).sum())
    names = class_names(task)
    for node, row in zip(found.nodes.tolist(), found.to_pylist(), strict=True):
        assert row["given"] == int(task.labels[node, names.index(row["task"])])
        assert row["suggested"] == 1 - row["given"]
        assert row["p_given"] + row["p_suggested"] == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("name", ["audit.csv", "audit.parquet"])
def test_the_table_uses_the_names_of_the_task(
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
    found = audit(done.incremental(), task, task.split.train[:20], chances=done.probabilities_of)
    found.head(7).write(tmp_path / name)
    read = pyarrow.csv.read_csv if name.endswith("csv") else pyarrow.parquet.read_table
    rows = read(tmp_path / name).to_pylist()
    assert rows == found.to_pylist()[:7]
    assert [row["rank"] for row in rows] == list(range(1, 8))
    assert rows[0]["node"] == f"n{int(found.nodes[0])}"
    assert rows[0]["given"] in task.class_names
    assert list(rows[0]) == [
        *("rank", "node", "given", "suggested", "p_given", "p_suggested", "margin")
    ]
