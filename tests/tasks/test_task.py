"""A task is checked completely and has a hash of everything that affects a result."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

from unimp.errors import ArgumentError, TaskError, UnimpError
from unimp.graph.graph import Graph
from unimp.tasks.labels import UNLABELED, Split
from unimp.tasks.task import Sizes, Task

GROUPS = torch.tensor([7, 7, 3, 0, 0])  # any numbers; the split keeps each together


def small_graph(**changes: Any) -> Graph:
    options = {"x": torch.ones(5, 3), "edge_attr": torch.ones(4, 2)} | changes
    return Graph.from_edges([[0, 1, 2, 3], [1, 2, 3, 4]], num_nodes=5, **options)


def small_task(**changes: Any) -> Task:
    options: dict[str, Any] = {
        "name": "small",
        "graph": small_graph(),
        "labels": torch.tensor([0, 0, 2, 1, UNLABELED]),
        "split": Split(torch.tensor([0, 1]), torch.tensor([2]), torch.tensor([3, 4])),
        "metric": "accuracy",
        "num_classes": 3,
    }
    return Task(**options | changes)


def multilabel_task(**changes: Any) -> Task:
    labels = torch.tensor([[1, 0], [0, 0], [1, UNLABELED], [0, 1], [1, 1]], dtype=torch.int8)
    return small_task(**{"labels": labels, "num_classes": 2, "metric": "rocauc"} | changes)


def test_a_task_says_the_sizes_a_model_is_built_for() -> None:
    assert small_task().sizes == Sizes(3, 2, 3, multilabel=False)
    assert multilabel_task().sizes == Sizes(3, 2, 2, multilabel=True)
    bare = small_task(graph=small_graph(x=None, edge_attr=None))
    assert bare.sizes == Sizes(0, 0, 3, multilabel=False)
    sparse = small_task(graph=small_graph(x=sp.eye_array(5)))
    assert sparse.sizes == Sizes(5, 2, 3, multilabel=False, sparse=True)


def test_homophily_counts_edges_between_known_nodes() -> None:
    # Edges 0→1 (0, 0), 1→2 (0, 2), 2→3 (2, 1); 3→4 has an unknown end.
    assert small_task().homophily == pytest.approx(1 / 3)
    labels = torch.tensor([0, UNLABELED, 1, UNLABELED, 0])
    split = Split(torch.tensor([0]), torch.tensor([2]), torch.tensor([4]))
    assert math.isnan(small_task(labels=labels, split=split).homophily)


def test_a_task_prints_on_one_line() -> None:
    text = repr(small_task())
    for part in ("'small'", "5 nodes", "3 classes", "train/val/test 2/1/2", "metric accuracy"):
        assert part in text
    assert "2 binary tasks" in repr(multilabel_task())


def test_another_graph_leaves_the_question_as_it_was() -> None:
    task = small_task(class_names=("a", "b", "c"), groups=GROUPS)
    moved = task.with_graph(task.graph.symmetrize())
    assert moved.graph.num_edges == 8
    assert torch.equal(moved.labels, task.labels)
    assert (moved.split, moved.class_names) == (task.split, task.class_names)
    assert moved.groups is not None
    assert moved.groups.tolist() == GROUPS.tolist()


@pytest.mark.parametrize(
    "given", [GROUPS, GROUPS.int(), GROUPS.numpy(), GROUPS.tolist(), np.uint8(GROUPS)]
)
def test_groups_are_whole_numbers_of_any_kind(given: Any) -> None:
    groups = small_task(groups=given).groups
    assert groups is not None
    assert groups.dtype == torch.int64
    assert torch.equal(groups, GROUPS)


def split_of(train: list[int], val: list[int], test: list[int]) -> Split:
    return Split(*(torch.tensor(nodes, dtype=torch.int64) for nodes in (train, val, test)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": torch.tensor([0, 1])}, "shape (2,). For 5 nodes"),
        ({"labels": torch.tensor([0, 0, 2, 3, 1])}, "the label of node 3 is 3; it must be in 0..2"),
        ({"labels": torch.tensor([0, -2, 2, 1, 1])}, "the label of node 1 is -2"),
        (
            {"labels": torch.zeros(5, 2, dtype=torch.int8)},
            "labels have shape (5, 2)",
        ),
        ({"labels": 2 * torch.ones(5, 3, dtype=torch.int8)}, "the label of node 0 is 2"),
        ({"class_names": ("a", "b")}, "2 class names, but 3"),
        ({"node_names": ("a",)}, "1 node names, but 5"),
        (
            {"groups": GROUPS[:2]},
            "groups are torch.int64 of shape (2,)",
        ),
        ({"groups": GROUPS.float()}, "groups has dtype torch.float32"),
        ({"groups": GROUPS[:, None]}, "groups are torch.int64 of shape (5, 1)"),
        ({"split": split_of([0], [1], [5])}, "the test set contains a node outside of 0..4"),
        ({"split": split_of([0], [-1], [])}, "the val set contains a node outside of 0..4"),
        ({"split": split_of([4], [1], [])}, "node 4 is in the train set, but its label is"),
        ({"split": split_of([0, 1], [2, 4], [])}, "node 4 is in the val set"),
        ({"split": split_of([], [1], [0])}, "the train set is empty"),
    ],
)
def test_what_cannot_be_a_task_is_refused_with_the_place(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(TaskError) as caught:
        small_task(**changes)
    assert message in str(caught.value)


def test_test_labels_may_be_unknown() -> None:
    assert small_task().labels[4] == UNLABELED


@pytest.mark.parametrize(
    "changes",
    [
        {"labels": torch.tensor([0, 0, 2, 2, UNLABELED])},
        {"split": split_of([0], [2], [3, 4])},
        {"split": split_of([0, 1], [], [3, 4])},
        {"split": split_of([0, 1], [2], [3])},
        {"graph": small_graph(x=2 * torch.ones(5, 3))},
        {"graph": small_graph(x=None)},
        {"graph": small_graph(x=sp.csr_array(torch.ones(5, 3).numpy()))},
        {"graph": small_graph(edge_attr=torch.zeros(4, 2))},
        {"graph": small_graph(edge_attr=None)},
        {"graph": small_graph().symmetrize()},
        {"groups": GROUPS},
    ],
)
def test_the_hash_changes_with_everything_a_result_depends_on(changes: dict[str, Any]) -> None:
    assert small_task().data_hash() == small_task(name="other").data_hash()
    assert small_task(**changes).data_hash() != small_task().data_hash()


def test_the_hash_changes_with_the_groups_and_not_with_how_they_are_given() -> None:
    task = small_task(groups=GROUPS)
    assert small_task(groups=GROUPS.numpy().astype(np.int32)).data_hash() == task.data_hash()
    other = GROUPS.clone()
    other[1] = 3
    assert small_task(groups=other).data_hash() != task.data_hash()


@pytest.mark.parametrize("width", [np.int32, np.int64])
def test_the_hash_does_not_look_at_the_width_of_sparse_places(width: Any) -> None:
    rows = sp.csr_array(torch.ones(5, 3).numpy())
    other = rows.copy()
    other.indices, other.indptr = rows.indices.astype(width), rows.indptr.astype(width)
    one, two = (small_task(graph=small_graph(x=x)) for x in (rows, other))
    assert one.data_hash() == two.data_hash()


# What a caller passes stays the caller's own


@pytest.mark.parametrize("convert", [torch.Tensor.clone, torch.Tensor.numpy, torch.Tensor.int])
def test_later_writes_of_the_caller_do_not_change_a_task_or_split(convert: Any) -> None:
    train, labels, groups = (
        convert(torch.tensor(values)) for values in ([0, 1], [0, 0, 2, 1, -1], [7, 7, 3, 0, 0])
    )
    positions = convert(torch.ones(5, 2))
    split = Split(train, torch.tensor([2]), torch.tensor([3, 4]))
    task = small_task(labels=labels, split=split, groups=groups, positions=positions)
    before = task.data_hash()
    for array in (train, labels, groups, positions):
        array[:] = 0
    assert task.data_hash() == before
    assert task.split.train.tolist() == [0, 1]
    assert task.labels.tolist() == [0, 0, 2, 1, -1]
    assert task.positions is not None
    assert bool((task.positions == 1).all())


def test_names_of_a_task_are_copied() -> None:
    names = ["a", "b", "c"]
    task = small_task(class_names=names)
    names[0] = "z"
    assert task.class_names == ("a", "b", "c")


@pytest.mark.parametrize(
    "labels",
    [
        torch.tensor([0, 0, 2, 1, -2]),
        torch.tensor([0, 0, 3, 1, -1]),
        torch.tensor([0, 0, 2**40, 1, -1]),
        np.array([0, 0, 2, 1, 2**64 - 1], dtype=np.uint64),  # would be −1 as int64
        torch.tensor([0, 0, 2, 1, -1]).view(torch.uint64),
        [0, 0, 2, 1, 2**70],
        torch.tensor([0.0, 0.5, 2.0, 1.0, -1.0]),
        np.array([0, 0, 2, 1, np.nan]),
        torch.tensor([True, False, True, True, False]),
        np.array([1, 0, 1, 1, 0], dtype=bool),
        ["0", "0", "2", "1", "-1"],
        [0, 0, 2, 1, None],
        [[0], [0, 1], [2], [1], [0]],
        np.array([0, 0, 2, 1, -1], dtype=complex),
        None,
        "labels",
        object(),
    ],
)
def test_labels_that_are_not_classes_are_refused_before_they_are_cast(labels: Any) -> None:
    with pytest.raises(TaskError, match="label"):
        small_task(labels=labels)


def test_entries_of_binary_tasks_are_refused_before_they_become_bytes() -> None:
    labels = torch.tensor([[1, 0], [0, 257], [1, 0], [0, 1], [1, 1]])  # 257 is 1 as int8
    with pytest.raises(TaskError, match="node 1 is 257"):
        multilabel_task(labels=labels)


def test_big_endian_labels_are_read_as_their_values() -> None:
    labels = np.array([0, 0, 2, 1, -1], dtype=">i4")
    assert small_task(labels=labels).labels.tolist() == [0, 0, 2, 1, -1]


@pytest.mark.parametrize("given", [torch.ones(5, dtype=torch.bool), np.ones(5, dtype=bool)])
def test_a_split_by_masks_is_refused_with_the_way_to_node_numbers(given: Any) -> None:
    with pytest.raises(TaskError, match="flatnonzero"):
        Split(given, [], [])


@pytest.mark.parametrize(
    "changes",
    [
        {"name": 7},
        {"graph": "graph"},
        {"split": [0, 1]},
        {"metric": 42},
        {"num_classes": 3.5},
        {"num_classes": "3"},
        {"num_classes": 0},
        {"class_names": "abc"},
        {"class_names": (1, 2, 3)},
        {"positions": "here"},
    ],
)
def test_arguments_of_another_type_are_refused_by_name(changes: dict[str, Any]) -> None:
    with pytest.raises(UnimpError, match=next(iter(changes))):
        small_task(**changes)


@pytest.mark.parametrize("names", [("a", "b", "a"), ("a", "b", " a ")])
def test_class_names_that_occur_twice_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(TaskError, match="two class names are 'a'"):
        small_task(class_names=names)


@given(st.lists(st.text(max_size=3), min_size=5, max_size=5))
def test_node_names_are_different_or_refused(names: list[str]) -> None:
    if len({name.strip() for name in names}) == 5:
        assert small_task(node_names=tuple(names)).node_names == tuple(names)
    else:
        with pytest.raises(TaskError, match="two node names are"):
            small_task(node_names=tuple(names))


def test_a_position_that_is_not_finite_is_named() -> None:
    positions = torch.zeros(5, 2)
    positions[3, 1] = math.nan
    with pytest.raises(TaskError, match=r"position of node 3 is \(0\.0, nan\)"):
        small_task(positions=positions)


@pytest.mark.parametrize(
    ("labels", "num_classes"),
    [([0, 0, 0, 0, 0], 1), ([1, -1, 1, -1, 1], 2), ([2, 2, 2, -1, -1], 3)],
)
def test_one_class_alone_is_refused(labels: list[int], num_classes: int) -> None:
    split = Split([0], [2], [])
    with pytest.raises(TaskError, match="there is only one class"):
        small_task(labels=torch.tensor(labels), num_classes=num_classes, split=split)


def test_binary_tasks_without_a_zero_are_refused() -> None:
    labels = torch.tensor([[1, -1], [-1, 1], [1, 1], [1, -1], [-1, -1]])
    with pytest.raises(TaskError, match="there is only one class"):
        multilabel_task(labels=labels)


def test_a_numpy_number_of_classes_gives_the_same_hash() -> None:
    assert small_task(num_classes=np.int32(3)).data_hash() == small_task().data_hash()


NAMES = ("a", "b", "c")


@pytest.mark.parametrize(
    "names", [np.array(NAMES), pd.Index(NAMES), pd.Series(NAMES), dict.fromkeys(NAMES).keys()]
)
def test_names_come_from_any_ordered_collection(names: Any) -> None:
    found = small_task(class_names=names).class_names
    assert found == NAMES
    assert {type(name) for name in found} == {str}


@pytest.mark.parametrize(
    "names",
    [
        range(5),
        set("abcde"),
        "abcde",
        np.array("abcde"),
        [b"a"] * 5,
        dict.fromkeys("abcde"),
        pd.DataFrame({name: [1] for name in "abcde"}),
    ],
)
def test_collections_without_ordered_strings_are_not_names(names: Any) -> None:
    with pytest.raises(ArgumentError, match="node_names"):
        small_task(node_names=names)


@pytest.mark.parametrize(
    "changes", [{"class_names": ("a", "b", "\ud800")}, {"node_names": list("abcd\udfff")}]
)
def test_names_that_cannot_be_stored_as_utf8_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(TaskError, match=r"_names contains '\\ud.*UTF-8"):
        small_task(**changes)
    with pytest.raises(TaskError, match="UTF-8"):
        small_task(name="\ud800")
