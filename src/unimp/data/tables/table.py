"""A table in memory: named Arrow columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray


@dataclass(frozen=True)
class Table:
    """Columns of one table, and what to call it in messages."""

    name: str
    arrow: Any  # pyarrow.Table
    delimiter: str = ""  # between the fields of CSV

    @property
    def num_rows(self) -> int:
        return int(self.arrow.num_rows)

    @property
    def columns(self) -> list[str]:
        return [str(name) for name in self.arrow.column_names]

    def get(self, column: str) -> Any:
        """A column as one plain Arrow array: no dictionaries, views, short offsets or floats."""
        import pyarrow as pa

        values = self.arrow.column(column)
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        if is_string(values.type):
            values = values.cast(pa.large_string())
        elif pa.types.is_float16(values.type):  # which Arrow can hold, but hardly count with
            values = values.cast(pa.float32())
        return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def is_string(kind: Any) -> bool:
    import pyarrow as pa

    view = getattr(pa.types, "is_string_view", lambda kind: False)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or view(kind))


def to_numpy(values: Any) -> NDArray[Any]:
    """An Arrow array as numpy, copied where it must be."""
    array: NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return array
