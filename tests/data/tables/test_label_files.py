"""Labels that came after training: from files of both kinds, by name, and for binary tasks."""

import tempfile
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unimp.config.arguments import fits
from unimp.data.synthetic import synthetic_task
from unimp.data.tables.from_tables import task_from_tables
from unimp.data.tables.label_files import Given, later_labels, read_label_files, read_labels
from unimp.errors import TaskError
from unimp.tasks.task import Task


@pytest.fixture
def numbered() -> Task:
    return synthetic_task(num_nodes=20, num_edges=30, num_classes=3)


@pytest.fixture
def named(numbered: Task) -> Task:
    ids = tuple(f"n{i}" for i in range(20))
    return replace(numbered, node_names=ids, class_names=("red", "green", "blue"))


@pytest.fixture
def binary() -> Task:
    task = synthetic_task(num_nodes=20, num_edges=30, num_classes=2, multilabel_tasks=3)
    return replace(task, class_names=("red", "round", "ripe"))


def known(labels: torch.Tensor) -> dict[tuple[int, ...], int]:
    places = torch.nonzero(labels >= 0).tolist()
    return {tuple(place): int(labels[tuple(place)]) for place in places}


def parquet(path: Path, **columns: list[object]) -> Path:
    pyarrow.parquet.write_table(pa.table(columns), path)
    return path


def test_parquet_is_read_by_name(tmp_path: Path, named: Task) -> None:
    path = parquet(
        tmp_path / "more.parquet", other=[1, 2], node=["n3", "n5"], label=["blue", "red"]
    )
    assert known(read_labels(path, named)) == {(3,): 2, (5,): 0}


def test_numbers_in_parquet_may_be_numbers(tmp_path: Path, numbered: Task) -> None:
    path = parquet(tmp_path / "more.parquet", node=[3, 5], label=[2, 0])
    assert known(read_labels(path, numbered)) == {(3,): 2, (5,): 0}


def test_problems_of_parquet_are_told_by_row(tmp_path: Path, named: Task) -> None:
    path = parquet(tmp_path / "more.parquet", node=["n3", "m5"], label=["bleu", "red"])
    with pytest.raises(TaskError) as problem:
        read_labels(path, named)
    assert "column label, row 1: no class 'bleu'. Did you mean 'blue'" in str(problem.value)
    assert "column node, row 2: no node 'm5'. Did you mean 'n5'" in str(problem.value)


def test_what_is_no_parquet_is_refused(tmp_path: Path, named: Task) -> None:
    (tmp_path / "more.parquet").write_text("node,label\nn3,blue\n")
    with pytest.raises(TaskError, match="not a Parquet file"):
        read_labels(tmp_path / "more.parquet", named)
    path = parquet(tmp_path / "other.parquet", id=["n3"], label=["blue"])
    with pytest.raises(TaskError, match="column node: the column does not exist"):
        read_labels(path, named)


def test_a_row_whose_label_is_empty_says_nothing(tmp_path: Path, named: Task) -> None:
    (tmp_path / "more.csv").write_text("node,label,why\nn3,,unsure\nn4,red,\nn5, ,\n")
    assert known(read_labels(tmp_path / "more.csv", named)) == {(4,): 0}
    path = parquet(tmp_path / "more.parquet", node=["n3", "n4"], label=[None, "red"])
    assert known(read_labels(path, named)) == {(4,): 0}


def test_entries_of_binary_tasks_are_given_by_node_and_task(binary: Task, tmp_path: Path) -> None:
    expected = {(3, 1): 1, (3, 2): 0, (5, 0): 1}
    given = {3: {"round": 1, "ripe": 0}, 5: {"red": 1}}
    assert known(later_labels(given, binary)) == expected
    (tmp_path / "more.csv").write_text("node,label,value\n3,round,1\n3,ripe,0\n5,red,1\n")
    assert known(later_labels(tmp_path / "more.csv", binary)) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({3: 1}, "several labels per node"),
        ({3: {"round": 2}}, "'round': 2 is not 0 or 1"),
        ({3: {"rounds": 1}}, "no binary task 'rounds'; did you mean 'round'"),
        ({3: {7: 1}}, "no binary task 7; choose one of red, ripe, round"),
    ],
)
def test_entries_that_cannot_be_are_refused(
    binary: Task, given: dict[int, object], message: str
) -> None:
    with pytest.raises(TaskError, match=message):
        later_labels(given, binary)


@pytest.mark.parametrize("between", [";", "\t", "|"])
def test_a_label_file_is_read_as_tables_are(between: str, tmp_path: Path, named: Task) -> None:
    rows = [["node", "label"], ["n3", "blue"], ["n4", "-1"], ["n5", "NA"], ["n6", ""], ["n7", "x"]]
    path = tmp_path / "more.tsv"
    path.write_text("".join(between.join(row) + "\n" for row in rows[:-1]))
    assert known(read_labels(path, named)) == {(3,): 2}
    path.write_text("".join(between.join(row) + "\n" for row in rows))
    with pytest.raises(TaskError, match=r"column label, row 5: no class 'x'"):
        read_labels(path, named)


