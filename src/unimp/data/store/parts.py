"""Tables in many files: which files they are, and their rows, one chunk at a time.

A table is a file, a pattern such as `edges/*.parquet`, or a folder with files at any depth. The
name of a folder inside it may contain a value, such as `year=2020`, which is then a column. Parts
are read in the order of their paths, so this order numbers the nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unimp.config.recipe import is_table
from unimp.data.tables.problems import Problems
from unimp.data.tables.reading import (
    ACCEPTED,
    CSV_BLOCK,
    CSV_SUFFIXES,
    UnusableError,
    chosen_columns,
    csv_header,
    first_line,
    line_not_utf8,
    shown,
    unreadable,
)
from unimp.data.tables.table import Table
from unimp.data.tables.unpacking import COMPRESSED, open_unpacked
from unimp.errors import TaskError, UnimpError

_CSV_ROW = 40  # bytes of a typical row, for estimates alone


@dataclass(frozen=True)
class Part:
    """One file of a table."""

    path: Path
    constants: tuple[tuple[str, str], ...] = ()  # columns that the names of folders give

    @property
    def name(self) -> str:
        return shown(self.path)

    @property
    def format(self) -> str:
        """parquet, arrow or csv; recognized by content, like a table of one file."""
        suffix = self.path.suffix.lower()
        with self.path.open("rb") as file:
            start = file.read(8)
        if start.startswith(b"PAR1"):
            return "parquet"
        if start.startswith(b"ARROW1") or suffix in (".arrow", ".feather", ".ipc"):
            return "arrow"
        plain = self.path.with_suffix("") if suffix in COMPRESSED else self.path
        if plain.suffix.lower() in CSV_SUFFIXES:
            return "csv"
        raise TaskError(f"{self.name}: the file format is unknown; {ACCEPTED}.")

    @property
    def fingerprint(self) -> list[Any]:
        """What identifies the content without reading it: path, size and time of change."""
        return fingerprint_of(self.path)

    def count_rows(self) -> int:
        """The number of rows; for CSV an estimate, because counting would read the file."""
        import pyarrow as pa
        import pyarrow.parquet

        kind = self.format
        if kind == "parquet":
            return int(pyarrow.parquet.read_metadata(self.path).num_rows)
        if kind == "arrow":
            with pa.memory_map(str(self.path)) as file:
                return sum(batch.num_rows for batch in _arrow_batches(file))
        packed = self.path.suffix.lower() in COMPRESSED
        return self.path.stat().st_size * (4 if packed else 1) // _CSV_ROW


class PartProblems(Problems):
    """Problems in a chunk of a part; their rows are counted from the start of the part."""

    def __init__(self) -> None:
        super().__init__()
        self.first_row = 0

    def note(
        self, file: str, what: str, fix: str, *, column: str | None = None, rows: Any = None
    ) -> None:
        moved = None if rows is None else [int(row) + self.first_row for row in rows]
        super().note(file, what, fix, column=column, rows=moved)


def find_parts(given: str, option: str) -> list[Part]:
    """The files of a table, in the order of their paths."""
    path = Path(given)
    if path.is_dir():
        files = [p for p in path.rglob("*") if p.is_file() and is_table(p)]
        files = [p for p in files if not any(part[0] in "._" for part in _inside(p, path))]
        root = path
    elif path.is_file():
        files, root = [path], path.parent
    else:
        root = Path(re.split(r"[*?\[]", given)[0] + "_").parent
        files = [p for p in root.glob(str(path.relative_to(root))) if p.is_file()]
    if not files:
        raise TaskError(
            f"{option} = {given!r} names no file. Give a file, a folder with files, or a pattern "
            "such as edges/*.parquet."
        )
    return [Part(file, _constants(file, root)) for file in sorted(files)]


def _inside(path: Path, root: Path) -> tuple[str, ...]:
    return path.relative_to(root).parts


def _constants(file: Path, root: Path) -> tuple[tuple[str, str], ...]:
    folders = _inside(file, root)[:-1] if file.is_relative_to(root) else ()
    pairs = (name.partition("=") for name in folders if "=" in name)
    return tuple((key, value) for key, _, value in pairs)


def read_chunks(
    part: Part, columns: Sequence[str], rows: int, problems: PartProblems
) -> Iterator[Table]:
    """Yield the rows of a part in tables of at most `rows` rows; other columns are not read.

    Columns of CSV files are text. `problems` counts its rows from the start of the part, and is
    raised as an error if the part cannot be read or if the caller added a problem to a chunk.
    """
    import pyarrow as pa

    problems.first_row = 0
    constants = dict(part.constants)
    stored = [column for column in dict.fromkeys(columns) if column not in constants]
    try:
        for batch, delimiter in _batches(part, stored, rows, problems):
            for begin in range(0, batch.num_rows, rows):
                arrow = pa.Table.from_batches([batch.slice(begin, rows)])
                for key in (c for c in columns if c in constants):
                    value = pa.scalar(constants[key], pa.large_string())
                    arrow = arrow.append_column(key, pa.repeat(value, arrow.num_rows))
                yield Table(part.name, arrow, delimiter)
                problems.refuse()
                problems.first_row += arrow.num_rows
    except UnimpError:
        raise
    except UnusableError as error:
        where = f"{part.name}, line {error.line}" if error.line else part.name
        problems.first_row = 0
        problems.note(where, str(error), error.fix, rows=error.rows or None)
    except unreadable() as error:
        what = f"the file is damaged ({first_line(error)})"
        problems.note(part.name, what, "write or copy it again")
    problems.refuse()


def _batches(
    part: Part, columns: Sequence[str], rows: int, problems: Problems
) -> Iterator[tuple[Any, str]]:
    import pyarrow as pa
    import pyarrow.parquet

    def choose(there: Sequence[str]) -> list[str]:
        chosen = chosen_columns(there, part.name, problems, columns, ())
        problems.refuse()
        return chosen

    kind = part.format
    if kind == "parquet":
        # A buffered stream: otherwise the whole group of rows would be in memory.
        with pyarrow.parquet.ParquetFile(part.path, buffer_size=1 << 20) as file:
            chosen = choose(file.schema_arrow.names)
            for batch in file.iter_batches(rows, columns=chosen, use_threads=False):
                yield batch, ""
    elif kind == "arrow":
        with pa.memory_map(str(part.path)) as file:
            for batch in _arrow_batches(file):
                yield batch.select(choose(batch.schema.names)), ""
    else:
        yield from _csv_batches(part, columns, choose)


def _arrow_batches(file: Any) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.ipc

    try:
        opened = pyarrow.ipc.open_file(file)
    except pa.ArrowInvalid:
        file.seek(0)
        yield from pyarrow.ipc.open_stream(file)
        return
    yield from map(opened.get_batch, range(opened.num_record_batches))


def _csv_batches(part: Part, columns: Sequence[str], choose: Any) -> Iterator[tuple[Any, str]]:
    import pyarrow as pa
    import pyarrow.csv

    written, delimiter = csv_header(part.path, columns)
    names = [name.strip().strip("\ufeff") for name in written]
    chosen = choose(names)
    as_written = dict(zip(names, written, strict=True))
    ragged: list[Any] = []

    def keep(row: Any) -> str:
        ragged.append(row)
        return "skip"

    try:
        with open_unpacked(part.path) as stream:
            reader = pyarrow.csv.open_csv(
                stream,
                read_options=pyarrow.csv.ReadOptions(use_threads=False, block_size=CSV_BLOCK),
                parse_options=pyarrow.csv.ParseOptions(
                    delimiter=delimiter, newlines_in_values=True, invalid_row_handler=keep
                ),
                convert_options=pyarrow.csv.ConvertOptions(
                    include_columns=[as_written[column] for column in chosen],
                    column_types={name: pa.string() for name in written},
                ),
            )
            for batch in reader:
                yield batch.rename_columns(chosen), delimiter
    except pa.ArrowException as error:
        if line := line_not_utf8(part.path):
            fix = "save the file as UTF-8 (not Latin-1)"
            raise UnusableError("not UTF-8 text", fix, line=line) from error
        what = f"the file cannot be read as CSV ({first_line(error)})"
        raise UnusableError(what, "write it again") from error
    if ragged:
        first = ragged[0]
        raise UnusableError(
            f"{first.actual_columns} fields, but the header has {first.expected_columns}",
            f"correct the rows; put quotes around fields that contain {delimiter!r}",
            rows=[row.number - 2 for row in ragged if row.number is not None],
        )


def fingerprint_of(path: Path) -> list[Any]:
    """What identifies the content of a file without reading it: path, size and time of change."""
    found = path.stat()
    return [str(path), found.st_size, found.st_mtime_ns]
