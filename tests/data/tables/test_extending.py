"""Rows that come after training are read as those of training were, or refused in words."""

from typing import Any

import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unimp.data.tables.checking import read_rows
from unimp.data.tables.encoding import LARGEST
from unimp.data.tables.extending import extend_task
from unimp.data.tables.transforms import Layout
from unimp.errors import TaskError
from unimp.tasks.task import Task

NODES: dict[str, Any] = {
    "id": ["a", "b", "c", "d"],
    "vec": ["1 2 3", "", "4 5 6", "7 8 9"],
    "label": ["yes", "no", "yes", "no"],
    "set": ["train", "train", "val", "test"],
}
EDGES: dict[str, Any] = {
    "source": ["a", "b", "c"],
    "target": ["b", "c", "d"],
    "way": [[1.0, 2.0], None, [3.0, 4.0]],
}


def task_of(nodes: dict[str, Any] | None = None, **options: Any) -> Task:
    layout = {
        "label": "label",
        "split": "set",
        "features": {"vec": "vector"},
        "edge_features": {"way": "vector"},
    }
    return read_rows({**NODES, **(nodes or {})}, EDGES, Layout(**{**layout, **options})).task("t")


def refused(task: Task, nodes: Any = None, edges: Any = None) -> str:
    with pytest.raises(TaskError) as error:
        extend_task(task, nodes, edges)
    return str(error.value)


@pytest.mark.parametrize(
    "nothing", [[""], [None], pa.array([None], pa.string()), pa.array([None], pa.list_(pa.int8()))]
)
def test_vectors_that_are_all_missing_are_zeros_as_in_training(nothing: Any) -> None:
    larger = extend_task(
        task_of(),
        {"id": ["x"], "vec": nothing},
        {"source": ["x"], "target": ["a"], "way": nothing},
    )
    assert isinstance(larger.graph.x, torch.Tensor)
    assert larger.graph.x[4].tolist() == [0, 0, 0, 1]
    attr = larger.graph.edge_attr_of(None)
    assert attr is not None
    assert [0, 0, 1] in attr.tolist()


def test_vectors_of_another_length_are_told_with_their_rows() -> None:
    nodes = {"id": ["x", "y"], "vec": ["1 2 3", "1 2"]}
    edges = {"source": ["x", "y"], "target": ["a", "a"], "way": [[1.0], [2.0]]}
    output = refused(task_of(), nodes, edges)
    assert "nodes, column vec, row 2: 2 numbers, but those in training have 3" in output
    assert "edges, column way, rows 1, 2: 1 numbers, but those in training have 2" in output


def test_a_label_that_is_no_class_is_told() -> None:
    nodes = {"id": ["x", "y"], "vec": ["", ""], "label": ["yes", "yess"]}
    output = refused(task_of(), nodes)
    assert "column label, row 2: 'yess' is not a class of the run. Did you mean 'yes'?" in output


def test_several_labels_of_a_new_node_are_read() -> None:
    task = task_of({"label": ["u;v", "v", "w", "u"]}, label_separator=";")
    more = {"id": ["x", "y"], "vec": ["", ""], "label": ["w; u", None]}
    larger = extend_task(task, more)
    assert larger.labels[4:].tolist() == [[1, 0, 1], [-1, -1, -1]]
    assert "row 1: 't' is not a class of the run" in refused(task, {**more, "label": ["u;t", "u"]})


def test_binary_labels_of_a_new_node_are_read_as_far_as_they_are_there() -> None:
    task = task_of({"fun": [1, 0, 1, 0], "big": [0, 1, 0, 1]}, label=["fun", "big"])
    more = {"id": ["x", "y"], "vec": ["", ""], "big": [1, None]}
    assert extend_task(task, more).labels[4:].tolist() == [[-1, 1], [-1, -1]]
    assert "row 1: 'maybe' is neither 0 nor 1" in refused(task, {**more, "big": ["maybe", "0"]})


@pytest.mark.parametrize(
    ("classes", "given", "number"),
    [(["1", "2", "1", "2"], ["2.0", ""], 1), (["1.0", "v2", "1.0", "v2"], ["1.0", ""], 0)],
)
def test_a_label_is_a_number_if_those_of_training_were(
    classes: Any, given: Any, number: int
) -> None:
    more = {"id": ["x", "y"], "vec": ["", ""], "label": given}
    assert extend_task(task_of({"label": classes}), more).labels[4:].tolist() == [number, -1]


def with_numbers(**options: Any) -> Task:
    nodes = {"age": [20.0, 30.0, 40.0, 50.0], "kind": ["1", "1", "2", "2"]}
    features = {"age": "numeric", "kind": "categorical"}
    return task_of(nodes, features=features, edge_features={}, **options)


@pytest.mark.parametrize("value", [3e38, -3e38, 1e9])
def test_a_number_far_outside_of_training_is_refused_with_its_cell(value: float) -> None:
    fresh = {"id": ["x", "y"], "age": [35.0, value], "kind": ["1", "2"]}
    message = refused(with_numbers(), fresh)
    assert f"nodes, column age, row 2: {value:g} is" in message
    assert "standard deviations from the values of training" in message
    assert "correct the cell" in message.lower()


def test_an_outlier_that_a_model_can_handle_is_accepted() -> None:
    larger = extend_task(with_numbers(), {"id": ["x"], "age": [1e6], "kind": ["1"]})
    assert isinstance(larger.graph.x, torch.Tensor)
    assert bool(larger.graph.x.isfinite().all())


@given(st.floats(allow_nan=False))
def test_numbers_of_new_rows_are_bounded_or_refused(value: float) -> None:
    try:
        larger = extend_task(with_numbers(), {"id": ["x"], "age": [value], "kind": ["1"]})
    except TaskError as error:
        assert "nodes, column age, row 1" in str(error)  # noqa: PT017
    else:
        assert isinstance(larger.graph.x, torch.Tensor)
        assert float(larger.graph.x.abs().max()) <= LARGEST


@pytest.mark.parametrize("kinds", [[1, 2], [1.0, 2.0], ["1.0", "2."], ["1", "2"]])
def test_categories_of_new_rows_are_those_of_training_however_they_are_written(
    kinds: Any, caplog: pytest.LogCaptureFixture
) -> None:
    larger = extend_task(with_numbers(), {"id": ["x", "y"], "age": [1.0, 2.0], "kind": kinds})
    assert isinstance(larger.graph.x, torch.Tensor)
    assert larger.graph.x[4:, 1:].tolist() == larger.graph.x[1:3, 1:].tolist()
    assert not caplog.records


def test_a_column_in_which_most_categories_are_unseen_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fresh = {"id": ["x", "y", "z"], "age": [1.0, 2.0, 3.0], "kind": ["one", "two", "1"]}
    extend_task(with_numbers(), fresh)
    assert "column kind: 2 of 3 values, such as 'one'" in caplog.text
