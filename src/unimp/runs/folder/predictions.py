"""Reading predictions.parquet of a finished run (see analysis/predictions.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unimp.config.run_files import PREDICTIONS
from unimp.data.memory import shortage
from unimp.data.tables.unpacking import parquet_bytes
from unimp.errors import RunError
from unimp.runs.folder.files import read_part
from unimp.runs.folder.schemas import FIX

if TYPE_CHECKING:
    import pyarrow as pa


def read_predictions(
    folder: Path, manifest: Mapping[str, Any], choose: Callable[[Sequence[str]], Sequence[str]]
) -> pa.Table:
    """The columns of predictions.parquet that `choose` chooses from their names."""
    import pyarrow as pa
    import pyarrow.parquet

    path = folder / PREDICTIONS
    source = pa.BufferReader(read_part(path, manifest))
    try:  # read_table would import pandas
        file = pyarrow.parquet.ParquetFile(source)
        columns = choose(file.schema_arrow.names)
        if short := shortage(parquet_bytes(source, file.metadata, columns)):
            raise RunError(f"cannot read {path}: when unpacked, {short}. Free some memory.")
        return file.read(columns=columns)
    except (OSError, pa.ArrowException) as error:
        raise RunError(f"cannot read {path}: {error}. {FIX}") from error
