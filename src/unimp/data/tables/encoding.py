"""One column of a table, by its kind: its values, checked, and the numbers that stand for them.

    numeric      standardized; missing: the mean, and a column of its own that says so
    categorical  a column for each category seen twice or more, one for the others, one for missing
    text         words hashed into a fixed number of columns, weighted by TF-IDF
    vector       as it is; missing: zeros, and a column of its own that says so

An encoder is fitted once, on the tables of training, and is plain data: it is kept in the run and
encodes rows that come later the same way. A category that training did not see counts among the
others; where training had no others, it sets no column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from unimp.config.choices import ColumnKind
from unimp.data.tables.ids import positions
from unimp.data.tables.table import to_numpy

MOST_CATEGORIES = 1000


@dataclass(frozen=True)
class Numeric:
    """Standardized numbers: (v − mean) / std."""

    kind: ClassVar[ColumnKind] = "numeric"
    column: str
    mean: float
    std: float
    indicator: bool  # some were missing in training

    @property
    def width(self) -> int:
        return 1 + self.indicator

    @classmethod
    def fit(cls, column: str, values: NDArray[np.float64]) -> Numeric:
        missing = np.isnan(values)
        there = values[~missing]
        mean = float(there.mean()) if len(there) else 0.0
        std = float(there.std()) if len(there) else 0.0
        # A constant says nothing; rounding must not make something of it.
        std = std if std > 1e-12 * max(1.0, abs(mean)) else 1.0
        return cls(column, mean, std, bool(missing.any()))

    def encode(self, values: NDArray[np.float64]) -> NDArray[np.float32]:
        missing = np.isnan(values)
        encoded = np.zeros((len(values), self.width), dtype=np.float32)
        encoded[:, 0] = np.where(missing, 0.0, (values - self.mean) / self.std)
        if self.indicator:
            encoded[:, 1] = missing
        return encoded


@dataclass(frozen=True)
class Categorical:
    """A column for each category, one for all others, one for none at all."""

    kind: ClassVar[ColumnKind] = "categorical"
    column: str
    categories: tuple[str, ...]
    other: bool  # training had categories seen once, or too many
    missing: bool  # training had rows without one

    @property
    def width(self) -> int:
        return len(self.categories) + self.other + self.missing

    @classmethod
    def fit(cls, column: str, values: Any) -> Categorical:
        import pyarrow.compute as pc

        counted = pc.value_counts(values.drop_null())
        names = counted.field("values").to_pylist()
        counts = to_numpy(counted.field("counts"))
        often = [(-int(c), n) for n, c in zip(names, counts, strict=True) if c > 1]
        kept = tuple(name for _, name in sorted(often)[:MOST_CATEGORIES])
        return cls(column, kept, len(kept) < len(names), values.null_count > 0)

    def encode(self, values: Any) -> Any:
        import pyarrow as pa
        from scipy import sparse

        code = positions(values, pa.array(self.categories, pa.large_string()))
        empty = to_numpy(values.is_null())
        last = len(self.categories)
        code[(code < 0) & ~empty] = last if self.other else -1
        code[empty] = last + self.other if self.missing else -1
        rows = np.flatnonzero(code >= 0)
        ones = np.ones(len(rows), dtype=np.float32)
        return sparse.csr_array((ones, (rows, code[rows])), shape=(len(code), self.width))


@dataclass(frozen=True)
class Text:
    """Hashed words, each weighted by how rare it is; rows of length 1."""

    kind: ClassVar[ColumnKind] = "text"
    column: str
    idf: tuple[float, ...]

    @property
    def width(self) -> int:
        return len(self.idf)

    @classmethod
    def fit(cls, column: str, values: Any, width: int) -> Text:
        counts = _word_counts(values, width)
        documents = np.bincount(counts.indices, minlength=width)
        idf = np.log((1 + counts.shape[0]) / (1 + documents)) + 1  # as scikit-learn, smoothed
        return cls(column, tuple(idf.tolist()))

    def encode(self, values: Any) -> Any:
        from sklearn.preprocessing import normalize

        counts = _word_counts(values, self.width)
        counts.data *= np.asarray(self.idf)[counts.indices]
        return normalize(counts, norm="l2", copy=False)


@dataclass(frozen=True)
class Vector:
    """Numbers that were made elsewhere, taken as they are."""

    kind: ClassVar[ColumnKind] = "vector"
    column: str
    length: int
    indicator: bool

    @property
    def width(self) -> int:
        return self.length + self.indicator

    @classmethod
    def fit(cls, column: str, values: NDArray[np.float32]) -> Vector:
        return cls(column, values.shape[1], bool(np.isnan(values[:, 0]).any()))

    def encode(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        missing = np.isnan(values[:, :1])
        encoded = np.where(missing, np.float32(0), values)
        return np.hstack((encoded, missing.astype(np.float32))) if self.indicator else encoded


Encoder = Numeric | Categorical | Text | Vector
_ENCODERS: dict[str, type[Any]] = {e.kind: e for e in (Numeric, Categorical, Text, Vector)}


def fit(column: str, kind: str, values: Any, *, text_width: int) -> Encoder:
    """An encoder for the values that training has."""
    if kind == "text":
        return Text.fit(column, values, text_width)
    made: Encoder = _ENCODERS[kind].fit(column, values)
    return made


def to_plain(encoder: Encoder) -> dict[str, Any]:
    return {"kind": encoder.kind, **asdict(encoder)}


def from_plain(plain: Mapping[str, Any]) -> Encoder:
    """An encoder as `to_plain` wrote it; anything else raises KeyError, TypeError or ValueError."""
    fields = {k: tuple(v) if isinstance(v, list) else v for k, v in plain.items() if k != "kind"}
    made: Encoder = _ENCODERS[plain["kind"]](**fields)
    numbers = [v for v in fields.values() if isinstance(v, float)] + list(fields.get("idf", ()))
    if not np.isfinite(np.asarray(numbers, dtype=np.float64)).all():
        raise ValueError(f"{made.column} holds a number that is not finite")
    return made


def _word_counts(values: Any, width: int) -> Any:
    """How often each hashed word stands in each row: sparse [N, width]."""
    from sklearn.feature_extraction.text import HashingVectorizer

    hashing = HashingVectorizer(n_features=width, alternate_sign=False, norm=None)
    return hashing.transform(values.to_pylist())
