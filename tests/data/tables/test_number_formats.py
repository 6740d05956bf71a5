"""Numbers with commas and points: clear formats are recognized, others are left to the user."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import unimp
from unimp.data.tables.extending import extend_task
from unimp.data.tables.guessing import Guess, guess
from unimp.data.tables.number_formats import has_decimal_commas, kind_of_numbers
from unimp.data.tables.problems import Problems
from unimp.data.tables.table import Table
from unimp.data.tables.values import read_values
from unimp.errors import TaskError


def cells(*texts: str) -> Any:
    return pa.array(texts, pa.large_string())


@pytest.mark.parametrize(
    ("texts", "clear"),
    [
        (("1,5", "2", "-3,25"), True),
        (("1,003", "0,125"), True),  # no thousand begins with 0
        (("1,003", "2,417"), False),
        (("1,5", "1,2,3"), False),
        (("1", "2"), False),
    ],
)
def test_a_decimal_comma_is_told_where_nothing_else_is_possible(
    texts: tuple[str, ...], clear: bool
) -> None:
    assert has_decimal_commas(cells(*texts)) is clear


@pytest.mark.parametrize(
    ("texts", "decimal", "delimiter", "kind", "why"),
    [
        (("1,5", "2,25"), ",", ";", "numeric", "decimal comma"),
        (("1,003", "2"), ",", ";", "numeric", "decimal comma"),
        (("1,5 2,5", "3,5 4"), ",", ";", "vector", "several"),
        (("1,2,3", "4,5,6"), ",", ";", "", "commas between numbers"),
        (("1.003,5", "2,5"), ",", ";", "", "points as thousands separators"),
        (("1,003", "2,417"), ".", ";", "", "thousands"),
        (("1,003", "999", "1,234,567.5"), ".", ",", "", "thousands"),
        (("1,5", "2,25"), ".", ",", "", "two numbers"),
        (("1,5", "2,25"), ".", "", "", "two numbers"),
        (("1.003,5", "2,5"), ".", "\t", "", "points as thousands separators"),
        (("0.5,0.25", "1.5,2.5"), ".", ",", "vector", "several"),
        (("1,2,3", "4,5,6"), ".", ",", "vector", "several"),
        (("[1, 2]", "[3, 4]"), ".", ",", "vector", "several"),
        (("1 2", "3 4"), ".", ";", "vector", "several"),
    ],
)
def test_columns_of_numbers_are_told_apart(
    texts: tuple[str, ...], decimal: Any, delimiter: str, kind: str, why: str
) -> None:
    found = kind_of_numbers(cells(*texts), decimal, delimiter)
    assert found is not None
    assert found[0] == kind
    assert why in found[1]


@pytest.mark.parametrize("texts", [("red", "blue"), ("a, b", "1,5"), ("1 2", "3 4 5")])
def test_words_and_cells_of_all_lengths_are_no_vectors(texts: tuple[str, ...]) -> None:
    assert kind_of_numbers(cells(*texts), ".", ",") is None


def written(folder: Path) -> tuple[Path, Path]:
    nodes, edges = folder / "n.csv", folder / "e.csv"
    rows = [f"{i};{i},5;{i} {i},25;{'ab'[i % 2]}" for i in range(10)]
    nodes.write_text("\n".join(["id;size;place;label", *rows]) + "\n")
    edges.write_text("\n".join(["source,target,weight", *(f"{i},{i + 1},{i}.5" for i in range(9))]))
    return nodes, edges


def test_tables_with_decimal_commas_are_read_as_meant_also_later(tmp_path: Path) -> None:
    task = unimp.task_from_tables(*written(tmp_path))
    assert task.tables is not None
    layout = task.tables.layout
    assert layout.decimal == ","
    assert layout.features == {"size": "numeric", "place": "vector"}
    assert layout.edge_features == {"weight": "numeric"}  # whose fields commas divide: points
    size, place = task.tables.nodes
    assert (getattr(size, "mean", None), getattr(place, "length", None)) == (5.0, 2)
    more = tmp_path / "more.csv"
    more.write_text("id;size;place\n99;5,0;1,5 2\n")
    larger = extend_task(task, more)
    assert larger.graph.x[10].tolist() == [0, 1.5, 2]  # type: ignore[union-attr, index]
    more.write_text("id;size;place\n99;5.0;1.5 2\n")
    with pytest.raises(TaskError, match="2 problems") as error:
        extend_task(task, more)
    assert "column size, row 1: '5.0' is not a number. Write numbers with a decimal comma" in str(
        error.value
    )


def test_a_number_with_a_comma_is_refused_with_what_to_do() -> None:
    problems = Problems()
    for delimiter in (",", ";"):
        table = Table("n", pa.table({"c": ["1,003", "2"]}), delimiter)
        assert read_values(table, "c", "numeric", problems) is None
    assert "rite a decimal point" in problems.found[0]
    assert 'set decimal = "," in [tables]' in problems.found[1]
    table = Table("n", pa.table({"c": ["1,5", "NA"]}), ";")
    found = read_values(table, "c", "numeric", problems, decimal=",")
    np.testing.assert_array_equal(found, [1.5, np.nan])


def test_what_a_comma_means_is_not_guessed_where_it_cannot_be_told() -> None:
    nodes = {"id": ["a", "b", "c"], "amount": ["1,003", "2,417", ""], "x": ["1,5", "2,5", "NA"]}
    edges = {"source": ["a", "b"], "target": ["b", "c"]}
    found: Guess = guess(Table("n", pa.table(nodes), ","), Table("e", pa.table(edges), ","))
    assert found.layout.features == {}
    assert "thousands" in found.left_out["amount"]
    assert "write points" in found.left_out["x"]
