"""Tables in: files and frames of any kind give the same columns, and ids say who is meant."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest

from unimp.data.tables.ids import positions, read_edges, read_ids
from unimp.data.tables.problems import Problems, place
from unimp.data.tables.reading import csv_header, open_table
from unimp.data.tables.table import Table
from unimp.errors import TaskError

COLUMNS = {"id": ["a", "b", "ü"], "age": [1.5, None, 3.0]}


def opened(given: Any, **options: Any) -> Table:
    problems = Problems()
    table = open_table(given, "nodes", problems, **options)
    problems.refuse()
    assert table is not None
    return table


def refused(given: Any, **options: Any) -> str:
    problems = Problems()
    assert open_table(given, "nodes", problems, **options) is None or problems.found
    with pytest.raises(TaskError) as error:
        problems.refuse()
    return str(error.value)


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def ids_of(values: Any, *, unique: bool = True) -> Any:
    problems = Problems()
    ids = read_ids(opened({"id": values}), "id", problems, unique=unique)
    problems.refuse()
    return ids


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "tsv", "parquet", "arrow", "stream", "feather"])
def test_every_kind_of_file_gives_the_same_columns(kind: str, tmp_path: Path) -> None:
    table, path = pa.table(COLUMNS), tmp_path / f"nodes.{kind}"
    if kind == "parquet":
        pyarrow.parquet.write_table(table, path)
    elif kind == "feather":
        pyarrow.feather.write_feather(table, str(path))
    elif kind in ("arrow", "stream"):
        path = tmp_path / "nodes.arrow"
        make = pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream
        with pa.OSFile(str(path), "wb") as file, make(file, table.schema) as writer:
            writer.write_table(table)
    else:
        options = pyarrow.csv.WriteOptions(delimiter="\t" if kind == "tsv" else ",")
        with pa.output_stream(str(path)) as file:
            pyarrow.csv.write_csv(table, file, options)
    found = opened(path)
    assert found.get("id").to_pylist() == COLUMNS["id"]
    assert found.get("age").to_pylist() == COLUMNS["age"]


@pytest.mark.parametrize(
    "frame",
    [
        COLUMNS,
        pa.table(COLUMNS),
        pa.RecordBatch.from_pydict(COLUMNS),
        pd.DataFrame(COLUMNS),
        pd.DataFrame(COLUMNS).set_index("id"),
        pd.DataFrame(COLUMNS).astype({"id": "category"}),
        pl.DataFrame(COLUMNS),
        pl.DataFrame(COLUMNS).lazy(),
    ],
    ids=lambda frame: f"{type(frame).__module__.partition('.')[0]}.{type(frame).__name__}",
)
def test_every_kind_of_frame_gives_the_same_columns(frame: Any) -> None:
    found = opened(frame)
    assert found.get("id").to_pylist() == COLUMNS["id"]
    np.testing.assert_array_equal(
        found.get("age").to_numpy(zero_copy_only=False), [1.5, np.nan, 3.0]
    )


def test_rows_of_an_array_are_vectors() -> None:
    found = opened({"id": ["a", "b"], "vector": np.arange(6.0).reshape(2, 3)})
    assert found.get("vector").to_pylist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_what_stands_between_fields_is_told_by_the_header(delimiter: str, tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", f"id{delimiter}x\n1{delimiter}2\n")
    assert opened(path).columns == ["id", "x"]


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("id\tx,y,z\tlabel\n1\t2\tred\n3\t4\tblue\n", ["id", "x,y,z", "label"]),
        ('"a;b;c;d",id\n1,2\n', ["a;b;c;d", "id"]),
        ("id;x|y|z;label\n1;2;3\n", ["id", "x|y|z", "label"]),
        ("id;x\n1;2,5\n2;3,5\n", ["id", "x"]),
        ("id,x\n1,a;b;c\n", ["id", "x"]),
        ("id,a;b\n1,2\n3,4,5\n6,7\n", ["id", "a;b"]),
        ("a,b;c;d\n", ["a,b", "c", "d"]),  # nothing else to go by: the most names
    ],
)
def test_fields_are_divided_where_rows_agree_with_the_header(
    text: str, columns: list[str], tmp_path: Path
) -> None:
    names, _ = csv_header(written(tmp_path / "a.csv", text))
    assert names == columns


def test_spaces_around_the_names_of_columns_do_not_count(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", ' id, x ,"y "\n007,2,3\n')
    found = opened(path, wanted=["y", "id"], as_text=["id"])
    assert found.columns == ["y", "id"]
    assert found.get("id").to_pylist() == ["007"]
    assert "'x'" in refused(written(tmp_path / "b.csv", "x, x\n1,2\n"))


def test_the_name_of_a_column_may_hold_a_line_break(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", 'id,"size\nin cm",x\n1,2,3\n4,5,6\n')
    found = opened(path)
    assert found.columns == ["id", "size\nin cm", "x"]
    assert found.get("x").to_pylist() == [3, 6]


def test_a_cell_may_be_longer_than_the_csv_module_takes(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", f'id,x\n1,"{"word " * 40_000}"\n2,b\n')
    assert opened(path).num_rows == 2


def test_an_id_with_zeros_in_front_stays_as_it_is_written(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "id,x\n007,1\n7,2\n")
    assert opened(path, as_text=["id"]).get("id").to_pylist() == ["007", "7"]


def test_a_field_may_hold_a_line_break_and_the_delimiter(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", 'id,about\n1,"two\nlines, one field"\n2,b\n')
    assert opened(path).get("about").to_pylist() == ["two\nlines, one field", "b"]


def test_only_columns_that_are_wanted_are_read(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "id,x,y\n1,2,3\n")
    assert opened(path, wanted=["x"], optional=["y", "z"]).columns == ["x", "y"]
    assert "Did you mean 'id'?" in refused(path, wanted=["idd"])


def test_a_row_with_a_field_too_many_is_told_by_its_number(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "id,x\n1,2\n3,4,5\n6,7\n8\n")
    assert "rows 2, 4: 3 fields" in refused(path)


def test_text_that_is_not_utf8_is_told_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("id,x\na,1\nZoë,2\n".encode("latin-1"))
    assert "a.csv, line 3: not UTF-8" in refused(path)
    assert "a.csv, line 3: not UTF-8" in refused(path, as_text=["id"])


def test_a_file_is_what_it_holds_whatever_its_name(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    pyarrow.parquet.write_table(pa.table(COLUMNS), path)
    assert opened(path).num_rows == 3
    assert "not a Parquet file" in refused(written(tmp_path / "b.parquet", "id,x\n1,2\n"))


def test_many_rows_of_one_problem_are_counted() -> None:
    assert place("a.csv", "x", [0, 1, 2]) == "a.csv, column x, rows 1, 2, 3"
    assert place("a.csv", "x", range(9)) == "a.csv, column x, rows 1, 2, 3, 4, 5 and 4 more"


# Ids


@pytest.mark.parametrize(
    ("nodes", "ends"),
    [
        (["7", "8"], [7, 8]),
        ([7, 8], ["7", "8"]),
        ([7.0, 8.0], ["7", " 8 "]),
        (np.array([7, 8], dtype=np.float16), [7, 8]),
        (np.array([7, 8], dtype=np.uint8), np.array([7, 8], dtype=np.int64)),
        (np.array([7, 8], dtype=np.uint64), ["7", "8"]),
        (pa.array(["7", "8"]).dictionary_encode(), pa.array(["7", "8"], pa.large_string())),
    ],
)
def test_ids_that_say_the_same_are_the_same(nodes: Any, ends: Any) -> None:
    assert positions(ids_of(ends), ids_of(nodes)).tolist() == [0, 1]


def test_an_id_that_is_written_otherwise_is_another() -> None:
    assert positions(ids_of(["007", "7.0", "seven"]), ids_of([7])).tolist() == [-1, -1, -1]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["a", None, ""], "rows 2, 3: the id is empty"),
        (["a", "b", "a ", "a"], "rows 3, 4: the id 'a' is also in row 1"),
        ([1.0, 1.5], "row 2: 1.5 is not an id"),
        ([1.0, None], "row 2: the id is empty"),
        (np.array([1, 1.5], dtype=np.float16), "row 2: 1.5 is not an id"),
        ([1.0, np.inf, -np.inf], "rows 2, 3: inf is not an id"),
        ([1.0, 1e19], "row 2: 1e+19 is not an id"),  # beyond what 64 bits hold
        ([1.0, 2.0**53 + 2], "row 2: 9007199254740994.0 is not an id"),  # beyond what is exact
        ([True, False], "type bool"),
        ([[1], [2]], "text or integers"),
    ],
)
def test_what_cannot_be_an_id_is_told(values: Any, message: str) -> None:
    with pytest.raises(TaskError, match="1 problem") as error:
        ids_of(values)
    assert message in str(error.value)


def test_an_edge_to_an_unknown_node_is_refused_or_left_out() -> None:
    table = opened({"source": ["a", "b", "x"], "target": ["b", "y", "a"]})
    problems = Problems()
    ends = ("source", "target")
    assert read_edges(table, *ends, ids_of(["a", "b"]), problems, unknown_ids="refuse") is None
    assert len(problems.found) == 2
    problems = Problems()
    edges = read_edges(table, *ends, ids_of(["a", "b"]), problems, unknown_ids="skip")
    assert edges is not None
    assert (edges.source.tolist(), edges.target.tolist()) == ([0], [1])
    assert edges.rows is not None
    assert edges.rows.tolist() == [0]
    assert "skipped 2 of 3 edges" in problems.warnings[0]


def test_duplicates_and_reverses_are_counted() -> None:
    table = opened({"source": ["a", "a", "b", "c", "c"], "target": ["b", "b", "a", "c", "a"]})
    edges = read_edges(
        table, "source", "target", ids_of(["a", "b", "c"]), Problems(), unknown_ids="refuse"
    )
    assert edges is not None
    assert edges.num_duplicates(3) == 1
    assert edges.num_self_loops == 1
    assert edges.share_reversed(3) == pytest.approx(3 / 4)
