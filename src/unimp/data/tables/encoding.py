"""Encoders, which turn the values of one column into features, depending on the kind of column.

    numeric      standardized; a missing value is the mean, and an extra column marks it
    categorical  one column per category seen at least twice, one for others, one for missing
    text         words hashed into a fixed number of columns, weighted by TF-IDF
    vector       unchanged; a missing vector is zeros, and an extra column marks it

An encoder is fitted once, on the tables of training. It is plain data, stored in the run, and
encodes rows that are added later in the same way. A category that training did not contain counts
as one of the others; if training had no others, it sets no column.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from unimp.config.choices import ColumnKind
from unimp.data.tables.ids import positions
from unimp.data.tables.table import to_numpy

MOST_CATEGORIES = 1000
LARGEST = 1e6
"""The largest standardized number that is accepted after training.

Inputs of training are at most √N standard deviations from the mean, so the model has never seen a
number like this. In float32 it also erases the other features: a sum with it keeps less than 5 of
24 bits of numbers near 1. Real outliers, such as incomes, stay far below.
"""


@dataclass(frozen=True)
class Numeric:
    """Standardized numbers: (v − mean) / std."""

    kind: ClassVar[ColumnKind] = "numeric"
    column: str
    mean: float
    std: Annotated[float, Field(gt=0)]
    indicator: bool  # some values were missing in training

    @property
    def width(self) -> int:
        return 1 + self.indicator

    @classmethod
    def fit(cls, column: str, values: NDArray[np.float64]) -> Numeric:
        missing = np.isnan(values)
        present = values[~missing]
        if not len(present):
            return cls(column, 0.0, 1.0, bool(missing.any()))
        spread, largest = float(np.ptp(present)), float(np.abs(present).max())
        # Only differences in the last bits of float64 are rounding errors of a constant.
        if spread <= 4 * np.spacing(largest):
            std = max(1.0, largest) if spread else 1.0
            return cls(column, float(present[0]), std, bool(missing.any()))
        scale = min(1.0, spread * 2.0**500)  # squares of tiny numbers would become 0
        std = float((present / scale).std()) * scale
        return cls(column, float(present.mean()), std, bool(missing.any()))

    def standardized(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return (v − mean) / std; a missing value is 0, the mean."""
        with np.errstate(over="ignore"):  # far outside of training, which `extend_task` refuses
            return np.where(np.isnan(values), 0.0, (values - self.mean) / self.std)

    def encode(self, values: NDArray[np.float64]) -> NDArray[np.float32]:
        missing = np.isnan(values)
        encoded = np.zeros((len(values), self.width), dtype=np.float32)
        encoded[:, 0] = self.standardized(values)
        if self.indicator:
            encoded[:, 1] = missing
        return encoded


@dataclass(frozen=True)
class Categorical:
    """One column per category, one for all others, one for missing values."""

    kind: ClassVar[ColumnKind] = "categorical"
    column: str
    categories: tuple[str, ...]
    other: bool  # training had categories seen once, or too many categories
    missing: bool  # training had missing values

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
    """Hashed words, weighted by inverse document frequency; rows have length 1."""

    kind: ClassVar[ColumnKind] = "text"
    column: str
    idf: tuple[float, ...]

    @property
    def width(self) -> int:
        return len(self.idf)

    @classmethod
    def fit(cls, column: str, values: Any, width: int) -> Text:
        return cls._of_counts(column, word_counts(values, width))

    @classmethod
    def fit_and_encode(cls, column: str, values: Any, width: int) -> tuple[Text, Any]:
        """Fit, and encode the same values; their words are hashed only once."""
        counts = word_counts(values, width)
        encoder = cls._of_counts(column, counts)
        return encoder, encoder._weighted(counts)

    @classmethod
    def _of_counts(cls, column: str, counts: Any) -> Text:
        documents = np.bincount(counts.indices, minlength=counts.shape[1])
        return cls.of_documents(column, counts.shape[0], documents)

    @classmethod
    def of_documents(cls, column: str, rows: int, documents: NDArray[np.int64]) -> Text:
        """Make the encoder from the number of rows in which each hashed word occurs."""
        idf = np.log((1 + rows) / (1 + documents)) + 1  # smoothed as in scikit-learn
        return cls(column, tuple(idf.tolist()))

    def encode(self, values: Any) -> Any:
        return self._weighted(word_counts(values, self.width))

    def _weighted(self, counts: Any) -> Any:
        from sklearn.preprocessing import normalize

        counts.data *= np.asarray(self.idf)[counts.indices]
        return normalize(counts, norm="l2", copy=False)


@dataclass(frozen=True)
class Vector:
    """Vectors that were computed elsewhere, used unchanged."""

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
    """Fit an encoder on the values of training."""
    if kind == "text":
        return Text.fit(column, values, text_width)
    made: Encoder = _ENCODERS[kind].fit(column, values)
    return made


def fit_and_encode(
    column: str, kind: str, values: Any, *, text_width: int
) -> tuple[Encoder, Any] | None:
    """Fit an encoder and encode the same values; None if the column carries no information."""
    if kind == "text":
        return Text.fit_and_encode(column, values, text_width)
    encoder = fit(column, kind, values, text_width=text_width)
    # A column without information, such as a single category, has width 0.
    return (encoder, encoder.encode(values)) if encoder.width else None


def to_plain(encoder: Encoder) -> dict[str, Any]:
    return {"kind": encoder.kind, **asdict(encoder)}


def word_counts(values: Any, width: int) -> Any:
    """Count the hashed words of each row: sparse [N, width]."""
    from sklearn.feature_extraction.text import HashingVectorizer

    hashing = HashingVectorizer(n_features=width, alternate_sign=False, norm=None)
    return hashing.transform(values.to_pylist())
