"""Read tables from files and data frames as Arrow columns.

Files are CSV (UTF-8, also .gz, with `,` `;` tab or `|` between fields), Parquet or Arrow. The
format is recognized by content. Data frames are those of pandas, polars and Arrow, and dicts of
arrays.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import io
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unimp.config.input_files import open_input
from unimp.data.memory import shortage
from unimp.data.tables.headers import is_data
from unimp.data.tables.problems import SHOWN_ROWS, Problems
from unimp.data.tables.table import Table
from unimp.data.tables.unpacking import (
    COMPRESSED,
    arrow_bytes,
    csv_bytes,
    open_unpacked,
    parquet_bytes,
)
from unimp.errors import nearest_names

CSV_SUFFIXES = (".csv", ".tsv", ".txt")
_HEADER_BYTES = 1 << 20
CSV_BLOCK = 8 << 20  # bytes of CSV per block; a row must fit into one
_DELIMITERS = ",;\t|"
_BOM = "\ufeff"  # some programs write several at the start of a file
_LOOKED_AT = 20  # rows that determine the delimiter
_SMALLER = "use a machine with more memory, or fewer rows and columns"
_COMPARED = 1000  # rows that are compared with the header
ACCEPTED = "use CSV (.csv, .tsv), Parquet (.parquet) or Arrow (.arrow, .feather)"


Choose = Callable[[Sequence[str]], list[str]]
"""Selects the columns to read from those that exist."""


class UnusableError(Exception):
    """A table that cannot be read: the problem, its fix, and where in the file it is."""

    def __init__(self, what: str, fix: str, *, line: int = 0, rows: Sequence[int] = ()) -> None:
        super().__init__(what)
        self.fix, self.line, self.rows = fix, line, rows


def open_table(
    given: Any,
    what: str,
    problems: Problems,
    *,
    wanted: Sequence[str] | None = None,
    optional: Sequence[str] = (),
    as_text: Sequence[str] = (),
) -> Table | None:
    """Open a table from a path or a data frame; return None, with a problem, if it is invalid.

    `what` ("nodes") is its name in messages if it has no path. `wanted` are the columns to read,
    which must all exist (None: all columns); `optional` columns are read if they exist. Columns
    `as_text` are read from CSV as they are written, so that the id 007 stays 007.
    """
    from_file = isinstance(given, str | Path)
    name = shown(given) if from_file else what

    def choose(there: Sequence[str]) -> list[str]:
        return chosen_columns(there, name, problems, wanted, optional)

    try:
        if from_file:
            opened = _read_file(Path(given), name, choose, as_text, wanted)
        else:
            opened = _from_frame(given, name, choose)
        if not opened.num_rows:
            raise UnusableError("the table has no rows", "add rows below the header")
        return opened
    except UnusableError as error:
        where = f"{name}, line {error.line}" if error.line else name
        problems.note(where, str(error), error.fix, rows=error.rows or None)
    except unreadable() as error:
        fix = "write the file again" if from_file else "give each column values of one type"
        problems.note(name, f"the table cannot be read ({first_line(error)})", fix)
    return None


def shown(path: str | Path) -> str:
    """Return a path relative to the working folder if it is inside it."""
    try:
        return str(Path(path).resolve().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def unreadable() -> tuple[type[Exception], ...]:
    import pyarrow as pa

    return (pa.ArrowException, OSError, ValueError, TypeError, EOFError, csv.Error)


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def _read_file(
    path: Path, name: str, choose: Choose, as_text: Sequence[str], wanted: Sequence[str] | None
) -> Table:
    if path.is_dir():
        raise UnusableError("this is a folder, not a file", f"give a file: {ACCEPTED}")
    try:
        with open_input(path) as file:
            start = file.read(8)
    except OSError as error:
        raise UnusableError(
            f"the file cannot be opened ({error.strerror})", "check the path"
        ) from error
    if not start:
        raise UnusableError("the file is empty", "write a header and rows into it")
    if start.startswith(b"PAR1"):
        return Table(name, _read_parquet(path, choose))
    suffix = path.suffix.lower()
    if start.startswith(b"ARROW1") or suffix in (".arrow", ".feather", ".ipc"):
        return Table(name, _read_arrow(path, choose))
    if suffix in (".parquet", ".pq"):
        what = "this is not a Parquet file (it does not begin with PAR1)"
        raise UnusableError(what, "write it again")
    plain = path.with_suffix("") if suffix in COMPRESSED else path
    if plain.suffix.lower() not in CSV_SUFFIXES:
        raise UnusableError(f"unknown file format ({path.suffix or 'no suffix'})", ACCEPTED)
    return Table(name, *_read_csv(path, choose, as_text, wanted))


def _refuse_too_large(needed: int, *, packed: bool = True) -> None:
    if short := shortage(needed):
        raise UnusableError(f"when unpacked, {short}" if packed else short, _SMALLER)


def _read_parquet(path: Path, choose: Choose) -> Any:
    import pyarrow as pa
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            chosen = choose(file.schema_arrow.names)
            _refuse_too_large(parquet_bytes(path, file.metadata, chosen))
            table = file.read(columns=chosen)
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        what = f"the Parquet file is damaged ({first_line(error)})"
        raise UnusableError(what, "write or copy it again") from error
    return table


def _read_arrow(path: Path, choose: Choose) -> Any:
    import pyarrow as pa
    import pyarrow.ipc

    for reader in (pyarrow.ipc.open_file, pyarrow.ipc.open_stream):
        try:
            with pa.OSFile(str(path)) as file, reader(file) as opened:
                _refuse_too_large(arrow_bytes(_batches(opened)))
            with pa.OSFile(str(path)) as file, reader(file) as opened:
                table = opened.read_all()
            table.validate(full=True)
            return table.select(choose(table.column_names))
        except (pa.ArrowException, OSError, ValueError) as error:
            what = f"the Arrow file is damaged ({first_line(error)})"
    raise UnusableError(what, "write or copy it again")


def _batches(opened: Any) -> Iterator[Any]:
    """Read the batches of an Arrow file or stream one by one."""
    if hasattr(opened, "num_record_batches"):
        return map(opened.get_batch, range(opened.num_record_batches))
    return iter(opened)


def _read_csv(
    path: Path, choose: Choose, as_text: Sequence[str], wanted: Sequence[str] | None
) -> tuple[Any, str]:
    """Return the chosen columns of a CSV file, and its delimiter."""
    import pyarrow as pa
    import pyarrow.csv

    written, delimiter = csv_header(path, wanted)
    names = [column.strip().strip(_BOM) for column in written]
    chosen = choose(names)
    packed = path.suffix.lower() in COMPRESSED
    size = csv_bytes(path, len(chosen)) if packed else path.stat().st_size
    _refuse_too_large(size, packed=packed)
    as_written = dict(zip(names, written, strict=True))
    ragged: list[Any] = []

    def keep(row: Any) -> str:
        ragged.append(row)
        return "skip"

    def read(*, threads: bool) -> Any:
        ragged.clear()
        with open_unpacked(path) as stream:
            return pyarrow.csv.read_csv(
                stream,
                read_options=pyarrow.csv.ReadOptions(use_threads=threads, block_size=CSV_BLOCK),
                parse_options=pyarrow.csv.ParseOptions(
                    delimiter=delimiter, newlines_in_values=True, invalid_row_handler=keep
                ),
                convert_options=pyarrow.csv.ConvertOptions(
                    include_columns=[as_written[column] for column in chosen] or written[:1],
                    column_types={as_written[c]: pa.string() for c in as_text if c in chosen},
                ),
            )

    try:
        table = read(threads=True)
        if ragged:
            read(threads=False)  # lines are counted only with one thread
        if any(pa.types.is_binary(kind) for kind in table.schema.types):
            raise pa.ArrowInvalid("text that is not UTF-8")  # read as bytes if no type is requested
    except pa.ArrowException as error:
        if line := line_not_utf8(path):
            fix = "save the file as UTF-8 (not Latin-1)"
            raise UnusableError("not UTF-8 text", fix, line=line) from error
        what = f"the file cannot be read as CSV ({first_line(error)})"
        raise UnusableError(what, "write it again") from error
    if ragged:
        first = ragged[0]
        raise UnusableError(
            f"{first.actual_columns} fields, but the header has {first.expected_columns}",
            f"correct the rows; put quotes around fields that contain {delimiter!r}",
            rows=[row.number - 2 for row in ragged],
        )
    return (table.rename_columns(chosen), delimiter) if chosen else (table.select([]), "")


def csv_header(path: Path, wanted: Sequence[str] | None = None) -> tuple[list[str], str]:
    """Return the names in the header of a CSV file as they are written, and the delimiter.

    If not all `wanted` names are there, a first line that looks like data is a problem.
    """
    with open_unpacked(path) as stream:
        start = stream.read(_HEADER_BYTES)
    if start.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in start:
        raise UnusableError("not UTF-8 text", "save it as CSV in UTF-8, or as Parquet")
    if len(start) == _HEADER_BYTES:  # cut within a row
        start = start[: start.rfind(b"\n") + 1] or start
    first = next((line for line in start.splitlines() if line.strip()), b"")
    try:
        first.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnusableError("not UTF-8 text", "save the file as UTF-8", line=1) from error
    text = start.decode("utf-8-sig", errors="replace")  # Arrow checks the other lines
    delimiter = max(_DELIMITERS, key=lambda mark: _fits(text, mark))
    names, *rows = _first_rows(text, delimiter, _COMPARED) or [[]]
    if not any(column.strip() for column in names):
        raise UnusableError("the header is empty", "write column names into the first line")
    there = wanted is not None and {column.strip() for column in names} >= set(wanted)
    if not there and is_data(names, rows):
        shown = ", ".join(names[:SHOWN_ROWS]) + (" …" if len(names) > SHOWN_ROWS else "")
        raise UnusableError(
            f"the file seems to have no header: its first line ({shown[:200]}) looks like "
            "the lines below it",
            "write a line with the names of the columns above it; if this line is the header, "
            "rename its columns to usual names, such as id, source and target",
            line=1,
        )
    return names, delimiter


def _first_rows(text: str, delimiter: str, most: int = _LOOKED_AT) -> list[list[str]]:
    """Return the header and some rows, with quotes respected."""
    rows: list[list[str]] = []
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    with contextlib.suppress(csv.Error):  # a very long field; the rows so far are enough
        for row in reader:
            if any(row):
                rows.append(row)
            if len(rows) == most:
                break
    return rows


def _fits(text: str, delimiter: str) -> tuple[bool, float, int]:
    """Rate a delimiter: several fields, and as many in each row as in the header."""
    rows = _first_rows(text, delimiter)
    width = len(rows[0]) if rows else 0
    alike = sum(len(row) == width for row in rows[1:]) / max(1, len(rows) - 1)
    return width > 1, alike if len(rows) > 1 else 1.0, width


def line_not_utf8(path: Path) -> int | None:
    """Return the number of the first line that is not UTF-8, counted from 1."""
    decoder, line = codecs.getincrementaldecoder("utf-8")(), 1
    with open_unpacked(path) as stream:
        block = b"start"
        while block:
            block = stream.read(_HEADER_BYTES)
            try:
                decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                return line + error.object.count(b"\n", 0, error.start)
            line += block.count(b"\n")
    return None


def _from_frame(given: Any, name: str, choose: Choose) -> Table:
    import pyarrow as pa

    if isinstance(given, pa.Table | pa.RecordBatch):
        table = given if isinstance(given, pa.Table) else pa.Table.from_batches([given])
    elif isinstance(given, Mapping):
        table = _from_columns(given)
    elif type(given).__module__.partition(".")[0] == "pandas":
        made: Callable[[Any], Any] = pa.Table.from_pandas
        table = made(given)
    elif hasattr(given, "collect") and not hasattr(given, "to_arrow"):  # polars, lazy
        table = given.collect().to_arrow()
    elif hasattr(given, "to_arrow"):
        table = given.to_arrow()
    elif hasattr(given, "__arrow_c_stream__"):
        table = pa.table(given)
    else:
        raise UnusableError(
            f"a {type(given).__name__} is not a table",
            "give a path, a data frame of pandas or polars, an Arrow table or a dict of arrays",
        )
    return Table(name, table.select(choose(table.column_names)))


def _from_columns(given: Mapping[Any, Any]) -> Any:
    import pyarrow as pa

    columns = {}
    for key, values in given.items():
        if isinstance(values, np.ndarray) and values.ndim == 2:  # one vector per row
            flat = pa.array(np.ascontiguousarray(values).reshape(-1))
            columns[str(key)] = pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
        else:
            columns[str(key)] = pa.array(values)
    lengths = {key: len(values) for key, values in columns.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{key} {length}" for key, length in lengths.items())
        what = f"the columns have different lengths ({counts})"
        raise UnusableError(what, "give all the same length")
    return pa.table(columns)


def chosen_columns(
    there: Sequence[str],
    name: str,
    problems: Problems,
    wanted: Sequence[str] | None,
    optional: Sequence[str],
) -> list[str]:
    """Return the wanted columns that exist; a missing one is a problem."""
    counts = Counter(there)
    twice = {column for column, count in counts.items() if count > 1}
    if wanted is None:
        if twice:
            problems.note(name, f"two columns are named {min(twice)!r}", "rename one of them")
        return [column for column in counts if column not in twice]
    for column in dict.fromkeys(wanted):
        if column not in counts:
            problems.note(name, "the column does not exist", _near(column, there), column=column)
        elif column in twice:
            problems.note(name, "two columns have this name", "rename one of them", column=column)
    return [c for c in dict.fromkeys((*wanted, *optional)) if counts[c] == 1]


def _near(column: str, there: Sequence[str]) -> str:
    """Return the most similar columns; of very many columns only the first ones."""
    hint = nearest_names(column, there) if there else "the table has no columns"
    return hint if len(hint) < 1000 else f"{hint[:900]} … ({len(there):,} columns)"
