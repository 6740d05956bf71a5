"""Names of nodes and classes: one lookup for Python, label files and the command line."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

import unimp
from unimp.analysis.audit import audit
from unimp.analysis.explain import explain
from unimp.data.synthetic import synthetic_task
from unimp.data.tables.label_files import later_labels
from unimp.errors import TaskError
from unimp.tasks.names import classes_of, node_ids, nodes_of
from unimp.tasks.task import Task


@pytest.fixture(scope="module")
def whole() -> Task:
    """Nodes 34 down to 5 and classes 1 to 3, all whole numbers: each is the place of another."""
    ids = list(range(34, 4, -1))
    return unimp.task_from_tables(
        {"id": ids, "label": [1 + i % 3 for i in ids]},
        {"source": ids[1:], "target": ids[:-1]},
        features={},
    )


def file_of(node: Any, label: Any, folder: Path) -> Path:
    pyarrow.parquet.write_table(pa.table({"node": [node], "label": [label]}), folder / "l.parquet")
    return folder / "l.parquet"


Given = Callable[[Any, Any, Path], Any]
WAYS: dict[str, Given] = {
    "mapping": lambda node, label, folder: {node: label},
    "file": file_of,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [int, float, str, np.int32])
def test_a_whole_number_is_an_id_and_never_a_place(
    whole: Task, kind: Callable[[int], Any], way: str, tmp_path: Path
) -> None:
    labels = later_labels(WAYS[way](kind(27), kind(1), tmp_path), whole)
    assert torch.nonzero(labels >= 0).squeeze(1).tolist() == [7]
    assert int(labels[7]) == 0
    assert node_ids(whole)[7] == 27
    assert nodes_of(whole).find("27") == 7
    assert classes_of(whole).find("1") == 0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("node", [4, "4", 0])
def test_a_place_that_is_no_id_is_refused_with_the_nearest(
    whole: Task, node: Any, way: str, tmp_path: Path
) -> None:
    with pytest.raises(TaskError, match=f"no node '?{node}'?[.;] [Dd]id you mean '[123]"):
        later_labels(WAYS[way](node, 1, tmp_path), whole)
    with pytest.raises(TaskError, match=r"no class '?0'?[.;] [Cc]hoose one of 1, 2, 3"):
        later_labels(WAYS[way](27, 0, tmp_path), whole)


def test_truth_names_a_class_as_tables_do() -> None:
    task = replace(
        synthetic_task(num_nodes=20, num_edges=30, num_classes=2), class_names=("false", "true")
    )
    assert later_labels({3: True, 4: np.bool_(False)}, task)[3:5].tolist() == [1, 0]


def test_of_many_names_a_message_tells_some() -> None:
    task = synthetic_task(num_nodes=200, num_edges=300, num_classes=2)
    named = replace(task, node_names=tuple(f"a long name {i}" for i in range(200)))
    with pytest.raises(TaskError) as problem:
        nodes_of(named).find("xyz")
    assert str(problem.value) == (
        "no node 'xyz'; none of the 200 names is similar; examples are a long name 0, "
        "a long name 1, a long name 2"
    )


def test_explanations_and_audits_give_ids_as_predictions_do(whole: Task, tmp_path: Path) -> None:
    run = unimp.run(whole, settings=["model.width=4", "train.epochs=1", "train.device=cpu"])
    node = int(whole.split.test[0])
    ids = run.predictions()["node"].to_pylist()
    why = explain(
        run.incremental(),
        whole,
        run.observed_labels(reveal="train"),
        node,
        chances=run.probabilities_of,
    )
    message = why.to_dict()
    assert message["node"] == ids[node]
    assert {one["node"] for one in message["labels"]} <= set(ids)
    assert {one["source"] for one in message["edges"]} <= set(ids)
    found = audit(run.incremental(), whole, whole.split.train, chances=run.probabilities_of)
    found.write(tmp_path / "audit.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "audit.parquet")
    assert table["node"].to_pylist() == [ids[int(n)] for n in found.nodes]


@pytest.mark.parametrize("node", [True, np.bool_(True)])
def test_truth_is_not_the_number_of_a_node(node: Any) -> None:
    with pytest.raises(TaskError, match=r"node .*True"):
        later_labels({node: 1}, synthetic_task(num_nodes=20, num_edges=30, num_classes=2))
