"""Show that malformed tables and recipes from Hypothesis are refused with a clear message.

    python proofs/bad_tables.py --cases 600         → proofs/results/bad_tables.json

A case is a valid pair of tables, a recipe and a command with one to three defects. The command must
exit with code 1, state what is wrong, where, and how to fix it, print no traceback and nothing
else, and leave no new file behind.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import os
import random
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unimp.cli import main as unimp_main
from unimp.data.files import write_atomically
from unimp.tracking.origin import code_origin

FOLDERS = re.compile(rf"{re.escape(tempfile.gettempdir())}/\w+/")
"""Temporary folders, which messages of this proof contain."""
RESULTS = Path(__file__).parent / "results" / "bad_tables.json"
WORDS = st.text(st.characters(categories=["L"]), min_size=1, max_size=8)


@dataclass
class Case:
    """Files and a command, with the names of their defects."""

    nodes: list[dict[str, Any]]
    edges: list[dict[str, Any]]
    recipe: dict[str, Any]
    form: str  # of both tables: csv, parquet or arrow
    command: str
    header: dict[str, list[str]] = field(default_factory=dict)  # columns as written, if different
    late: list[Callable[[Path], None]] = field(default_factory=list)  # changes of the written files
    arguments: list[str] = field(default_factory=list)
    defects: list[str] = field(default_factory=list)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """A short form, for the message of Hypothesis when a case is not refused."""
        del cycle
        printer.text(f"{self.command}, {self.form}, {self.defects}, {self.recipe}")

    def rows(self, what: str) -> list[dict[str, Any]]:
        return self.nodes if what == "nodes" else self.edges

    def file(self, what: str) -> str:
        return f"{what}.{self.form}"


def valid_case(form: str, command: str) -> Case:
    """Two valid tables with a column of each kind, and a recipe for them."""
    draw = random.Random(0)
    nodes = [
        {
            "id": f"n{i}",
            "age": float(i % 7),
            "kind": "abc"[i % 3],
            "words": f"some words of row {i % 5}",
            "vector": [float(i), 1.0, 2.0],
            "label": ["red", "blue"][i % 2] if i % 4 else None,
            "set": ["train", "val", "test"][i % 3] if i % 4 else None,
        }
        for i in range(24)
    ]
    edges = [
        {
            "source": f"n{draw.randrange(24)}",
            "target": f"n{draw.randrange(24)}",
            "weight": 0.5 * i,
            "way": [float(i), 1.0],
        }
        for i in range(60)
    ]
    features = {"age": "numeric", "kind": "categorical", "words": "text", "vector": "vector"}
    recipe = {
        "tables": {
            "nodes": f"nodes.{form}",
            "edges": f"edges.{form}",
            "label": "label",
            "split": "set",
            "features": features,
            "edge_features": {"weight": "numeric", "way": "vector"},
        },
        "model": {"width": 4, "layers": 1},
        "train": {"epochs": 1, "device": "cpu"},
    }
    return Case(nodes, edges, recipe, form, command)


Draw = Any
Defect = Callable[[Case, Draw], None]
DEFECTS: dict[str, Defect] = {}
FOR_TABLES = ("check", "train")
COMMANDS: dict[str, tuple[str, ...]] = {}
EXCLUSIVE: set[str] = set()  # defects that another defect could undo or hide


def defect(*commands: str, alone: bool = False) -> Callable[[Defect], Defect]:
    """Register a defect for some commands; `alone`: never together with others."""

    def register(function: Defect) -> Defect:
        name = function.__name__.replace("_", " ")
        DEFECTS[name] = function
        COMMANDS[name] = commands or FOR_TABLES
        if alone:
            EXCLUSIVE.add(name)
        return function

    return register


def some_row(case: Case, draw: Draw, what: str) -> dict[str, Any]:
    rows = case.rows(what)
    return rows[draw(st.integers(0, len(rows) - 1))]


def as_words(case: Case, what: str, column: str) -> None:
    """Turn a column into text, so that one cell can contain a word."""
    for row in case.rows(what):
        value = row[column]
        row[column] = (
            " ".join(map(str, value))
            if isinstance(value, list)
            else None
            if value is None
            else str(value)
        )


# Ids and ends


@defect(*FOR_TABLES, "predict")
def an_id_is_empty(case: Case, draw: Draw) -> None:
    some_row(case, draw, "nodes")["id"] = draw(st.sampled_from([None, "", "  "]))


@defect(*FOR_TABLES, "predict")
def an_id_is_duplicated(case: Case, draw: Draw) -> None:
    first, second = draw(st.permutations(range(len(case.nodes))))[:2]
    case.nodes[first]["id"] = case.nodes[second]["id"] = "twice"


@defect(*FOR_TABLES, "predict")
def an_edge_names_an_unknown_node(case: Case, draw: Draw) -> None:
    end = draw(st.sampled_from(["source", "target"]))
    some_row(case, draw, "edges")[end] = "nobody " + draw(WORDS)


@defect(*FOR_TABLES, "predict")
def an_edge_end_is_empty(case: Case, draw: Draw) -> None:
    end = draw(st.sampled_from(["source", "target"]))
    some_row(case, draw, "edges")[end] = draw(st.sampled_from([None, "", " "]))


@defect(alone=True)
def an_id_is_not_an_integer(case: Case, draw: Draw) -> None:
    case.form = "parquet"
    case.recipe["tables"] |= {"nodes": "nodes.parquet", "edges": "edges.parquet"}
    for number, row in enumerate(case.nodes):
        row["id"] = float(number)
    wrong = [0.5, 0.25, float("inf"), float("-inf"), 1e19]
    some_row(case, draw, "nodes")["id"] = draw(st.sampled_from(wrong))


@defect("predict", alone=True)
def a_node_is_known_already(case: Case, draw: Draw) -> None:
    some_row(case, draw, "nodes")["id"] = f"n{draw(st.integers(0, 23))}"


# Cells

VECTORS = [("nodes", "vector"), ("edges", "way")]


@defect(*FOR_TABLES, "predict")
def a_number_is_a_word(case: Case, draw: Draw) -> None:
    what, column = draw(st.sampled_from([("nodes", "age"), ("edges", "weight")]))
    as_words(case, what, column)
    some_row(case, draw, what)[column] = "word " + draw(WORDS)


@defect(*FOR_TABLES, "predict", alone=True)
def a_number_has_a_comma(case: Case, draw: Draw) -> None:
    what, column = draw(st.sampled_from([("nodes", "age"), ("edges", "weight")]))
    as_words(case, what, column)
    some_row(case, draw, what)[column] = draw(st.sampled_from(["1,5", "1,003", "1.003,5"]))


@defect(*FOR_TABLES, "predict")
def a_number_is_infinite(case: Case, draw: Draw) -> None:
    what, column = draw(st.sampled_from([("nodes", "age"), ("edges", "weight")]))
    if case.rows(what)[0].get(column) is not None and isinstance(case.rows(what)[0][column], str):
        some_row(case, draw, what)[column] = "inf"
    else:
        wild = st.sampled_from([float("inf"), float("-inf"), 1e300])
        some_row(case, draw, what)[column] = draw(wild)


@defect("predict", alone=True)
def a_new_number_is_far_outside_of_training(case: Case, draw: Draw) -> None:
    what, column = draw(st.sampled_from([("nodes", "age"), ("edges", "weight")]))
    some_row(case, draw, what)[column] = draw(st.sampled_from([3e38, -3e38, 1e12]))


@defect(*FOR_TABLES, "predict")
def a_vector_is_longer(case: Case, draw: Draw) -> None:
    what, column = draw(st.sampled_from(VECTORS))
    row = some_row(case, draw, what)
    more = draw(st.integers(1, 3))
    row[column] = row[column] + [0.0] * more if isinstance(row[column], list) else "1 2 3 4 5"


@defect(*FOR_TABLES, "predict")
def a_vector_contains_a_word(case: Case, draw: Draw) -> None:
    what, column = draw(st.sampled_from(VECTORS))
    as_words(case, what, column)
    wrong = draw(st.sampled_from(["x", "nan", "inf", "--"]))
    some_row(case, draw, what)[column] = f"{wrong} 1" if what == "edges" else f"1 {wrong} 2"


@defect("predict", alone=True)
def all_vectors_have_another_length(case: Case, draw: Draw) -> None:
    what, column = draw(st.sampled_from(VECTORS))
    length = draw(st.sampled_from([1, 4, 9]))
    for row in case.rows(what):
        row[column] = [1.0] * length


@defect("predict", alone=True)
def a_new_node_has_an_unknown_class(case: Case, draw: Draw) -> None:
    some_row(case, draw, "nodes")["label"] = draw(st.sampled_from(["rad", "Blue", "green", "1"]))


@defect(alone=True)
def a_feature_has_the_wrong_kind(case: Case, draw: Draw) -> None:
    column, kind = draw(
        st.sampled_from([("words", "numeric"), ("kind", "numeric"), ("kind", "vector")])
    )
    case.recipe["tables"]["features"][column] = kind


@defect()
def a_set_name_is_unknown(case: Case, draw: Draw) -> None:
    some_row(case, draw, "nodes")["set"] = "set " + draw(WORDS)


@defect(alone=True)
def a_train_node_has_no_label(case: Case, draw: Draw) -> None:
    row = some_row(case, draw, "nodes")
    row["set"], row["label"] = draw(st.sampled_from(["train", "val"])), None


@defect(alone=True)
def no_label_is_known(case: Case, draw: Draw) -> None:
    nothing = draw(st.sampled_from([None, "", "-1", "null"]))
    for row in case.nodes:
        row["label"] = nothing


@defect(alone=True)
def there_is_only_one_class(case: Case, draw: Draw) -> None:
    only = draw(WORDS)
    for row in case.nodes:
        row["label"] = only


@defect(alone=True)
def labels_are_plus_and_minus_one(case: Case, draw: Draw) -> None:
    case.recipe["tables"]["split"] = ""
    as_text = draw(st.booleans())
    for number, row in enumerate(case.nodes):
        row["label"] = str(2 * (number % 2) - 1) if as_text else 2 * (number % 2) - 1


@defect(alone=True)
def a_label_column_is_listed_twice(case: Case, draw: Draw) -> None:
    case.recipe["tables"]["label"] = ["binary", "binary"]
    for row in case.nodes:
        row["binary"] = draw(st.integers(0, 1))


@defect(alone=True)
def there_is_only_one_train_label(case: Case, draw: Draw) -> None:
    known = [row for row in case.nodes if row["label"] is not None]
    lone = draw(st.integers(0, len(known) - 1))
    for number, row in enumerate(known):
        row["set"] = "train" if number == lone else "test"


@defect(alone=True)
def every_label_differs(case: Case, draw: Draw) -> None:
    del draw
    for number, row in enumerate(case.nodes):
        row["label"] = f"label {number}"


@defect(alone=True)
def labels_are_continuous(case: Case, draw: Draw) -> None:
    words = draw(st.booleans())
    for number, row in enumerate(case.nodes):
        row["label"] = number + draw(st.floats(0.1, 0.9))
        if words:
            row["label"] = f"{row['label']:.3f}1"


@defect(alone=True)
def binary_labels_are_words(case: Case, draw: Draw) -> None:
    case.recipe["tables"]["label"] = ["label", "kind"]
    some_row(case, draw, "nodes")["label"] = "maybe"


@defect(alone=True)
def no_node_is_in_train(case: Case, draw: Draw) -> None:
    other = draw(st.sampled_from(["test", None]))
    for row in case.nodes:
        row["set"] = other


# Columns

USED = [("nodes", c) for c in ("id", "age", "kind", "words", "vector", "label", "set")] + [
    ("edges", c) for c in ("source", "target", "weight", "way")
]


@defect(alone=True)
def a_column_is_missing(case: Case, draw: Draw) -> None:
    what, column = draw(st.sampled_from(USED))
    for row in case.rows(what):
        del row[column]


@defect("predict", alone=True)
def a_column_of_training_is_missing(case: Case, draw: Draw) -> None:
    what, column = draw(st.sampled_from([u for u in USED if u[1] not in ("label", "set")]))
    for row in case.rows(what):
        del row[column]


@defect(alone=True)
def a_column_is_misspelled(case: Case, draw: Draw) -> None:
    what, column = draw(st.sampled_from(USED))
    for row in case.rows(what):
        row[column + draw(st.just("x"))] = row.pop(column)


@defect(alone=True)
def a_column_is_duplicated(case: Case, draw: Draw) -> None:
    case.form = "csv"
    case.recipe["tables"] |= {"nodes": "nodes.csv", "edges": "edges.csv"}
    what, column = draw(st.sampled_from(USED))
    names = list(case.rows(what)[0])
    other = draw(st.sampled_from([name for name in names if name != column]))
    case.header[what] = [column if name == other else name for name in names]


@defect(alone=True)
def a_table_has_no_rows(case: Case, draw: Draw) -> None:
    what = draw(st.sampled_from(["nodes", "edges"]))
    case.late.append(lambda folder: keep_header(folder / case.file(what)))


def keep_header(path: Path) -> None:
    if path.suffix == ".csv":
        path.write_bytes(path.read_bytes().split(b"\n")[0] + b"\n")
    else:
        table = read_table(path).slice(0, 0)
        write_table(table, path)


# Bytes


def overwrite(case: Case, what: str, change: Callable[[bytes], bytes]) -> None:
    def late(folder: Path) -> None:
        path = folder / case.file(what)
        path.write_bytes(change(path.read_bytes()))

    case.late.append(late)


TABLE = st.sampled_from(["nodes", "edges"])


@defect(*FOR_TABLES, "predict", "init", alone=True)
def a_file_is_empty(case: Case, draw: Draw) -> None:
    overwrite(case, draw(TABLE), lambda data: b"")


@defect(*FOR_TABLES, "predict", "init", alone=True)
def a_file_is_garbage(case: Case, draw: Draw) -> None:
    garbage = draw(st.binary(min_size=8, max_size=200))
    overwrite(case, draw(TABLE), lambda data: b"\xff" + garbage)


@defect(*FOR_TABLES, "predict", "init", alone=True)
def a_file_is_cut_short(case: Case, draw: Draw) -> None:
    case.form = draw(st.sampled_from(["parquet", "arrow"]))
    case.recipe["tables"] |= {"nodes": case.file("nodes"), "edges": case.file("edges")}
    share = draw(st.floats(0.1, 0.9))
    overwrite(case, draw(TABLE), lambda data: data[: max(10, int(share * len(data)))])


@defect(*FOR_TABLES, "predict", "init", alone=True)
def a_file_is_in_another_encoding(case: Case, draw: Draw) -> None:
    case.form = "csv"
    case.recipe["tables"] |= {"nodes": "nodes.csv", "edges": "edges.csv"}
    what, encoding = draw(TABLE), draw(st.sampled_from(["latin-1", "utf-16"]))
    for row in case.rows(what)[::5]:
        row["id" if what == "nodes" else "source"] = "Zoë"
    overwrite(case, what, lambda data: data.decode().encode(encoding))


@defect(*FOR_TABLES, "predict", "init", alone=True)
def a_file_has_no_header(case: Case, draw: Draw) -> None:
    case.form = "csv"
    case.recipe["tables"] |= {"nodes": "nodes.csv", "edges": "edges.csv"}
    overwrite(case, draw(TABLE), lambda data: data.partition(b"\n")[2])


@defect(*FOR_TABLES, "predict", "init", alone=True)
def a_row_has_too_many_fields(case: Case, draw: Draw) -> None:
    case.form = "csv"
    case.recipe["tables"] |= {"nodes": "nodes.csv", "edges": "edges.csv"}
    extra = draw(st.integers(1, 4)) * b",1"
    place = draw(st.integers(1, 20))

    def change(data: bytes) -> bytes:
        lines = data.split(b"\n")
        lines[place] += extra
        return b"\n".join(lines)

    overwrite(case, draw(TABLE), change)


@defect(*FOR_TABLES, "predict", "init", alone=True)
def a_file_is_missing(case: Case, draw: Draw) -> None:
    what = draw(TABLE)
    case.late.append(lambda folder: (folder / case.file(what)).unlink())


@defect(*FOR_TABLES, "predict", "init", alone=True)
def a_file_is_a_folder(case: Case, draw: Draw) -> None:
    what = draw(TABLE)

    def late(folder: Path) -> None:
        (folder / case.file(what)).unlink()
        (folder / case.file(what)).mkdir()

    case.late.append(late)


@defect(*FOR_TABLES, alone=True)
def a_file_has_an_unknown_format(case: Case, draw: Draw) -> None:
    what, suffix = draw(TABLE), draw(st.sampled_from(["xlsx", "json", "dat"]))
    case.form = "csv"
    case.recipe["tables"] |= {"nodes": "nodes.csv", "edges": "edges.csv"}
    case.recipe["tables"][what] = f"{what}.{suffix}"
    case.late.append(lambda folder: (folder / f"{what}.csv").rename(folder / f"{what}.{suffix}"))


# Recipes


@defect()
def an_option_is_misspelled(case: Case, draw: Draw) -> None:
    section = draw(st.sampled_from(["tables", "model", "train"]))
    case.recipe[section][draw(st.sampled_from(["lable", "idd", "epoch", "widht", "edge"]))] = "x"


@defect()
def a_section_is_misspelled(case: Case, draw: Draw) -> None:
    case.recipe[draw(st.sampled_from(["table", "modle", "trian"]))] = {"epochs": 1}


@defect()
def an_option_has_the_wrong_type(case: Case, draw: Draw) -> None:
    key, value = draw(
        st.sampled_from(
            [
                ("directed", "maybe"),
                ("features", ["age"]),
                ("label", 7),
                ("train_share", 1.5),
                ("val_share", -0.1),
                ("text_width", 0),
                ("id", ["id"]),
                ("unknown_ids", "forget"),
                ("edge_features", {"weight": "text"}),
                ("features", {"age": "number"}),
            ]
        )
    )
    case.recipe["tables"][key] = value


@defect(alone=True)
def a_column_in_the_recipe_is_misspelled(case: Case, draw: Draw) -> None:
    key = draw(st.sampled_from(["id", "source", "target", "label", "split", "group"]))
    case.recipe["tables"][key] = draw(WORDS) + " column"


@defect(alone=True)
def a_feature_in_the_recipe_is_misspelled(case: Case, draw: Draw) -> None:
    key = draw(st.sampled_from(["features", "edge_features"]))
    case.recipe["tables"][key] = {draw(WORDS) + " column": "numeric"}


@defect(alone=True)
def no_label_is_named(case: Case, draw: Draw) -> None:
    case.recipe["tables"]["label"] = draw(st.sampled_from(["", []]))


@defect()
def the_label_is_a_feature(case: Case, draw: Draw) -> None:
    case.recipe["tables"].setdefault("features", {})
    if isinstance(case.recipe["tables"]["features"], dict):
        case.recipe["tables"]["features"]["label"] = draw(st.sampled_from(["categorical", "text"]))


@defect(alone=True)
def shares_exceed_one(case: Case, draw: Draw) -> None:
    case.recipe["tables"] |= {
        "split": "",
        "train_share": draw(st.floats(0.6, 1.0)),
        "val_share": draw(st.floats(0.41, 0.9)),
    }


@defect(alone=True)
def source_and_target_are_one_column(case: Case, draw: Draw) -> None:
    case.recipe["tables"]["source"] = draw(st.just("target"))


@defect(alone=True)
def the_task_is_named_twice(case: Case, draw: Draw) -> None:
    case.recipe["task"] = {"name": draw(st.sampled_from(["debian", "synthetic", "tabels"]))}


@defect(alone=True)
def an_option_of_another_task_is_set(case: Case, draw: Draw) -> None:
    case.recipe["task"] = draw(
        st.sampled_from([{"scale": 0.5}, {"node_features": "mean"}, {"features": "x"}])
    )


@defect(alone=True)
def the_metric_does_not_fit(case: Case, draw: Draw) -> None:
    case.recipe["task"] = {"metric": "rocauc"}
    some_row(case, draw, "nodes")["label"] = "green"
    case.recipe["tables"]["split"] = ""


@defect(alone=True)
def groups_are_missing(case: Case, draw: Draw) -> None:
    del draw
    case.recipe["mask"] = {"unit": "group"}


@defect(alone=True)
def there_are_too_few_groups(case: Case, draw: Draw) -> None:
    case.recipe["tables"] |= {"split": "", "group": "kind"}
    letters = draw(st.sampled_from(["a", "ab"]))
    for number, row in enumerate(case.nodes):
        row["kind"] = letters[number % len(letters)]


@defect(alone=True)
def a_file_of_ids_is_wrong(case: Case, draw: Draw) -> None:
    case.recipe["tables"] |= {"split": "", "train_ids": "train.txt", "val_ids": "val.txt"}
    train, val = draw(
        st.sampled_from(
            [
                ("n1\nnobody\n", "n2\n"),
                ("n1\nn2\n", "n2\n"),
                ("n1\nn1\n", "n2\n"),
                ("n1\n\nn3\n", "n2\n"),
                ("n4\n", "n1\n"),
                ("", "n1\n"),
            ]
        )
    )

    def late(folder: Path) -> None:
        (folder / "train.txt").write_text(train)
        (folder / "val.txt").write_text(val)

    case.late.append(late)


@defect(alone=True)
def a_file_of_ids_is_missing(case: Case, draw: Draw) -> None:
    key = draw(st.sampled_from(["train_ids", "val_ids", "test_ids"]))
    case.recipe["tables"] |= {"split": "", key: "nowhere.txt"}


@defect(alone=True)
def the_split_is_given_twice(case: Case, draw: Draw) -> None:
    case.recipe["tables"][draw(st.sampled_from(["train_ids", "val_ids"]))] = "train.txt"
    case.late.append(lambda folder: (folder / "train.txt").write_text("n1\n") and None)


@defect(alone=True)
def the_recipe_is_not_toml(case: Case, draw: Draw) -> None:
    text = draw(st.sampled_from(["[tables", "nodes = ", "= 3", "[tables]\nnodes = 'a\n"]))
    case.late.append(lambda folder: (folder / "recipe.toml").write_text(text) and None)


@defect(alone=True)
def the_recipe_is_not_text(case: Case, draw: Draw) -> None:
    data = b"\xff\xfe" + draw(st.binary(max_size=20))
    case.late.append(lambda folder: (folder / "recipe.toml").write_bytes(data) and None)


@defect(alone=True)
def a_setting_is_wrong(case: Case, draw: Draw) -> None:
    case.arguments += [
        "--set",
        draw(
            st.sampled_from(
                [
                    "tables.idd=x",
                    "tables.features=age",
                    "tables",
                    "tables.directed=3",
                    "nodes=a.csv",
                ]
            )
        ),
    ]


# init and predict


@defect("init", alone=True)
def the_recipe_exists_already(case: Case, draw: Draw) -> None:
    del draw
    case.late.append(lambda folder: (folder / "made.toml").write_text("") and None)


@defect("init", alone=True)
def the_recipe_to_write_is_not_toml(case: Case, draw: Draw) -> None:
    case.arguments += ["--out", draw(st.sampled_from(["made.txt", "made", "made.json"]))]


@defect("init", alone=True)
def the_label_column_does_not_exist(case: Case, draw: Draw) -> None:
    case.arguments += ["--label", draw(WORDS) + " column"]


@defect("init", alone=True)
def a_table_has_one_column(case: Case, draw: Draw) -> None:
    what = draw(TABLE)
    first = next(iter(case.rows(what)[0]))
    for row in case.rows(what):
        for column in [c for c in row if c != first]:
            del row[column]


@defect("predict", alone=True)
def the_rule_for_unknown_ids_is_misspelled(case: Case, draw: Draw) -> None:
    case.arguments += ["--unknown-ids", draw(st.sampled_from(["skipp", "drop", ""]))]


@defect("predict", alone=True)
def the_transforms_are_damaged(case: Case, draw: Draw) -> None:
    text = draw(
        st.sampled_from(["", "{", "[]", '{"format": 9}', '{"format": 1, "tables": {"x": 1}}'])
    )
    case.late.append(lambda folder: (folder / "run" / "transforms.json").write_text(text) and None)


@defect("predict", alone=True)
def a_label_file_is_wrong(case: Case, draw: Draw) -> None:
    case.arguments += ["--labels", "labels.csv"]
    text = draw(
        st.sampled_from(
            [
                "node,label\nm1,green\n",
                "node,label\nnobody,red\n",
                "person,label\nm1,red\n",
                "node,label,value\nm1,red,0\n",
                "node,label,label\nm1,red,red\n",
                "m1,red\nm2,red\n",
            ]
        )
    )
    case.late.append(lambda folder: (folder / "labels.csv").write_text(text) and None)


# Making and running


@st.composite
def cases(draw: Draw, first: str = "") -> Case:
    """A case with one defect, or with up to three that do not hide each other."""
    first = first or draw(st.sampled_from(sorted(DEFECTS)))
    command = draw(st.sampled_from(COMMANDS[first]))
    case = valid_case(draw(st.sampled_from(["csv", "parquet", "arrow"])), command)
    if command == "predict":
        case = as_new_rows(case)
    names = [first]
    if first not in EXCLUSIVE:
        others = [n for n in sorted(DEFECTS) if command in COMMANDS[n] and n not in EXCLUSIVE]
        names += draw(st.lists(st.sampled_from(others), max_size=2))
    for name in dict.fromkeys(names):
        DEFECTS[name](case, draw)
        case.defects.append(name)
    return case


def as_new_rows(case: Case) -> Case:
    """The same tables as new rows after training: other ids, and edges to known nodes."""
    for row in case.nodes:
        row["id"] = "m" + row["id"][1:]
    for number, row in enumerate(case.edges):
        if number % 2:
            row["source"] = "m" + row["source"][1:]
    return case


def read_table(path: Path) -> Any:
    return (
        pyarrow.parquet.read_table(path)
        if path.suffix == ".parquet"
        else pyarrow.feather.read_table(path)
    )


def write_table(table: Any, path: Path) -> None:
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, path)
    else:
        pyarrow.feather.write_feather(table, str(path), compression="uncompressed")


def write_case(case: Case, folder: Path, run: Path | None) -> None:
    for what in ("nodes", "edges"):
        path, rows = folder / case.file(what), copy.deepcopy(case.rows(what))
        if case.form == "csv":
            for row in rows:
                for column, value in row.items():
                    if isinstance(value, list):
                        row[column] = " ".join(map(str, value))
        table = pa.Table.from_pylist(rows)
        if case.form == "csv":
            names = case.header.get(what, table.column_names)
            pyarrow.csv.write_csv(table.rename_columns(names), path)
        else:
            write_table(table, path)
    (folder / "recipe.toml").write_text(tomli_w.dumps(case.recipe), encoding="utf-8")
    if case.command == "predict" and run is not None:
        shutil.copytree(run, folder / "run")
    for late in case.late:
        late(folder)


def command_line(case: Case) -> list[str]:
    nodes, edges = case.file("nodes"), case.file("edges")
    return {
        "check": ["check", "recipe.toml"],
        "train": ["train", "recipe.toml", "--out", "made"],
        "init": ["init", nodes, edges]
        + ([] if "--out" in case.arguments else ["--out", "made.toml"]),
        "predict": ["predict", "run", "--nodes", nodes, "--edges", edges, "--out", "made.csv"],
    }[case.command] + case.arguments


def run_command(arguments: list[str], folder: Path) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command, run in the folder."""
    out, err = io.StringIO(), io.StringIO()
    code, before, argv = 0, Path.cwd(), sys.argv
    sys.argv = ["unimp", *arguments]
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            unimp_main()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    finally:
        os.chdir(before)
        sys.argv = argv
    return code, out.getvalue(), err.getvalue()


