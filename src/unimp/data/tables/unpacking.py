"""The size of compressed tables, so that a small file cannot fill the memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from unimp.data.memory import available_memory

COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
"""Suffixes of compressed CSV files, in small letters, and Arrow's names of the formats."""
_BYTES = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 8}
_DEFLATE = 1032  # the largest factor by which gzip makes data smaller
_BLOCK = 1 << 22
_OFFSET = 4  # bytes per text, in addition to its letters


def open_unpacked(path: Path) -> Any:
    """Open a CSV file for reading; a suffix such as .gz or .GZ means that it is unpacked."""
    import pyarrow as pa

    return pa.input_stream(str(path), compression=COMPRESSED.get(path.suffix.lower()))


def csv_bytes(path: Path, columns: int) -> int:
    """Return the memory that a compressed CSV file needs; counting stops at the free memory.

    The size that such a file states can be wrong, so its bytes are counted.
    """
    free = available_memory("cpu")
    if path.suffix.lower() == ".gz" and 8 * _DEFLATE * path.stat().st_size <= free:
        return 0  # it cannot be too large, even if all fields are empty
    letters = rows = 0
    with open_unpacked(path) as stream:
        while max(letters, 8 * columns * rows) <= free and (block := stream.read(_BLOCK)):
            letters += len(block)
            rows += block.count(b"\n")
    return max(letters, 8 * columns * rows)


def arrow_bytes(batches: Iterable[Any]) -> int:
    """Return the memory that record batches need; counting stops at the free memory.

    Each batch is unpacked, counted and dropped, so one batch is in memory at a time. A single batch
    that does not fit is not recognized before it is unpacked. A dictionary, to which many batches
    refer, is counted once.
    """
    import pyarrow as pa

    free, total, dictionaries = available_memory("cpu"), 0, dict[int, int]()
    for batch in batches:
        for number, column in enumerate(batch.columns):
            if pa.types.is_dictionary(column.type):
                dictionaries[number] = column.dictionary.get_total_buffer_size()
                column = column.indices
            total += column.get_total_buffer_size()
        if total + sum(dictionaries.values()) > free:
            break
    return total + sum(dictionaries.values())


def parquet_bytes(source: Any, metadata: Any, columns: Sequence[str]) -> int:
    """Return the memory that some columns of a Parquet file need, from what its footer states.

    source: the path of the file, or what Arrow reads it from.

    A page may state each text once and refer to it from many rows. If neither the sizes nor the
    longest of such texts show that they fit, their letters are counted.
    """
    wanted, total, repeated = set(columns), 0, dict[str, int]()
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            parts = column.path_in_schema.split(".")
            if wanted.isdisjoint(accumulate(parts, "{}.{}".format)):
                continue
            width = _BYTES.get(column.physical_type, _OFFSET)
            total += max(column.total_uncompressed_size, width * column.num_values)
            if column.physical_type == "BYTE_ARRAY" and column.path_in_schema in wanted:
                most = column.total_uncompressed_size * column.num_values
                repeated[column.path_in_schema] = repeated.get(column.path_in_schema, 0) + most
    free = available_memory("cpu")
    for bound in (lambda column: repeated[column], lambda column: _most_letters(source, column)):
        if (needed := total + sum(map(bound, repeated))) <= free:
            return needed
    return total + sum(_letters(source, column) for column in repeated)


def _most_letters(source: Any, column: str) -> int:
    """Return an upper bound of `_letters` from the longest text that pages may refer to."""
    import pyarrow.compute as pc
    import pyarrow.parquet

    total = 0
    with pyarrow.parquet.ParquetFile(source, read_dictionary=[column]) as file:
        for number in range(file.metadata.num_row_groups):
            # The dictionary precedes the rows; texts outside of it are not repeated.
            rows = file.iter_batches(batch_size=1, row_groups=[number], columns=[column])
            if (first := next(rows, None)) is not None:
                longest = pc.max(pc.binary_length(first.column(0).dictionary)).as_py() or 0
                total += longest * file.metadata.row_group(number).num_rows
    return total


def _letters(source: Any, column: str) -> int:
    """Return the number of bytes of all texts of a column, without unpacking repeated ones."""
    import pyarrow.compute as pc
    import pyarrow.parquet

    total = 0
    with pyarrow.parquet.ParquetFile(source, read_dictionary=[column]) as file:
        for batch in file.iter_batches(columns=[column]):
            texts = batch.column(0)
            lengths = pc.binary_length(texts.dictionary).take(texts.indices)
            total += pc.sum(lengths).as_py() or 0
    return total
