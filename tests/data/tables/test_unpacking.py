"""A small compressed file cannot fill the memory: its size is known before it is unpacked."""

from __future__ import annotations

import bz2
import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unimp.data import memory
from unimp.data.tables import unpacking
from unimp.data.tables.problems import Problems
from unimp.data.tables.reading import open_table
from unimp.data.tables.unpacking import csv_bytes, parquet_bytes

FREE = 32 << 20


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda device: FREE)
    monkeypatch.setattr(unpacking, "available_memory", lambda device: FREE)


def texts(path: Path) -> None:
    """One long text, to which many rows refer."""
    column = pa.array(["x" * 100_000] * 2_000 + ["y"])
    pa.parquet.write_table(pa.table({"id": np.arange(2_001), "text": column}), path)


def numbers(path: Path) -> None:
    pa.parquet.write_table(pa.table({"id": np.zeros(8_000_000, np.int64)}), path)


def rows(path: Path) -> None:
    opened = gzip.open if path.suffix == ".gz" else bz2.open
    with opened(path, "wb") as file:
        file.write(b"id,x\n" + b"1,1\n" * 3_000_000)


def one_line(path: Path) -> None:
    with gzip.open(path, "wb") as file:
        file.write(b"id,x\n1," + b"1" * (FREE + 10))


def batches(path: Path) -> None:
    """Compressed Arrow: a file or a stream of many batches."""
    kind = pa.ipc.new_stream if path.suffix == ".arrow" else pa.ipc.new_file
    table = pa.table({"id": np.zeros(8_000_000, np.int64)})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with kind(path, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=100_000)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("n.arrow", batches),
        ("n.feather", batches),
        ("n.parquet", texts),
        ("n.parquet", numbers),
        ("n.csv.gz", rows),
        ("n.csv.bz2", rows),
        ("n.csv.gz", one_line),
    ],
)
def test_a_file_that_unpacks_to_more_than_the_free_memory_is_refused(
    name: str, write: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tmp_path / name
    write(path)
    assert path.stat().st_size < FREE / 20
    problems, before = Problems(), pa.total_allocated_bytes()
    assert open_table(path, "nodes", problems) is None
    assert len(problems.found) == 1
    assert name in problems.found[0]
    assert "memory" in problems.found[0]
    assert pa.total_allocated_bytes() - before < FREE


def test_a_dictionary_of_many_batches_is_counted_once(tmp_path: Path) -> None:
    path = tmp_path / "n.feather"
    column = pa.array([f"{n}{'x' * 1_000}" for n in range(2_000)] * 10).dictionary_encode()
    table = pa.table({"text": column})
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=100)
    problems = Problems()
    assert open_table(path, "nodes", problems) is not None, problems.found


@pytest.mark.parametrize("name", ["n.CSV.GZ", "n.csv.Bz2"])
def test_the_suffix_of_a_compressed_file_may_have_capital_letters(
    name: str, tmp_path: Path
) -> None:
    opened = gzip.open if name.lower().endswith(".gz") else bz2.open
    with opened(tmp_path / name, "wb") as file:
        file.write(b"id,x\n1,2\n")
    problems = Problems()
    table = open_table(tmp_path / name, "nodes", problems)
    assert problems.found == []
    assert table is not None
    assert table.columns == ["id", "x"]


def test_repeated_texts_that_fit_are_read(tmp_path: Path) -> None:
    path = tmp_path / "n.parquet"
    column = pa.array(["x" * 1_000] * 10_000)
    pa.parquet.write_table(pa.table({"id": np.arange(10_000), "text": column}), path)
    problems = Problems()
    table = open_table(path, "nodes", problems)
    assert problems.found == []
    assert table is not None
    assert table.num_rows == 10_000


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(-9, 9), st.text(max_size=5), st.none() | st.floats(allow_nan=False)),
        min_size=1,
        max_size=50,
    ),
    st.integers(1, 30),
)
def test_the_stated_size_is_never_below_the_size_in_memory(
    tmp_path_factory: pytest.TempPathFactory, cells: list[tuple[int, str, float]], times: int
) -> None:
    columns = {"a.b": pa.array(c[0] for c in cells), "text": pa.array(c[1] for c in cells)}
    columns["x"] = pa.array([c[2] for c in cells], pa.float64())
    table = pa.concat_tables([pa.table(columns)] * times)
    path = tmp_path_factory.mktemp("sizes") / "t.parquet"
    pa.parquet.write_table(table, path)
    stated = parquet_bytes(path, pa.parquet.read_metadata(path), table.column_names)
    assert stated >= pa.parquet.read_table(path).combine_chunks().get_total_buffer_size() / 2
    assert parquet_bytes(path, pa.parquet.read_metadata(path), ["text"]) < stated


def test_a_compressed_csv_file_is_counted_only_until_it_is_too_large(tmp_path: Path) -> None:
    path = tmp_path / "n.csv.gz"
    one_line(path)
    assert FREE < csv_bytes(path, 2) < FREE + (8 << 20)
