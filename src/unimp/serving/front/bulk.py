"""Many labels in one request: JSON, CSV or Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from unimp.errors import InvalidWriteError
from unimp.serving.events import MOST_WRITES, Classes, Id
from unimp.serving.export import NONE
from unimp.serving.front.problems import ProblemError
from unimp.serving.schemas import LabelsRequest

SEPARATOR = ";"
_ID: TypeAdapter[str] = TypeAdapter(Id)
_LABEL: TypeAdapter[Any] = TypeAdapter(Classes)

Labels = list[tuple[str, Any]]


def labels_of(kind: str, body: bytes, *, several: bool) -> tuple[Labels, str | None]:
    """The labels in a body, and their source if it names one; None retracts a label.

    kind: the content type. several: a cell contains names that are separated by semicolons.
    """
    kind = kind.partition(";")[0].strip().lower()
    if kind in ("application/json", ""):
        given = LabelsRequest.model_validate_json(body)
        if len(given.labels) > MOST_WRITES:
            raise _too_many(len(given.labels))
        return [(one.node, one.label) for one in given.labels], given.source
    if kind == "text/csv":
        return _checked(_csv_rows(body), several), None
    if kind in ("application/vnd.apache.parquet", "application/x-parquet"):
        return _checked(_parquet_rows(body), several), None
    raise ProblemError(
        415,
        "invalid",
        "send application/json, text/csv or application/vnd.apache.parquet.",
    )


def _csv_rows(body: bytes) -> Iterator[Sequence[Any]]:
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ProblemError(422, "invalid", "the CSV file is not UTF-8.") from None
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(rows, [])
        places = _places(header)
        for row in rows:
            if row:
                yield [row[p] if p < len(row) else "" for p in places]
    except csv.Error as error:
        raise ProblemError(422, "invalid", f"the CSV file cannot be read: {error}.") from None


def _parquet_rows(body: bytes) -> Iterator[Sequence[Any]]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(io.BytesIO(body))
        if file.metadata.num_rows > MOST_WRITES:
            raise _too_many(file.metadata.num_rows)
        _places(file.schema_arrow.names)
        table = file.read(columns=["node", "label"])
    except (pa.ArrowException, OSError) as error:
        first = str(error).splitlines()[0]
        raise ProblemError(422, "invalid", f"the Parquet file cannot be read: {first}") from None
    for row in table.to_pylist():
        yield (
            _text(row["node"]),
            row["label"] if isinstance(row["label"], list) else _text(row["label"]),
        )


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _places(header: Sequence[str]) -> tuple[int, int]:
    missing = [name for name in ("node", "label") if name not in header]
    if missing:
        raise ProblemError(422, "invalid", f"the file has no column {missing[0]!r}.")
    return header.index("node"), header.index("label")


def _checked(rows: Iterable[Sequence[Any]], several: bool) -> Labels:
    """Labels of cells; all invalid ones are listed."""
    found: Labels = []
    problems: list[tuple[int, str]] = []
    for place, (node, label) in enumerate(rows):
        if place >= MOST_WRITES:
            raise _too_many(place + 1)
        try:
            _ID.validate_python(node, strict=True)
            if several and isinstance(label, str):
                names = [name.strip() for name in label.split(SEPARATOR)]
                label = [] if label == NONE else [name for name in names if name]
            if not label and not (several and isinstance(label, list)):
                problems.append((place, f"the label of {node!r} is empty"))
                continue
            found.append((node, _LABEL.validate_python(label)))
        except ValidationError as error:
            problems.append((place, str(error.errors()[0]["msg"])))
    if problems:
        raise InvalidWriteError(problems)
    return found


def _too_many(count: int) -> ProblemError:
    what = f"the request has {count:,} labels; send at most {MOST_WRITES:,} at once."
    return ProblemError(413, "too-large", what)
