"""Results that are tables: how they look, and what accepts them."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from unimp.analysis.table import COLUMNS, ROWS, Table


@pytest.fixture
def table() -> Table:
    return Table(
        pa.table(
            {"node": ["a", "<b>", "c & d"], "confidence": [0.25, None, 1.0], "rank": [1, 2, 3]}
        )
    )


def test_a_table_has_columns_and_rows(table: Table) -> None:
    assert len(table) == 3
    assert table.column_names == ["node", "confidence", "rank"]
    assert table["rank"].to_pylist() == [1, 2, 3]
    assert table.head(1).to_pylist() == [{"node": "a", "confidence": 0.25, "rank": 1}]
    assert len(table.head(None)) == 3
    assert len(table.head(9)) == 3


def test_a_notebook_shows_escaped_cells(table: Table) -> None:
    html = table._repr_html_()
    assert "<td>&lt;b&gt;</td>" in html
    assert "<td>c &amp; d</td>" in html
    assert "<b>" not in html
    assert "<th>confidence</th>" in html
    assert "<td>0.2500</td>" in html
    assert html.count("<tr>") == 4
    assert "more" not in html


def test_text_has_one_aligned_line_per_row(table: Table) -> None:
    lines = repr(table).splitlines()
    assert lines[0].split() == ["node", "confidence", "rank"]
    assert lines[1].index("0.2500") == lines[0].index("confidence")
    assert len(lines) == 4


def test_only_the_first_rows_and_columns_are_shown() -> None:
    large = Table(pa.table({f"column {c}": range(1000) for c in range(COLUMNS + 2)}))
    for text in (repr(large), large._repr_html_()):
        assert f"{1000 - ROWS:,} more rows" in text
        assert "2 more columns" in text
        assert f"column {COLUMNS - 1}" in text
        assert f"column {COLUMNS}" not in text


def test_a_long_cell_stays_on_one_short_line() -> None:
    text = repr(Table(pa.table({"why": ["several\nlines " * 50]})))
    assert len(text.splitlines()) == 2
    assert max(map(len, text.splitlines())) < 80
    assert "…" in text


def test_pandas_polars_and_arrow_read_the_same_values(table: Table) -> None:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    assert table.to_pandas()["node"].tolist() == ["a", "<b>", "c & d"]
    assert polars.DataFrame(table)["rank"].to_list() == [1, 2, 3]
    assert pa.table(table).equals(table.to_arrow())
    if hasattr(pandas.DataFrame, "from_arrow"):
        assert pandas.DataFrame.from_arrow(table)["rank"].tolist() == [1, 2, 3]


def test_a_table_is_written_as_its_name_says(table: Table, tmp_path: Path) -> None:
    table.write(tmp_path / "t.parquet")
    assert pyarrow.parquet.read_table(tmp_path / "t.parquet").equals(table.to_arrow())
    table.write(str(tmp_path / "t.csv"))
    assert (tmp_path / "t.csv").read_text().splitlines()[0] == '"node","confidence","rank"'