def test_numbers_that_pandas_made_fractions_are_whole_again(tmp_path: Path, numbered: Task) -> None:
    path = parquet(tmp_path / "more.parquet", node=[3.0, 5.0, 7.0], label=[2.0, None, 0.0])
    assert known(read_labels(path, numbered)) == {(3,): 2, (7,): 0}
    path = parquet(tmp_path / "more.parquet", node=[3.5], label=[2])
    with pytest.raises(TaskError, match=r"3\.5 is not an id"):
        read_labels(path, numbered)


def test_a_class_named_as_if_unknown_is_a_class(tmp_path: Path, numbered: Task) -> None:
    task = replace(numbered, class_names=("EU", "NA", "SA"))
    (tmp_path / "more.csv").write_text("node,label\n3,NA\n4,null\n")
    assert known(read_labels(tmp_path / "more.csv", task)) == {(3,): 1}


def test_values_of_binary_tasks_are_written_as_in_tables(binary: Task, tmp_path: Path) -> None:
    path = tmp_path / "more.csv"
    path.write_text("node,label,value\n3,round,yes\n3,ripe,False\n4,ripe,\n4,round,-1\n")
    assert known(read_labels(path, binary)) == {(3, 1): 1, (3, 2): 0}


@pytest.mark.parametrize("form", ["a cell", "rows", "Parquet"])
def test_labels_named_for_a_node_are_all_that_it_has(
    form: str, binary: Task, tmp_path: Path
) -> None:
    path = tmp_path / "more.csv"
    if form == "a cell":
        path.write_text("node,label\n3,red; ripe;\n4,round\n5,none\n6,;\n7,\n")
    elif form == "rows":
        path.write_text("node,label\n3,red\n4,round\n3,ripe\n5,none\n3,red\n")
    else:
        cells = ["ripe;red", "round", "none", None]
        path = parquet(tmp_path / "more.parquet", node=[3, 4, 5, 6], label=cells)
    labels = read_labels(path, binary)
    assert labels[3:8].tolist() == [[1, 0, 1], [0, 1, 0], [0, 0, 0], [-1] * 3, [-1] * 3]
    assert int((labels >= 0).sum()) == 9


def test_a_node_with_labels_and_none_and_a_label_that_is_not_there_are_refused(
    binary: Task, tmp_path: Path
) -> None:
    path = tmp_path / "more.csv"
    path.write_text("node,label\n3,none\n3,red\n4,red;blue\n")
    with pytest.raises(TaskError) as problem:
        read_labels(path, binary)
    assert "row 2: node '3' has another label in an earlier row" in str(problem.value)
    assert "column label, row 3: no binary task 'blue'" in str(problem.value)


def test_a_value_is_that_of_every_label_in_its_row_and_of_no_other(
    binary: Task, tmp_path: Path
) -> None:
    path = tmp_path / "more.csv"
    path.write_text("node,label,value\n3,red;ripe,0\n4,round,1\n")
    assert known(read_labels(path, binary)) == {(3, 0): 0, (3, 2): 0, (4, 1): 1}
    path.write_text("node,label,VALUE\n3,red;ripe,0\n4,round,1\n")
    assert known(read_labels(path, binary)) == {(3, 0): 0, (3, 2): 0, (4, 1): 1}
    path.write_text("node,label,value\n3,none,1\n")
    with pytest.raises(TaskError, match="no binary task 'none'"):
        read_labels(path, binary)


def test_a_label_that_is_called_none_or_holds_the_mark_between_labels_is_a_label(
    binary: Task, tmp_path: Path
) -> None:
    task = replace(binary, class_names=("none", "a;b", "a"))
    (tmp_path / "more.csv").write_text("node,label\n3,none\n4,a;b\n5,a;none\n")
    labels = read_labels(tmp_path / "more.csv", task)
    assert labels[3:6].tolist() == [[1, 0, 0], [0, 1, 0], [1, 0, 1]]


def test_labels_stand_apart_as_in_the_tables_of_the_task(tmp_path: Path) -> None:
    people = {"id": ["p", "q", "r"], "label": ["a|b;c", "a", None], "set": ["train", "val", None]}
    task = task_from_tables(
        people, {"source": ["p"], "target": ["q"]}, label_separator="|", features={}
    )
    assert task.class_names == ("a", "b;c")
    (tmp_path / "more.csv").write_text("node,label\nr,b;c|a\nq,b;c\n")
    labels = read_labels(tmp_path / "more.csv", task)
    assert labels.tolist() == [[-1, -1], [0, 1], [1, 1]]


