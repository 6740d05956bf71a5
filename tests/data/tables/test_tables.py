"""Two tables as a task: labels, sets and features by the columns that hold them, and more rows."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import unimp
from unimp.data.synthetic import synthetic_like, synthetic_task
from unimp.data.tables.checking import Rows, read_rows
from unimp.data.tables.export import export_tables
from unimp.data.tables.extending import extend_task
from unimp.data.tables.guessing import guess
from unimp.data.tables.summary import cautions, summary
from unimp.data.tables.table import Table
from unimp.data.tables.transforms import Layout
from unimp.errors import OutputError, TaskError
from unimp.graph.features import SparseFeatures
from unimp.graph.graph import Graph
from unimp.runs.folder.files import with_transforms
from unimp.tasks.labels import Split
from unimp.tasks.splitting import split_classes, split_groups
from unimp.tasks.task import Task

NODES: dict[str, Any] = {
    "id": ["a", "b", "c", "d", "e", "f"],
    "age": [1.0, 2.0, None, 4.0, 5.0, 6.0],
    "color": ["red", "red", "blue", "blue", "green", None],
    "label": ["yes", "no", "yes", "no", None, "-1"],
    "set": ["train", "train", "val", "test", None, None],
}
EDGES: dict[str, Any] = {
    "source": ["a", "b", "c", "d", "e", "a"],
    "target": ["b", "c", "d", "e", "f", "b"],
    "weight": [1.0, 2.0, 3.0, 4.0, 5.0, 3.0],
}
LAYOUT: dict[str, Any] = {
    "label": "label",
    "split": "set",
    "features": {"age": "numeric", "color": "categorical"},
    "edge_features": {"weight": "numeric"},
}


def rows(**options: Any) -> Rows:
    nodes, edges = options.pop("nodes", NODES), options.pop("edges", EDGES)
    return read_rows(nodes, edges, Layout(**{**LAYOUT, **options}))


def refused(**options: Any) -> str:
    with pytest.raises(TaskError) as error:
        rows(**options)
    return str(error.value)


def with_column(table: dict[str, Any], **columns: Any) -> dict[str, Any]:
    return {**table, **columns}


# Labels


def test_a_label_is_unknown_where_it_is_empty_null_or_minus_one() -> None:
    task = rows().task("t")
    assert task.class_names == ("no", "yes")
    assert task.labels.tolist() == [1, 0, 1, 0, -1, -1]
    assert task.metric == "accuracy"
    assert task.node_names == ("a", "b", "c", "d", "e", "f")


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ([10, 2, 10, 2, -1, -1], ("2", "10")),  # as numbers, not as text
        ([10.0, 2.0, 10.0, 2.0, np.nan, -1.0], ("2", "10")),
        (["10", "2", "10", "2", "", "-1"], ("2", "10")),
        ([True, False, True, False, None, None], ("false", "true")),
        (["ü", "b", "ü", "b", "null", "NaN"], ("b", "ü")),
        (["ü", "b", "ü", "b", "NA", "N/A"], ("b", "ü")),  # as missing numbers are written
        (np.array([10, 2, 10, 2, np.nan, -1], dtype=np.float16), ("2", "10")),
        (["10.0", "2", "10", "2.0", "", "-1.0"], ("2", "10")),  # as pandas writes them
        ([Decimal(t) for t in ("10.0", "2.0", "10.0", "2.0")] + [None, None], ("2", "10")),
        (["10.0", "07", "10.0", "07", "", ""], ("07", "10")),
        (["v1.5", "1.0", "v1.5", "1.0", "", ""], ("1.0", "v1.5")),  # words among them: all words
    ],
)
def test_classes_are_sorted_as_what_they_are(labels: Any, names: tuple[str, ...]) -> None:
    task = rows(nodes=with_column(NODES, label=labels)).task("t")
    assert task.class_names == names
    assert task.labels.tolist() == [1, 0, 1, 0, -1, -1]


@pytest.mark.parametrize(
    "amounts",
    [
        [0.5, 1.0, 0.5, 1.0, None, None],
        ["0.5", "1.0", "0.5", "1.0", "", "NA"],
        [Decimal(t) for t in ("0.5", "1.0", "0.5", "1.0")] + [None, None],
        np.array([0.5, 1, 0.5, 1, np.nan, np.nan], dtype=np.float16),
    ],
)
def test_a_number_with_a_fraction_is_no_class_however_it_is_written(amounts: Any) -> None:
    output = refused(nodes=with_column(NODES, label=amounts))
    assert "column label, rows 1, 3: 0.5 is not a class" in output


def test_labels_that_are_infinite_or_too_large_to_be_exact_are_no_classes() -> None:
    labels = [1.0, np.inf, 1e19, 1.0, 2.0, 2.0]
    assert "rows 2, 3: inf is not a class" in refused(nodes=with_column(NODES, label=labels))


def test_a_word_that_may_be_a_class_and_is_read_as_unknown_is_told() -> None:
    found = rows(nodes=with_column(NODES, label=["yes", "no", "yes", "no", "NA", "NA"]))
    assert "'NA' means an unknown label (2 cells)" in cautions(found, found.split(0))[0]


@pytest.mark.parametrize(
    "labels",
    [[1, 2, 1, 2, -1, -1], [1.0, 2.0, 1.0, 2.0, -1.0, None], ["1", "2", "1", "2", "-1", ""]],
)
def test_minus_one_beside_other_numbers_is_reported_with_its_count(labels: Any) -> None:
    found = rows(nodes=with_column(NODES, label=labels))
    count = sum(str(label) in ("-1", "-1.0") for label in labels)
    cells = "1 cell" if count == 1 else f"{count} cells"
    assert f"'-1' means an unknown label ({cells})" in cautions(found, found.split(0))[0]


def test_minus_one_beside_words_is_not_reported() -> None:
    assert not any("unknown label" in c for c in rows().warnings)


@given(st.lists(st.sampled_from([-1, 0, 1, 2]), min_size=6, max_size=6))
def test_every_cell_with_minus_one_is_counted_or_refused(labels: list[int]) -> None:
    nodes = with_column(NODES, label=labels)
    if len(set(labels) - {-1}) < 2 or labels.count(-1) > 3:  # a split needs 3 known labels
        assert "label" in refused(nodes=nodes, split="")
    else:
        found = rows(nodes=nodes, split="").warnings
        count = labels.count(-1)
        assert bool(count) == any(f"({count} cell" in warning for warning in found)


def test_labels_of_plus_and_minus_one_are_refused_with_the_reason() -> None:
    message = refused(nodes=with_column(NODES, label=[1, -1, 1, -1, 1, -1]))
    assert "column label: there is only one class: every known label is '1'" in message
    assert "-1 means unknown" in message
    nodes = with_column(NODES, fun=[1, -1, 1, -1, 1, -1], big=[-1, 1, 1, 1, -1, 1])
    assert "there is only one class" in refused(nodes=nodes, label=["fun", "big"])


def test_classes_that_are_equal_numbers_among_words_are_reported() -> None:
    found = rows(nodes=with_column(NODES, label=["1", "1.0", "x", "1", "1.0", "x"]), split="")
    assert any("'1' and '1.0' differ only" in c for c in cautions(found, found.split(0)))


def test_a_label_column_that_is_listed_twice_is_refused() -> None:
    nodes = with_column(NODES, fun=[1, 0, 1, 0, 1, 0])
    assert "column fun: label lists the column twice" in refused(nodes=nodes, label=["fun", "fun"])


def test_class_counts_are_readable_if_names_contain_commas_or_end_with_numbers() -> None:
    labels = ["red, dark", "type 2", "red, dark", "type 2", "blue", "blue"]
    found = rows(nodes=with_column(NODES, label=labels), split="")
    assert summary(found, found.split(0))["classes"] == "3: blue 2, 'red, dark' 2, 'type 2' 2"


def test_many_constant_columns_are_one_warning_and_many_features_are_counted() -> None:
    columns = {f"g{n}": [1.0] * 6 for n in range(150)}
    found = rows(nodes=with_column(NODES, **columns), features=dict.fromkeys(columns, "numeric"))
    constant = [c for c in cautions(found, found.split(0)) if "same value" in c]
    assert len(constant) == 1
    assert "150 columns g0, g1" in constant[0]
    assert summary(found, found.split(0))["features"] == "150: 150 numeric"


def test_groups_that_are_equal_numbers_are_one_group() -> None:
    nodes = with_column(NODES, team=["1", "1.0", "2", "2.", "3", "3"])
    found = rows(nodes=nodes, group="team").groups
    assert found is not None
    assert found.tolist() == [0, 0, 1, 1, 2, 2]


def test_a_byte_order_mark_in_a_table_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    pd.DataFrame(NODES).to_csv(path, index=False, encoding="utf-8-sig")
    assert rows(nodes=path).task("t").node_names == ("a", "b", "c", "d", "e", "f")


def test_several_columns_are_binary_tasks_with_gaps() -> None:
    nodes = with_column(
        NODES, fun=[1, 0, 1, 0, None, -1], big=["true", "no", None, "0", None, None]
    )
    task = rows(nodes=nodes, label=["fun", "big"]).task("t")
    assert task.class_names == ("fun", "big")
    assert task.metric == "rocauc"
    assert task.labels.tolist() == [[1, 1], [0, 0], [1, -1], [0, 0], [-1, -1], [-1, -1]]


def test_one_cell_may_hold_several_labels() -> None:
    nodes = with_column(NODES, label=["x; y", "y", "z;x;", "x", None, ""])
    task = rows(nodes=nodes, label_separator=";").task("t")
    assert task.class_names == ("x", "y", "z")
    assert task.labels.tolist() == [
        [1, 1, 0],
        [0, 1, 0],
        [1, 0, 1],
        [1, 0, 0],
        [-1, -1, -1],
        [-1, -1, -1],
    ]


def test_parts_of_a_cell_that_name_no_label_are_left_out() -> None:
    nodes = with_column(NODES, label=["x;-1", ";y;", "x; NA ;y", "y", ";", "-1; "])
    task = rows(nodes=nodes, label_separator=";").task("t")
    assert task.class_names == ("x", "y")
    assert task.labels.tolist() == [[1, 0], [0, 1], [1, 1], [0, 1], [-1, -1], [-1, -1]]


# Splits


def test_sets_come_from_a_column() -> None:
    split = rows().task("t").split
    assert (split.train.tolist(), split.val.tolist(), split.test.tolist()) == ([0, 1], [2], [3])
    other = with_column(NODES, set=["Train", "training", "valid", "TEST", "", " "])
    again = rows(nodes=other).task("t").split
    assert torch.equal(again.val, split.val)


def test_sets_come_from_files_of_ids(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("b\na\n")
    pyarrow.parquet.write_table(pa.table({"id": ["c"]}), tmp_path / "val.parquet")
    split = (
        rows(
            split="",
            train_ids=str(tmp_path / "train.txt"),
            val_ids=str(tmp_path / "val.parquet"),
        )
        .task("t")
        .split
    )
    assert (split.train.tolist(), split.val.tolist(), split.test.tolist()) == ([0, 1], [2], [])


def test_a_split_by_shares_divides_each_class_alike_and_differs_by_seed() -> None:
    labels = np.repeat([0, 1, 2, -1], [50, 30, 10, 20])
    split = split_classes(labels, seed=0, train_share=0.6, val_share=0.2)
    for name, counts in (("train", [30, 18, 6]), ("val", [10, 6, 2]), ("test", [10, 6, 2])):
        assert np.bincount(labels[getattr(split, name)]).tolist() == counts
    other = split_classes(labels, seed=1, train_share=0.6, val_share=0.2)
    assert not np.array_equal(split.train, other.train)


@pytest.mark.parametrize(
    ("labels", "sizes"),
    [
        ([0, 0, 0, 1, 1, 1], (4, 1, 1)),  # by shares alone 4, 0, 2
        ([0, 0, 1], (2, 1, 0)),
        ([0, 1, 2], (3, 0, 0)),  # each class is learned from first
    ],
)
def test_val_is_not_empty_however_few_labels_are_known(
    labels: list[int], sizes: tuple[int, ...]
) -> None:
    for seed in range(3):
        split = split_classes(np.array(labels), seed=seed, train_share=0.6, val_share=0.2)
        assert (split.train.size, split.val.size, split.test.size) == sizes
        assert set(np.array(labels)[split.train]) == set(labels) - {-1}


def test_no_val_is_drawn_where_none_is_asked_for() -> None:
    split = split_classes(np.arange(6) % 2, seed=0, train_share=0.6, val_share=0.0)
    assert split.val.size == 0


def test_a_class_of_one_node_is_in_train() -> None:
    labels = np.array([0] * 20 + [1])
    split = split_classes(labels, seed=0, train_share=0.1, val_share=0.1)
    assert 20 in split.train


def test_a_split_by_groups_keeps_each_together() -> None:
    group = np.repeat(np.arange(20), 5)
    split = split_groups(group, np.ones(100, bool), seed=3, train_share=0.5, val_share=0.25)
    sets = [set(group[getattr(split, name)].tolist()) for name in ("train", "val", "test")]
    assert sum(len(s) for s in sets) == 20
    assert [len(s) for s in sets] == [10, 5, 5]


def test_a_column_of_groups_becomes_the_tasks_groups() -> None:
    nodes = with_column(NODES, group=["p", "p", "q", "r", None, None])
    task = rows(nodes=nodes, group="group").task("t")
    assert task.groups is not None
    group = task.groups.tolist()
    assert group[0] == group[1]
    assert len(set(group)) == 5  # without one, each is a group by itself


# Graph and features


def test_edges_pass_messages_both_ways_unless_directed() -> None:
    both, one = rows().task("t").graph, rows(directed=True).task("t").graph
    assert one.edge_index.tolist() == [[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]]
    assert both.num_edges == 10


def test_edges_that_stand_twice_are_merged_and_their_features_averaged() -> None:
    graph = rows(directed=True).task("t").graph
    attr = graph.edge_attr_of(None)
    assert attr is not None
    weight = np.array(EDGES["weight"])
    scaled = (weight - weight.mean()) / weight.std()
    assert attr[0, 0] == pytest.approx((scaled[0] + scaled[5]) / 2)


def test_few_features_are_dense_and_many_words_sparse() -> None:
    dense = rows().task("t")
    assert not dense.sizes.sparse
    assert dense.sizes.features == 2 + 2 + 1 + 1  # age and its gap; red, blue, other, missing
    text = {"color": "text"}
    assert rows(features=text).task("t").sizes.sparse


def test_nodes_may_have_no_features() -> None:
    assert rows(features={}).task("t").graph.x is None


def test_skipped_edges_take_their_features_with_them() -> None:
    edges = with_column(EDGES, source=["x", "b", "c", "d", "e", "a"])
    found = rows(edges=edges, unknown_ids="skip", directed=True)
    assert found.edge_values["weight"].tolist() == [2, 3, 4, 5, 3]
    assert found.task("t").graph.num_edges == 5
    assert "skipped 1 of 6 edges" in cautions(found, found.split(0))[0]


# Summaries and warnings


def test_a_label_among_the_features_is_refused() -> None:
    assert "both the label and a feature" in refused(features={"label": "categorical"})


def test_problems_of_both_tables_are_told_at_once() -> None:
    text = refused(
        nodes=with_column(NODES, id=["a", "a", "c", "d", "e", "f"], age=[np.inf] * 6),
        edges=with_column(EDGES, weight=["w"] * 6),
        features={"age": "numeric", "size": "numeric", "color": "colour"},
    )
    assert text.startswith("5 problems in the tables:\n")


def test_the_summary_says_what_was_understood() -> None:
    found = rows()
    options = summary(found, found.split(0))
    assert options["edges"].startswith("6, messages pass in both directions; 1 duplicates")
    assert options["classes"] == "2: no 2, yes 2"
    assert options["train / val / test"] == "2 / 1 / 1"
    assert options["isolated nodes"] == "0"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"nodes": with_column(NODES, age=[1.0] * 6)}, "column age has the same value"),
        ({"features": {}}, "no feature columns"),
        ({"nodes": with_column(NODES, set=["train"] * 2 + [None] * 4)}, "the val set is empty"),
        ({}, "the val set has 1 node, fewer than"),
        ({"nodes": with_column(NODES, set=["train", "val", *[None] * 4])}, "the class no"),
        (
            {"nodes": with_column(NODES, group=["p"] * 6), "group": "group"},
            "in more than one set",
        ),
        ({}, "fewer than 10 known labels: no (2), yes (2)"),
        ({}, "the val set has 1 node, fewer than 30"),
        ({}, "the test set has 1 node, fewer than 30"),
        (
            {"nodes": with_column(NODES, label=["OK", "ok", "O k", "no", "no", None])},
            "classes 'O k' and 'OK' and 'ok' differ only in case, spaces",
        ),
    ],
)
def test_what_is_probably_not_meant_is_a_warning(options: dict[str, Any], words: str) -> None:
    found = rows(**options)
    assert any(words in caution for caution in cautions(found, found.split(0)))


def test_a_rare_class_of_two_is_a_warning_and_an_even_one_is_not() -> None:
    def options(rare: int) -> list[str]:
        names = [f"n{number}" for number in range(200)]
        labels = ["fraud"] * rare + ["ok"] * (200 - rare)
        found = rows(
            nodes={"id": names, "label": labels},
            edges={"source": names[:-1], "target": names[1:]},
            **{"split": "", "features": {}, "edge_features": {}},
        )
        return [one for one in cautions(found, found.split(0)) if "no feature" not in one]

    few, uneven = options(8)
    assert few.startswith("fewer than 10 known labels: fraud (8)")
    assert "ok is 96% of the known labels" in uneven
    assert 'task.metric = "rocauc"' in uneven
    assert options(100) == []


# More rows

MORE_NODES = {"id": ["g", "h"], "age": [3.0, None], "color": ["pink", "red"], "label": ["no", None]}
MORE_EDGES = {"source": ["g", "a"], "target": ["a", "h"], "weight": [1.0, 2.0]}


def test_old_nodes_keep_their_numbers_and_new_ones_follow() -> None:
    task = rows().task("t")
    larger = extend_task(task, MORE_NODES, MORE_EDGES)
    assert larger.node_names == (*NODES["id"], "g", "h")
    assert larger.labels.tolist() == [1, 0, 1, 0, -1, -1, 0, -1]
    assert torch.equal(larger.split.train, task.split.train)
    assert larger.graph.num_edges == task.graph.num_edges + 4
    old, new = task.graph.x, larger.graph.x
    assert isinstance(old, torch.Tensor)
    assert isinstance(new, torch.Tensor)
    assert torch.equal(new[:6], old)
    columns = ["age", "no age", "blue", "red", "other", "none"]
    assert new[6, columns.index("other")] == 1  # pink was never seen
    assert new[7, columns.index("no age")] == 1


@pytest.mark.parametrize("directed", [True, False])
def test_rows_that_come_later_make_the_graph_that_all_at_once_would(directed: bool) -> None:
    features = {"age": "numeric", "color": "text"}
    whole_nodes = {k: NODES[k] + MORE_NODES.get(k, [None, None]) for k in NODES}
    whole_edges = {k: EDGES[k] + MORE_EDGES[k] for k in EDGES}
    options = {"features": features, "directed": directed, "edge_features": {}}
    whole = rows(nodes=whole_nodes, edges=whole_edges, **options).task("t")
    larger = extend_task(rows(**options).task("t"), MORE_NODES, MORE_EDGES)
    assert torch.equal(larger.graph.edge_index, whole.graph.edge_index)
    assert isinstance(larger.graph.x, SparseFeatures)
    assert larger.graph.x.shape == (8, whole.sizes.features)


def test_edges_alone_or_nodes_alone_may_come() -> None:
    task = rows().task("t")
    assert extend_task(task, nodes=MORE_NODES).graph.num_edges == task.graph.num_edges
    between_old = {"source": ["a"], "target": ["f"], "weight": [1.0]}
    assert extend_task(task, edges=between_old).graph.num_edges == task.graph.num_edges + 2


def test_more_rows_are_checked_as_the_first_were() -> None:
    task = rows().task("t")
    with pytest.raises(TaskError, match="4 problems") as error:
        extend_task(
            task,
            with_column(MORE_NODES, id=["a", "h"], age=["x", "1"]),
            with_column(MORE_EDGES, target=["nobody", "h"]),
        )
    assert "'a' is already a node of the run" in str(error.value)
    assert "--unknown-ids skip" in str(error.value)
    edges = with_column(MORE_EDGES, target=["nobody", "h"])
    larger = extend_task(task, MORE_NODES, edges, unknown_ids="skip")
    assert larger.graph.num_edges == task.graph.num_edges + 2


def test_a_task_that_no_table_made_cannot_grow_by_one() -> None:
    with pytest.raises(TaskError, match="synthetic was not built from tables"):
        extend_task(synthetic_task(num_nodes=20, num_edges=40, num_classes=2), MORE_NODES)


def test_transforms_come_back_from_their_file_as_they_were(tmp_path: Path) -> None:
    task = rows(features={"age": "numeric", "color": "text"}).task("t")
    assert task.tables is not None
    task.tables.save(tmp_path / "transforms.json")
    assert with_transforms(task, tmp_path).tables == task.tables


# From Python, guessed, and out again


@pytest.mark.parametrize("kind", [dict, pa.table, pd.DataFrame, pl.DataFrame])
def test_what_is_not_told_is_guessed_from_any_frame(kind: Any) -> None:
    nodes = with_column(NODES, color=["red", "red", "blue", "blue", "red", None])
    task = unimp.task_from_tables(kind(nodes), kind(EDGES))
    assert task.tables is not None
    layout = task.tables.layout
    assert (layout.id, layout.source, layout.target) == ("id", "source", "target")
    assert (layout.label, layout.split, layout.directed) == ("label", "set", False)
    assert layout.features == {"age": "numeric", "color": "categorical"}
    options = unimp.task_from_tables(kind(nodes), kind(EDGES), **LAYOUT)
    assert options.data_hash() == task.data_hash()


def test_shares_that_are_told_are_not_overruled_by_a_guess() -> None:
    task = unimp.task_from_tables(NODES, EDGES, train_share=0.5, val_share=0.25)
    assert task.split.train.numel() + task.split.val.numel() + task.split.test.numel() == 4


def test_columns_are_guessed_by_what_they_hold() -> None:
    count = 60
    draw = np.random.default_rng(0)
    nodes = {
        "row": np.arange(count),
        "url": [f"https://x.org/{i}" for i in range(count)],
        "born": pd.date_range("2000-01-01", periods=count),
        "size": draw.normal(size=count),
        "stars": draw.integers(1, 6, count),
        "land": draw.choice(["de", "fr"], count),
        "about": [f"a text about number {i} and more" for i in range(count)],
        "same": ["x"] * count,
        "place": [f"{a:.2f} {a:.2f}" for a in draw.random(count)],
        "topics": draw.choice(["x;y", "y", "x", "z;x"], count),
    }
    ends = draw.integers(0, count, (2, 200))
    urls = np.array(nodes["url"])
    edges = {"kind": draw.choice(["a", "b"], 200), "to": urls[ends[1]], "from": urls[ends[0]]}
    found = guess(
        Table("nodes", pa.Table.from_pandas(pd.DataFrame(nodes))),
        Table("edges", pa.table(edges)),
        {"label": "topics"},
    )
    layout = found.layout
    assert (layout.id, layout.source, layout.target) == ("url", "from", "to")
    assert layout.label_separator == ";"
    assert layout.features == {
        "size": "numeric",
        "stars": "numeric",
        "land": "categorical",
        "about": "text",
        "place": "vector",
    }
    assert set(found.left_out) == {"row", "born", "same"}
    assert layout.edge_features == {"kind": "categorical"}


def named_tasks() -> list[Task]:
    graph = Graph.from_edges(
        [[0, 1, 1], [1, 0, 2]], num_nodes=3, x=SparseFeatures.from_scipy(_eye(3))
    )
    split = Split(torch.tensor([0]), torch.tensor([1]), torch.tensor([2]))
    labels = torch.tensor([0, 1, 1])
    return [
        synthetic_task(num_nodes=40, num_edges=90, num_classes=3, num_features=4),
        synthetic_like("proteins", scale=0.001),
        Task("s", graph, labels, split, "accuracy", 2, groups=torch.tensor([5, 6, 7])),
    ]


def _eye(size: int) -> Any:
    from scipy import sparse

    return sparse.eye_array(size)


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("number", range(3))
def test_an_exported_task_comes_back_as_it_was(number: int, form: Any, tmp_path: Path) -> None:
    task = named_tasks()[number]
    nodes, edges = export_tables(task, tmp_path, form)
    again = unimp.task_from_tables(nodes, edges, directed=True)
    assert again.tables is not None
    assert again.labels.tolist() == task.labels.tolist()
    for part in ("train", "val", "test"):
        assert torch.equal(getattr(again.split, part), getattr(task.split, part).sort().values)
    assert torch.equal(again.graph.edge_index, task.graph.deduplicate().edge_index)
    if isinstance(task.graph.x, torch.Tensor):
        assert isinstance(again.graph.x, torch.Tensor)
        torch.testing.assert_close(again.graph.x, task.graph.x)
    if task.graph.edge_attr is not None:
        torch.testing.assert_close(
            again.graph.edge_attr_of(None), task.graph.deduplicate().edge_attr_of(None)
        )
    assert (again.groups is None) == (task.groups is None)
    with pytest.raises(OutputError, match=r"nodes.* exists already"):
        export_tables(task, tmp_path, form)
