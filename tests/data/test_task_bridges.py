"""Tasks of PyG and NetworkX: labels, splits and names in both directions."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unimp.data.networkx import task_from_networkx, task_to_networkx
from unimp.data.pyg import task_from_pyg, task_to_pyg
from unimp.data.synthetic import synthetic_task
from unimp.errors import TaskError
from unimp.tasks.labels import Split
from unimp.tasks.task import Task

# importorskip keeps the deprecations of its import to itself.
pyg = pytest.importorskip("torch_geometric.data", reason="needs torch_geometric")


def small_task(seed: int, *, features: int = 3, edge_features: int = 0, tasks: int = 0) -> Task:
    return synthetic_task(
        num_nodes=30,
        num_edges=60,
        num_classes=3,
        num_features=features,
        edge_features=edge_features,
        multilabel_tasks=tasks,
        missing_share=0.3,
        split_shares=(0.4, 0.2, 0.3),
        seed=seed,
    )


@given(st.integers(0, 50), st.integers(0, 2), st.integers(0, 2), st.integers(0, 3), st.booleans())
def test_a_task_goes_to_pyg_and_back(
    seed: int, features: int, edge_features: int, tasks: int, named: bool
) -> None:
    task = small_task(seed, features=features, edge_features=edge_features, tasks=tasks)
    if named:
        task = replace(
            task,
            class_names=tuple(f"class {number}" for number in range(task.num_classes)),
            node_names=tuple(f"node {number}" for number in range(30)),
            groups=torch.arange(30) // 2,
            positions=torch.rand(30, 2),
        )
    data = task_to_pyg(task)
    assert data.validate()
    back = task_from_pyg(data)
    assert back.data_hash() == task.data_hash()
    assert (back.positions is None) == (task.positions is None)
    if task.positions is not None:
        assert torch.equal(back.positions, task.positions)
    kept = ("metric", "num_classes", "class_names", "node_names")
    assert [getattr(back, key) for key in kept] == [getattr(task, key) for key in kept]


@given(st.integers(0, 50), st.booleans())
def test_a_task_goes_to_networkx_and_back(seed: int, named: bool) -> None:
    task = small_task(seed)
    labels = torch.where(torch.arange(30) % 7 == 3, -1, task.labels)
    parts = (task.split.train, task.split.val, task.split.test)
    split = Split(*(part[labels[part] >= 0] for part in parts))
    task = replace(task, labels=labels, split=split)
    if named:
        task = replace(
            task,
            class_names=("ant", "bee", "cat"),
            node_names=tuple(f"node {number}" for number in range(30)),
        )
    back = task_from_networkx(task_to_networkx(task), features="x")
    assert back.node_names == (task.node_names or tuple(str(n) for n in range(30)))
    assert back.class_names == (task.class_names or ("0", "1", "2"))
    given = replace(task, node_names=back.node_names, class_names=back.class_names)
    assert back.data_hash() == given.data_hash()  # names are part of the data


def data(**changes: Any) -> Any:
    attributes = {
        "x": torch.zeros(4, 1),
        "edge_index": torch.tensor([[0, 1, 2], [1, 2, 3]]),
        "y": torch.tensor([0, 1, 2, -1]),
    }
    return pyg.Data(
        **{key: value for key, value in {**attributes, **changes}.items() if value is not None}
    )


def mask(*nodes: int) -> torch.Tensor:
    return torch.zeros(4, dtype=torch.bool).index_fill(0, torch.tensor(nodes, dtype=torch.long), 1)


def test_without_a_train_mask_every_other_known_label_is_trained_on() -> None:
    assert task_from_pyg(data()).split.train.tolist() == [0, 1, 2]
    assert task_from_pyg(data(test_mask=mask(1))).split.train.tolist() == [0, 2]


def test_of_several_splits_one_is_taken() -> None:
    several = data(train_mask=torch.stack((mask(0), mask(1, 2)), 1), val_mask=mask())
    assert task_from_pyg(several, split=1).split.train.tolist() == [1, 2]
    assert task_from_pyg(several).split.train.tolist() == [0]


@pytest.mark.parametrize(
    ("y", "labels"),
    [
        (torch.tensor([[0], [1], [2], [-1]]), [0, 1, 2, -1]),
        (torch.tensor([0, 1, 2, torch.nan]), [0, 1, 2, -1]),
        (torch.tensor([True, False, True, False]), [1, 0, 1, 0]),
        (
            torch.tensor([[0, 1], [1, torch.nan], [0, 0], [1, 1]]),
            [[0, 1], [1, -1], [0, 0], [1, 1]],
        ),
    ],
)
def test_labels_are_taken_in_the_forms_that_data_sets_of_pyg_have(y: Any, labels: Any) -> None:
    task = task_from_pyg(data(y=y))
    assert task.labels.tolist() == labels
    assert task.metric == ("rocauc" if isinstance(labels[0], list) else "accuracy")


def network(**changes: Any) -> nx.Graph:
    graph = nx.Graph([("a", "b"), ("b", "c")])
    for key, attributes in {"a": {"label": "x"}, "b": {"label": "y"}, **changes}.items():
        graph.nodes[key].update(attributes)
    return graph


def test_nodes_of_a_network_without_a_label_are_unknown() -> None:
    for missing in ({}, {"label": None}, {"label": ""}, {"label": float("nan")}):
        task = task_from_networkx(network(c=missing))
        assert task.labels.tolist() == [0, 1, -1]
        assert task.class_names == ("x", "y")
        assert task.split.train.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: task_from_pyg(data(y=None)), "no y"),
        (lambda: task_from_pyg(data(y=torch.tensor([1]))), r"shape \(1,\)"),
        (lambda: task_from_pyg(data(y=torch.tensor([0.5, 1, 1, 1]))), "regression"),
        (lambda: task_from_pyg(data(y=torch.full((4, 2), 3))), "binary task"),
        (lambda: task_from_pyg(data(train_mask=torch.zeros(4))), "train_mask is torch.float32"),
        (
            lambda: task_from_pyg(data(train_mask=torch.ones(4, 2, dtype=torch.bool)), split=2),
            r"train_mask has 0\.\.1",
        ),
        (lambda: task_from_pyg(data(train_mask=mask(0, 3))), "node 3 "),
        (lambda: task_from_pyg(data(train_mask=mask(0), val_mask=mask(0))), "node 0 "),
        (lambda: task_from_networkx(network(), label="lable"), "did you mean 'label'"),
        (lambda: task_from_networkx(network(a={"split": "training"})), "train, val or test"),
        (lambda: task_from_networkx(network(c={"label": 3})), "only strings"),
        (lambda: task_from_networkx(nx.Graph([(1, "1")])), "no node has a label"),
        (
            lambda: task_from_networkx(nx.relabel_nodes(network(), {"a": 1, "b": "1"})),
            "same name as text",
        ),
        (lambda: task_to_networkx(small_task(0, tasks=2)), "binary tasks"),
    ],
)
def test_what_cannot_be_a_task_is_refused(attempt: Callable[[], Any], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        attempt()
