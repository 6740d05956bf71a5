"""Write tables to files."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from unimp.data.files import write_atomically

if TYPE_CHECKING:
    import pyarrow as pa


def write_table(path: Path, table: pa.Table) -> None:
    """Write a table atomically: CSV if the name ends in .csv, Parquet for .parquet and .pq."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    buffer = io.BytesIO()
    if path.suffix.lower() == ".csv":
        pyarrow.csv.write_csv(table, buffer)
    else:
        # Probabilities rarely repeat; everything else does.
        fields = [(field.name, pa.types.is_floating(field.type)) for field in table.schema]
        chances = [name for name, floats in fields if floats and name.startswith("p_")]
        pyarrow.parquet.write_table(
            table,
            buffer,
            compression="zstd",
            use_dictionary=[name for name in table.column_names if name not in chances],
            use_byte_stream_split=chances,
        )
    write_atomically(path, buffer.getvalue())
