"""A table in memory: named Arrow columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray


@dataclass(frozen=True)
class Table:
    """The columns of a table, and its name in messages."""

    name: str
    arrow: Any  # pyarrow.Table
    delimiter: str = ""  # of a CSV file

    @property
    def num_rows(self) -> int:
        return int(self.arrow.num_rows)

    @property
    def columns(self) -> list[str]:
        return [str(name) for name in self.arrow.column_names]

    def has(self, column: str) -> bool:
        """Return whether there is exactly one column of this name."""
        return bool(self.arrow.schema.get_field_index(column) >= 0)

    def kind(self, column: str) -> Any:
        """Return the Arrow type of a column, which is cheaper than to get its values."""
        import pyarrow as pa

        kind = self.arrow.schema.field(column).type
        return kind.value_type if pa.types.is_dictionary(kind) else kind

    def get(self, column: str) -> Any:
        """Return a column as one plain Arrow array: no dictionaries, no views, no 16-bit floats."""
        import pyarrow as pa

        values = self.arrow.column(column)
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        if is_string(values.type):
            values = values.cast(pa.large_string())
        elif pa.types.is_float16(values.type):  # Arrow computes little with these
            values = values.cast(pa.float32())
        return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def is_string(kind: Any) -> bool:
    import pyarrow as pa

    view = getattr(pa.types, "is_string_view", lambda kind: False)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or view(kind))


def to_numpy(values: Any) -> NDArray[Any]:
    """Return an Arrow array as a numpy array, copied if necessary."""
    array: NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return array