PLACES = ("nodes", "edges", "recipe", "tables", "task.", "--", "mask.", "train.txt", "val.txt")
PLACES += ("transforms.json", "labels.csv", "model.", "train.", "made", ".toml", "nowhere.txt")


def refusal(case: Case, run: Path | None) -> str:
    """The error message for a case; raises AssertionError if it lacks anything."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_case(case, folder, run)
        before = {p: p.stat().st_mtime_ns for p in folder.rglob("*")}
        code, out, err = run_command(command_line(case), folder)
        while err.startswith("warning: "):  # `train` repeats the cautions of `check` first
            err = err.partition("\n")[2]
        after = {p: p.stat().st_mtime_ns for p in folder.rglob("*")}
    context = f"{case.command} {case.defects} {case.form}: {err!r}"
    assert code == 1, f"exit code {code}, {context}"
    assert err.startswith("error: "), context
    assert "Traceback" not in err, context
    assert "with --debug shows where" not in err, f"an unexpected error: {context}"
    assert any(name in err for name in PLACES), f"the place is missing: {context}"
    assert len(err.strip()) > 30, f"too short to contain a fix: {context}"
    assert any(
        mark in err
        for mark in (";", ". ", "write", "did you mean", "choose one of", "it takes", "must")
    ), context
    assert out == "", f"prints more than an error: {out!r}, {context}"
    changed = {p.relative_to(folder) for p in before.keys() ^ after.keys()}
    assert not changed, f"created or removed {changed}: {context}"
    return err


def trained_run(folder: Path) -> Path:
    """The folder of a run on the valid tables, for `predict`."""
    case = valid_case("csv", "train")
    write_case(case, folder, None)
    code, _, err = run_command(["train", "recipe.toml", "--out", "run"], folder)
    assert code == 0, err
    code, _, err = run_command(["check", "recipe.toml"], folder)
    assert code == 0, err
    return folder / "run"


def check_cases(check: Callable[[Case], None], strategy: Any, count: int) -> None:
    """Check a number of cases, which are the same in every run."""
    rules = settings(
        max_examples=max(1, count),
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    rules(given(strategy)(check))()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=600)
    wanted = parser.parse_args().cases
    seen: Counter[str] = Counter()
    commands: Counter[str] = Counter()
    messages: set[str] = set()
    example: dict[str, str] = {}

    with tempfile.TemporaryDirectory() as place:
        run = trained_run(Path(place))

        def is_refused(case: Case) -> None:
            message = refusal(case, run)
            messages.add(message)
            commands[case.command] += 1
            for name in case.defects:
                seen[name] += 1
                if len(case.defects) == 1:
                    example.setdefault(name, FOLDERS.sub("", message.strip()))

        # Each defect a few times, and then random combinations.
        for name in sorted(DEFECTS):
            check_cases(is_refused, cases(name), 3)
        check_cases(is_refused, cases(), wanted - sum(commands.values()))
    result = {
        "command": f"python proofs/bad_tables.py --cases {wanted}",
        "code": code_origin(),
        "cases": sum(commands.values()),
        "refused_as_expected": sum(commands.values()),
        "different_messages": len(messages),
        "by_command": dict(sorted(commands.items())),
        "by_defect": dict(sorted(seen.items())),
        "example_messages": dict(sorted(example.items())),
    }
    RESULTS.parent.mkdir(exist_ok=True)
    write_atomically(RESULTS, (json.dumps(result, indent=1, ensure_ascii=False) + "\n").encode())
    print(f"{result['cases']} cases, all refused with a clear message: {RESULTS}")


if __name__ == "__main__":
    main()
