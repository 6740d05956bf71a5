"""A result that is a table: it shows itself in a notebook and converts to pandas and Arrow."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unimp.config.arguments import FilePath
from unimp.data.outputs import TABLE, check_output
from unimp.data.tables.writing import write_table
from unimp.errors import UnimpError, printable

if TYPE_CHECKING:
    import pyarrow as pa

ROWS, COLUMNS, CELL = 10, 10, 60
"""The rows, columns and characters per cell that are shown; conversions contain everything."""


class Table:
    """Named columns of equal length, as an Arrow table.

    pandas, polars, DuckDB and other libraries that read Arrow streams accept it directly.
    """

    def __init__(self, arrow: pa.Table) -> None:
        self._arrow = arrow

    @property
    def column_names(self) -> list[str]:
        names: list[str] = self._arrow.column_names
        return names

    def __len__(self) -> int:
        return int(self._arrow.num_rows)

    def __getitem__(self, name: str) -> pa.ChunkedArray:
        return self._arrow[name]

    def head(self, rows: int | None) -> Table:
        """Return the first rows; None: all of them."""
        return Table(self._arrow.slice(0, rows))

    def to_arrow(self) -> pa.Table:
        return self._arrow

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame; pandas is not installed with this package."""
        try:
            return self._arrow.to_pandas()
        except ModuleNotFoundError as error:
            raise UnimpError(f"{error}. Install it with: pip install pandas") from error

    def to_pylist(self) -> list[dict[str, Any]]:
        """Return one dictionary per row."""
        rows: list[dict[str, Any]] = self._arrow.to_pylist()
        return rows

    def write(self, path: FilePath, *, force: bool = False) -> None:
        """Write a file: CSV if the name ends in .csv, Parquet if it ends in .parquet or .pq.

        force: replace an existing file.
        """
        check_output(Path(path), TABLE, force=force)
        write_table(Path(path), self._arrow)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._arrow.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        names, rows = self._shown()
        cells = [names, *rows]
        widths = [max(len(row[c]) for row in cells) for c in range(len(names))]
        lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in cells)
        return "\n".join([*lines, *self._more()])

    def _repr_html_(self) -> str:
        return tables_html({"": self})

    def _shown(self) -> tuple[list[str], list[list[str]]]:
        names = self.column_names[:COLUMNS]
        rows = self._arrow.select(names).slice(0, ROWS).to_pylist()
        return [*map(_text, names)], [[_text(row[name]) for name in names] for row in rows]

    def _more(self) -> list[str]:
        rows, columns = len(self) - ROWS, len(self.column_names) - COLUMNS
        lines = [f"… and {rows:,} more rows"] if rows > 0 else []
        return lines + ([f"… and {columns:,} more columns"] if columns > 0 else [])


TEMPLATE = """
{%- if summary %}<p><b>{{ summary }}</b></p>{% endif %}
{%- for title, table in tables.items() %}{% if title %}<p>{{ title }}</p>{% endif %}
{%- set names, rows = table._shown() -%}
<table><thead><tr>{% for name in names %}<th>{{ name }}</th>{% endfor %}</tr></thead><tbody>
{%- for row in rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>{% endfor -%}
</tbody></table>{% for line in table._more() %}<p>{{ line }}</p>{% endfor %}
{%- endfor %}"""


def tables_html(tables: Mapping[str, Table], summary: str = "") -> str:
    """Return tables by their titles, below a summary, as a notebook shows them."""
    from jinja2 import Template

    html: str = Template(TEMPLATE, autoescape=True).render(tables=tables, summary=summary)
    return html


def _text(value: Any) -> str:
    """Format a cell as one line."""
    if value is None:
        return ""
    text = f"{value:.4f}" if isinstance(value, float) else printable(" ".join(str(value).split()))
    return text if len(text) <= CELL else text[: CELL - 1] + "…"
