"""What a report takes from the task and the model of a run, stored beside its other files.

evidence.parquet       one row per node: in_edges, known_neighbors, positions x and y if there are
                       any, and for binary tasks their labels label_0, label_1, …; its metadata
                       contains the classes and the label-rate curve

Reports can be written again from this file, without the task, the model and torch. A file that is
damaged, or that belongs to another state of the run, is ignored: its content can be computed again.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from unimp.config.run_files import EVIDENCE
from unimp.data.files import read_regular, write_atomically
from unimp.report.measures import Array
from unimp.runs.folder.schemas import FORMAT, Count, Format, Schema, Share

LABEL_RATES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""The shares of train labels that the label-rate curve reveals."""
MOST_BYTES = 1 << 31
KEY = b"unimp"


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
    nodes: Count
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
        "nodes": len(facts.in_edges),
        "names": facts.names,
        "label_rates": facts.label_rates,
    }
    table = pa.table({name: np.ascontiguousarray(column) for name, column in columns.items()})
    table = table.replace_schema_metadata({KEY: json.dumps(about).encode()})
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(table, buffer, compression="zstd", write_page_checksum=True)
    write_atomically(folder / EVIDENCE, buffer.getvalue())


def stored_facts(folder: Path, manifest: Mapping[str, Any]) -> Facts | None:
    """The facts that a run folder contains about its run as it is now; None if there are none."""
    import pyarrow as pa
    import pyarrow.parquet

    try:
        data = pa.BufferReader(read_regular(folder / EVIDENCE, MOST_BYTES))
        file = pyarrow.parquet.ParquetFile(data, page_checksum_verification=True)
        about = ABOUT.validate_json((file.schema_arrow.metadata or {}).get(KEY, b""))
        if about.run != manifest["digest"] or about.nodes != file.metadata.num_rows:
            return None
        table = file.read()
    except (OSError, pa.ArrowException, ValidationError):
        return None
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
