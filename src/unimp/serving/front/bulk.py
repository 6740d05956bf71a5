"""Many labels in one request: JSON, CSV or Parquet."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError

from unimp.serving.events import MOST_WRITES, Classes, Id
from unimp.serving.export import NONE, from_spreadsheet
from unimp.serving.front.problems import ProblemError
from unimp.serving.schemas import LabelsRequest

SEPARATOR = ";"
_ID: TypeAdapter[str] = TypeAdapter(Id)
_LABEL: TypeAdapter[Any] = TypeAdapter(Classes)


@dataclass
class Labels:
    """The valid labels in a body with their places, and what is wrong at the other places.

    A label of None retracts the label of the node. source: if the body names one.
    """

    rows: list[tuple[int, str, Any]] = field(default_factory=list)
    problems: list[tuple[int, str]] = field(default_factory=list)
    source: str | None = None


def labels_of(kind: str, body: bytes, *, several: bool) -> Labels:
    """The labels in a body.

    kind: the content type. several: a cell contains names that are separated by semicolons.
    """
    kind = kind.partition(";")[0].strip().lower()
    if kind in ("application/json", ""):
        return _json_labels(body)
    if kind == "text/csv":
        return _checked(_csv_rows(body), several)
    if kind in ("application/vnd.apache.parquet", "application/x-parquet"):
        return _checked(_parquet_rows(body), several)
    raise ProblemError(
        415,
        "invalid",
        "send application/json, text/csv or application/vnd.apache.parquet.",
    )


def _json_labels(body: bytes) -> Labels:
    found = Labels()
    try:
        given = LabelsRequest.model_validate_json(body)
    except ValidationError as error:
        problems: dict[int, str] = {}
        for one in error.errors():
            where = one["loc"]
            if len(where) < 2 or where[0] != "labels":
                raise  # the body as a whole is not valid
            words = ".".join(str(part)[:100] for part in where[2:3])
            problems.setdefault(int(where[1]), f"{words}: {one['msg']}" if words else one["msg"])
        found.problems = sorted(problems.items())
        rest = json.loads(body)
        places = [p for p in range(len(rest["labels"])) if p not in problems]
        rest["labels"] = [rest["labels"][place] for place in places]
        given = LabelsRequest.model_validate(rest)
    else:
        places = list(range(len(given.labels)))
    if (count := len(places) + len(found.problems)) > MOST_WRITES:
        raise _too_many(count)
    found.source = given.source
    found.rows = [(p, one.node, one.label) for p, one in zip(places, given.labels, strict=True)]
    return found


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
                yield [from_spreadsheet(row[p]) if p < len(row) else "" for p in places]
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
        there = ", ".join(repr(name[:100]) for name in header[:20]) or "empty"
        raise ProblemError(
            422,
            "invalid",
            f"the file has no column {missing[0]!r}; its first line is {there}. Name the columns "
            "node and label, and separate them with commas.",
        )
    return header.index("node"), header.index("label")


def _checked(rows: Iterable[Sequence[Any]], several: bool) -> Labels:
    """The labels of cells."""
    found = Labels()
    for place, (node, label) in enumerate(rows):
        if place >= MOST_WRITES:
            raise _too_many(place + 1)
        try:
            _ID.validate_python(node, strict=True)
            if several and isinstance(label, str):
                names = [name.strip() for name in label.split(SEPARATOR)]
                label = [] if label == NONE else [name for name in names if name]
            if not label and not (several and isinstance(label, list)):
                found.problems.append((place, f"the label of {node!r} is empty"))
                continue
            found.rows.append((place, node, _LABEL.validate_python(label)))
        except ValidationError as error:
            found.problems.append((place, str(error.errors()[0]["msg"])))
    return found


def _too_many(count: int) -> ProblemError:
    what = f"the request has {count:,} labels; send at most {MOST_WRITES:,} at once."
    return ProblemError(413, "too-large", what)
