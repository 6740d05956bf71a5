"""Statistics of columns over all parts of a table, from which their encoders are made.

Each statistic sees every value once, so encoders equal those that are fitted on a whole table, up
to the rounding of means and standard deviations.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from unimp.config.choices import Decimal
from unimp.data.tables.encoding import (
    MOST_CATEGORIES,
    Categorical,
    Encoder,
    Numeric,
    Text,
    Vector,
    word_counts,
)
from unimp.data.tables.problems import Problems
from unimp.data.tables.table import Table, is_string, to_numpy
from unimp.data.tables.values import read_values, split_vectors
from unimp.errors import TaskError

_MOST_DISTINCT = 5_000_000


@dataclass
class NumericStatistics:
    """Mean and standard deviation, merged over chunks."""

    column: str
    count: int = 0
    missing: bool = False
    first: float = 0.0
    low: float = np.inf
    high: float = -np.inf
    mean: Any = 0.0  # becomes a long double
    squares: Any = 0.0  # sum of (v − mean)²

    def add(self, table: Table, problems: Problems, decimal: Decimal) -> None:
        values = read_values(table, self.column, "numeric", problems, decimal=decimal)
        if values is None:
            return
        present = values[~np.isnan(values)].astype(np.longdouble)
        self.missing |= len(present) < len(values)
        if not len(present):
            return
        if not self.count:
            self.first = float(present[0])
        self.low = min(self.low, float(present.min()))
        self.high = max(self.high, float(present.max()))
        mean, total = present.mean(), self.count + len(present)
        difference = mean - self.mean
        self.squares += np.square(present - mean).sum()
        self.squares += difference**2 * self.count * len(present) / total
        self.mean += difference * len(present) / total
        self.count = total

    def encoder(self) -> Encoder:
        if not self.count:
            return Numeric(self.column, 0.0, 1.0, self.missing)
        spread, largest = self.high - self.low, max(abs(self.low), abs(self.high))
        if spread <= 4 * np.spacing(largest):  # as in `Numeric.fit`
            std = max(1.0, largest) if spread else 1.0
            return Numeric(self.column, self.first, std, self.missing)
        std = float(np.sqrt(self.squares / self.count))
        return Numeric(self.column, float(self.mean), std, self.missing)


@dataclass
class CategoricalStatistics:
    """How often each category occurs."""

    column: str
    counts: Counter[str] = field(default_factory=Counter)
    missing: bool = False

    def add(self, table: Table, problems: Problems, decimal: Decimal) -> None:
        import pyarrow.compute as pc

        values = read_values(table, self.column, "categorical", problems, decimal=decimal)
        if values is None:
            return
        self.missing |= values.null_count > 0
        counted = pc.value_counts(values.drop_null())
        counts = to_numpy(counted.field("counts")).tolist()
        names = counted.field("values").to_pylist()
        self.counts.update(dict(zip(names, counts, strict=True)))
        if len(self.counts) > _MOST_DISTINCT:
            raise TaskError(
                f"the column {self.column} has more than {_MOST_DISTINCT:,} categories. Declare it "
                "as text, or remove it from the features."
            )

    def encoder(self) -> Encoder:
        often = sorted((-count, name) for name, count in self.counts.items() if count > 1)
        kept = tuple(name for _, name in often[:MOST_CATEGORIES])
        return Categorical(self.column, kept, len(kept) < len(self.counts), self.missing)


@dataclass
class TextStatistics:
    """The number of rows in which each hashed word occurs."""

    column: str
    width: int
    rows: int = 0
    documents: Any = 0

    def add(self, table: Table, problems: Problems, decimal: Decimal) -> None:
        values = read_values(table, self.column, "text", problems, decimal=decimal)
        if values is None:
            return
        counts = word_counts(values, self.width)
        self.documents = self.documents + np.bincount(counts.indices, minlength=self.width)
        self.rows += counts.shape[0]

    def encoder(self) -> Encoder:
        return Text.of_documents(self.column, self.rows, self.documents)


@dataclass
class VectorStatistics:
    """The length of vectors, and whether some are missing."""

    column: str
    length: int = 0
    missing: bool = False

    def add(self, table: Table, problems: Problems, decimal: Decimal) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        values = table.get(self.column)
        if is_string(values.type):
            values = split_vectors(values, "." if table.delimiter == "," else decimal)
        self.missing |= values.null_count > 0
        if self.length or values.null_count == len(values):
            return
        lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
        if any(check(values.type) for check in lists):
            self.length = pc.max(pc.list_value_length(values)).as_py() or 0
        else:  # reports what is wrong
            read_values(table, self.column, "vector", problems, decimal=decimal)

    def encoder(self) -> Encoder:
        if not self.length:
            raise TaskError(
                f"the column {self.column} contains no vector. Remove it from the features."
            )
        return Vector(self.column, self.length, self.missing)


Statistics = NumericStatistics | CategoricalStatistics | TextStatistics | VectorStatistics


def statistics_of(column: str, kind: str, text_width: int) -> Statistics:
    """The statistics that an encoder of a kind is made from."""
    if kind == "text":
        return TextStatistics(column, text_width)
    made: dict[str, type[Any]] = {
        "numeric": NumericStatistics,
        "categorical": CategoricalStatistics,
        "vector": VectorStatistics,
    }
    statistics: Statistics = made[kind](column)
    return statistics
