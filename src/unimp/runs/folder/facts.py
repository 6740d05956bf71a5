"""What a report takes from the task and the model of a run, stored beside its other files.

evidence.parquet       one row per node: in_edges, known_neighbors, positions x and y if there are
                       any, and for binary tasks their labels label_0, label_1, …; its metadata
                       contains the classes, the label-rate curve and the SHA-256 of the file

Reports can be written again from this file, without the task, the model and torch. A file that is
damaged, or that belongs to another state of the run, is ignored: its content can be computed again.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from unimp.config.run_files import EVIDENCE
from unimp.data.files import read_regular, write_atomically
from unimp.data.memory import shortage
from unimp.data.tables.unpacking import parquet_bytes
from unimp.report.measures import Array
from unimp.runs.folder.schemas import FORMAT, Format, Schema, Share

LABEL_RATES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""The shares of train labels that the label-rate curve reveals."""
MOST_BYTES = 1 << 31
KEY = b"unimp"
SEAL = b"SHA-256 of this file without these digits: "
DIGITS = 64


@dataclass(frozen=True)
class Facts:
    """What a report takes from the task and the model of a run."""

    names: tuple[str, ...]  # of classes or binary tasks, in the order of the task
    in_edges: Array  # [N]
    known_neighbors: Array  # [N] in-neighbors whose label is in the train set
    positions: NDArray[np.float32] | None = None  # [N, 2]
    labels: Array | None = None  # [N, T]; None: classes, whose labels are in predictions.parquet
    label_rates: tuple[tuple[float, float], ...] | None = None  # None: not computed


class About(Schema):
    """The metadata of the file."""

    format: Format
    run: str  # the digest of the manifest
    names: tuple[str, ...]
    label_rates: tuple[tuple[Share, Share], ...] | None


ABOUT = TypeAdapter(About)


def store_facts(folder: Path, manifest: Mapping[str, Any], facts: Facts) -> None:
    """Write the facts about a run into its folder."""
    import pyarrow as pa
    import pyarrow.parquet

    columns = {"in_edges": facts.in_edges, "known_neighbors": facts.known_neighbors}
    if facts.positions is not None:
        columns |= {"x": facts.positions[:, 0], "y": facts.positions[:, 1]}
    if facts.labels is not None:
        columns |= {f"label_{t}": column for t, column in enumerate(facts.labels.T)}
    about = {
        "format": FORMAT,
        "run": manifest["digest"],
        "names": facts.names,
        "label_rates": facts.label_rates,
    }
    table = pa.table({name: np.ascontiguousarray(column) for name, column in columns.items()})
    metadata = {KEY: json.dumps(about).encode(), b"sha256": SEAL + b"0" * DIGITS}
    table = table.replace_schema_metadata(metadata)
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(table, buffer, compression="zstd")
    before, _, after = _around_digest(buffer.getvalue())
    write_atomically(folder / EVIDENCE, before + _digest(before, after) + after)


def stored_facts(folder: Path, manifest: Mapping[str, Any], nodes: int) -> Facts | None:
    """The facts that a run folder contains about its run as it is now; None if there are none."""
    with suppress(Exception):  # whatever is wrong with the file, its content is computed again
        data = read_regular(folder / EVIDENCE, MOST_BYTES)
        before, digest, after = _around_digest(data)
        if digest == _digest(before, after):
            return _parsed(data, manifest["digest"], nodes)
    return None


def _around_digest(data: bytes) -> tuple[bytes, bytes, bytes]:
    """The bytes of a file before its digest, the digest, and the bytes after it."""
    first = data.rfind(SEAL) + len(SEAL)
    last = first + DIGITS
    return data[:first], data[first:last], data[last:]


def _digest(before: bytes, after: bytes) -> bytes:
    return hashlib.sha256(before + after).hexdigest().encode()


def _parsed(data: bytes, run: str, nodes: int) -> Facts | None:
    """The facts in a file; None if it is about another run or other nodes, or too large."""
    import pyarrow as pa
    import pyarrow.parquet

    source = pa.BufferReader(data)
    file = pyarrow.parquet.ParquetFile(source)
    about = ABOUT.validate_json(file.metadata.metadata[KEY])
    if about.run != run or file.metadata.num_rows != nodes:
        return None
    expected = {"in_edges", "known_neighbors", "x", "y"}
    expected |= {f"label_{t}" for t in range(len(about.names))}
    chosen = [name for name in file.schema_arrow.names if name in expected]
    if shortage(parquet_bytes(source, file.metadata, chosen)):
        return None
    table = file.read(columns=chosen)
    columns: dict[str, Any] = {name: table[name].to_numpy() for name in table.column_names}
    places = {name: columns.pop(name, None) for name in ("x", "y")}
    in_edges, known = (columns.pop(name, None) for name in ("in_edges", "known_neighbors"))
    labels: list[Any] = (
        [columns.get(f"label_{t}") for t in range(len(about.names))] if columns else []
    )
    if not all(_are_whole(column, 0, 2**62) for column in (in_edges, known)):
        return None
    if not all(_are_whole(column, -1, 1) for column in labels):
        return None
    given = [column for column in places.values() if column is not None]
    if len(given) == 1 or not all(column.dtype.kind == "f" for column in given):
        return None
    return Facts(
        about.names,
        in_edges,
        known,
        np.stack(given, 1).astype(np.float32) if given else None,
        np.stack(labels, 1) if labels else None,
        about.label_rates,
    )


def _are_whole(column: Array | None, least: int, most: int) -> bool:
    """Whether a column exists and contains integers between two bounds."""
    if column is None or column.dtype.kind != "i":
        return False
    return not len(column) or bool((column.min() >= least) & (column.max() <= most))