def test_of_several_files_the_later_wins(named: Task, binary: Task, tmp_path: Path) -> None:
    first, second = tmp_path / "first.csv", tmp_path / "second.csv"
    first.write_text("node,label\nn3,blue\nn4,red\n")
    second.write_text("node,label\nn3,green\nn4,\n")
    labels = read_label_files([first, second], named)
    assert labels is not None
    assert known(labels) == {(3,): 1, (4,): 0}
    assert read_label_files([], named) is None
    first.write_text("node,label\n3,red;ripe\n4,red\n")
    second.write_text("node,label\n3,round\n")
    labels = read_label_files([first, second], binary)
    assert labels is not None
    assert labels[3:5].tolist() == [[0, 1, 0], [1, 0, 0]]


@pytest.fixture
def people() -> Task:
    nodes = {"who": ["p", "q", "r"], "status": ["1", "2", None], "set": ["train", "val", None]}
    edges = {"source": ["p"], "target": ["q"]}
    return task_from_tables(nodes, edges, id="who", label="status", features={})


@pytest.mark.parametrize("header", ["who,status", "node,label", "who,label", "node,status"])
def test_columns_may_have_the_names_of_the_tables(
    header: str, people: Task, tmp_path: Path
) -> None:
    (tmp_path / "more.csv").write_text(f"{header}\nr,2\n")
    assert known(read_labels(tmp_path / "more.csv", people)) == {(2,): 1}


def test_if_a_column_is_missing_both_accepted_names_are_listed(
    people: Task, tmp_path: Path
) -> None:
    (tmp_path / "more.csv").write_text("person,status\nr,2\n")
    with pytest.raises(TaskError, match=r"'node' or 'who'.*person, status"):
        read_labels(tmp_path / "more.csv", people)


def test_classes_that_are_numbers_may_be_written_with_a_point(people: Task, tmp_path: Path) -> None:
    (tmp_path / "more.csv").write_text("node,label\nr,2.0\n")
    assert known(read_labels(tmp_path / "more.csv", people)) == {(2,): 1}


def test_a_value_of_zero_is_not_read_as_a_label(named: Task, tmp_path: Path) -> None:
    path = tmp_path / "more.csv"
    path.write_text("node,label,value\nn3,blue,1\nn4,red,0\n")
    with pytest.raises(TaskError, match=r"column value, row 2: the value is 0"):
        read_labels(path, named)
    path.write_text("node,label,Value\nn3,blue,2\nn4,red,0\n")
    with pytest.raises(TaskError, match=r"column Value, row 2: the value is 0"):
        read_labels(path, named)
    path.write_text("node,label,value\nn3,blue,1\nn4,red,yes\n")
    assert known(read_labels(path, named)) == {(3,): 2, (4,): 0}
    path.write_text("node,label,value\nn3,blue,0\nn4,red,12.5\n")  # a column of something else
    assert known(read_labels(path, named)) == {(3,): 2, (4,): 0}


@given(values=st.lists(st.sampled_from(["0", "1", "yes", "no", "", "true", "0.0"]), min_size=1))
def test_a_row_is_read_as_a_label_only_if_its_value_is_not_false(values: list[str]) -> None:
    ids = tuple(f"n{i}" for i in range(20))
    task = replace(
        synthetic_task(num_nodes=20, num_edges=30, num_classes=3),
        node_names=ids,
        class_names=("red", "green", "blue"),
    )
    values = values[:20]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "more.csv"
        rows = [f"n{i},green,{value}\n" for i, value in enumerate(values)]
        path.write_text("node,label,value\n" + "".join(rows))
        if {"0", "no", "0.0"}.isdisjoint(values):
            assert len(known(read_labels(path, task))) == len(values)
        else:
            with pytest.raises(TaskError, match="the value is 0"):
                read_labels(path, task)


@pytest.mark.parametrize("header", ["node,label", '"node","label"', "\ufeffnode,label"])
def test_a_byte_order_mark_does_not_count(header: str, named: Task, tmp_path: Path) -> None:
    (tmp_path / "more.csv").write_text(f"{header}\nn3,blue\n", encoding="utf-8-sig")
    assert known(read_labels(tmp_path / "more.csv", named)) == {(3,): 2}


def test_a_label_column_that_is_there_twice_is_refused(named: Task, tmp_path: Path) -> None:
    (tmp_path / "more.csv").write_text("node,label,label\nn3,blue,red\n")
    with pytest.raises(TaskError, match="two columns are named 'label'"):
        read_labels(tmp_path / "more.csv", named)


def test_a_label_file_without_a_header_is_refused(named: Task, tmp_path: Path) -> None:
    (tmp_path / "more.csv").write_text("n3,blue\nn4,blue\n")
    with pytest.raises(TaskError, match="no header"):
        read_labels(tmp_path / "more.csv", named)


def test_later_labels_may_be_a_series_of_pandas() -> None:
    task = synthetic_task(num_nodes=20, num_edges=30, num_classes=2)
    given = pd.Series(task.labels.numpy())
    assert fits(given, Given)
    assert torch.equal(later_labels(given, task), task.labels)
