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

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, get_args

import numpy as np
from numpy.typing import NDArray

from unimp.config.choices import ColumnKind, Decimal
from unimp.data.tables.edges import not_whole, positions, to_numpy
from unimp.data.tables.problems import Problems
from unimp.data.tables.table_file import Table, is_string

KINDS: tuple[str, ...] = get_args(ColumnKind)

MOST_CATEGORIES = 1000
NO_VALUE = ("", "null", "NULL", "NaN", "nan", "None", "NA", "N/A", "n/a", "#N/A")
"""What stands for a missing number where a column is text."""
NUMBER = r"(?i)^[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf(inity)?|nan)$"


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


def read_values(
    table: Table,
    column: str,
    kind: str,
    problems: Problems,
    *,
    decimal: Decimal = ".",
    length: int | None = None,
) -> Any:
    """The values of a column, checked; None where it is not there or holds what it must not.

    `decimal` stands before the fractions of numbers that are text; where commas divide the fields
    of a CSV file, it is a point. `length` is that of the vectors in training, where the rows come
    later.
    """
    if column not in table.columns:
        return None
    if table.delimiter == ",":
        decimal = "."
    if kind == "numeric":
        return _numbers(table, column, problems, decimal)
    if kind == "vector":
        return _vectors(table, column, problems, decimal, length)
    return words(table, column, problems, empty_is_missing=kind == "categorical")


def words(table: Table, column: str, problems: Problems, *, empty_is_missing: bool = True) -> Any:
    """A column as text: whole numbers without a point, truth as true and false."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = table.get(column)
    kind = values.type
    if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        problems.note(
            table.name,
            f"is of type {kind}, not text",
            "use another column, or kind vector where it holds lists of numbers",
            column=column,
        )
        return None
    if pa.types.is_floating(kind):
        values = pc.if_else(pc.is_nan(values), None, values)
        if not len(not_whole(values)):
            values = values.cast(pa.int64())
    text = pc.utf8_trim_whitespace(values.cast(pa.large_string()))
    if empty_is_missing:
        return pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.large_string()), text)
    return pc.fill_null(text, "")


def _numbers(
    table: Table, column: str, problems: Problems, decimal: Decimal
) -> NDArray[np.float64] | None:
    """Numbers, NaN where one is missing."""
    import pyarrow as pa

    values = table.get(column)
    kind = values.type
    if is_string(kind):
        return _numbers_of_text(table, column, values, problems, decimal)
    if pa.types.is_null(kind):
        return np.full(len(values), np.nan)
    plain = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean)
    if not any(check(kind) for check in plain):
        problems.note(
            table.name,
            f"is of type {kind}, not numbers",
            "choose another kind for it, or make numbers of it",
            column=column,
        )
        return None
    if pa.types.is_boolean(kind):
        values = values.cast(pa.uint8())
    numbers = to_numpy(values.cast(pa.float64(), safe=False)).astype(np.float64)
    return _finite(table, column, numbers, problems)


def _finite(
    table: Table, column: str, numbers: NDArray[np.float64], problems: Problems
) -> NDArray[np.float64] | None:
    # Beyond what 32 bits hold a number would become infinite.
    wild = np.flatnonzero(np.abs(numbers) > np.finfo(np.float32).max)
    if len(wild):
        problems.note(
            table.name,
            f"{numbers[wild[0]]} is no finite number",
            "write a finite one, or leave it empty",
            column=column,
            rows=wild,
        )
        return None
    return numbers


def _numbers_of_text(
    table: Table, column: str, values: Any, problems: Problems, decimal: Decimal
) -> NDArray[np.float64] | None:
    import pyarrow as pa
    import pyarrow.compute as pc

    text = pc.utf8_trim_whitespace(values)
    text = pc.if_else(pc.is_in(text, pa.array(NO_VALUE, text.type)), None, text)
    numbers, wrong = _parsed(text, decimal)
    if numbers is None:
        shown = text[int(wrong[0])].as_py()[:60]
        problems.note(
            table.name,
            f"{shown!r} is no number",
            _mend_number(shown, table, decimal),
            column=column,
            rows=wrong,
        )
        return None
    return _finite(table, column, numbers, problems)


def _mend_number(shown: str, table: Table, decimal: Decimal) -> str:
    if decimal == "," and "." in shown:
        return 'write a decimal comma, as decimal = "," under [tables] says, and no other mark'
    if "," in shown and shown.replace(",", "").replace(".", "").isdecimal():
        point = "write a decimal point"
        comma = 'a decimal comma is read with decimal = "," under [tables]'
        return f"{point if table.delimiter == ',' else comma}; between thousands stands no mark"
    return "write one, or leave it empty; a column of words is categorical or text"


def _parsed(text: Any, decimal: Decimal) -> tuple[NDArray[np.float64] | None, NDArray[np.int64]]:
    """Numbers written as text, NaN where null; None, and the places of those that are none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if decimal == ",":  # a point becomes what is no number
        text = pc.replace_substring(pc.replace_substring(text, ".", "·"), ",", ".")
    try:
        return to_numpy(text.cast(pa.float64())).astype(np.float64), np.empty(0, np.int64)
    except pa.ArrowInvalid:
        # Slower than reading them, so only where one cannot be read.
        right = pc.match_substring_regex(text, NUMBER)
        return None, np.flatnonzero(~to_numpy(pc.fill_null(right, True)))


def _vectors(
    table: Table, column: str, problems: Problems, decimal: Decimal, trained: int | None
) -> NDArray[np.float32] | None:
    """Rows of numbers, as many in each; a row of NaN where it is missing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    def refuse(what: str, fix: str, rows: Any = None) -> None:
        problems.note(table.name, what, fix, column=column, rows=rows)

    values = table.get(column)
    if is_string(values.type):
        values = split_vectors(values, decimal)
    if trained is not None and values.null_count == len(values):
        return np.full((len(values), trained), np.nan, dtype=np.float32)
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if not any(check(values.type) for check in lists):
        refuse(
            f"is of type {values.type}, not lists of numbers",
            "choose numeric for a column of single numbers",
        )
        return None
    there = ~to_numpy(values.is_null())
    lengths = to_numpy(pc.fill_null(pc.list_value_length(values), 0))[there]
    if not len(lengths):
        refuse("holds no vector at all", "take it out of the features")
        return None
    length = trained or Counter(lengths.tolist()).most_common(1)[0][0]
    ragged = np.flatnonzero(there)[lengths != length]
    if len(ragged) or not length:
        odd = int(lengths[lengths != length][0]) if len(ragged) else 0
        refuse(
            f"{odd} numbers where {'those of training' if trained else 'other rows'} have {length}",
            "make them as they were made then" if trained else "give each row as many, or none",
            ragged if len(ragged) else np.flatnonzero(there),
        )
        return None
    flat = pc.list_flatten(values)
    row_of = np.repeat(np.flatnonzero(there), length)
    if is_string(flat.type):
        numbers, wrong = _parsed(flat, decimal)
        if numbers is None:
            shown = flat[int(wrong[0])].as_py()[:60]
            refuse(f"{shown!r} is no number", "write numbers only", np.unique(row_of[wrong]))
            return None
    elif pa.types.is_integer(flat.type) or pa.types.is_floating(flat.type):
        numbers = to_numpy(flat.cast(pa.float64(), safe=False)).astype(np.float64)
    else:
        refuse(f"its lists hold {flat.type}, not numbers", "make numbers of them")
        return None
    wild = ~(np.abs(numbers) <= np.finfo(np.float32).max)  # NaN too
    if wild.any():
        refuse(
            f"{numbers[wild][0]} within a vector is no finite number",
            "fill it; an empty cell stands for a missing vector",
            np.unique(row_of[wild]),
        )
        return None
    rows = np.full((len(there), length), np.nan, dtype=np.float32)
    rows[there] = numbers.reshape(-1, length)
    return rows


def split_vectors(text: Any, decimal: Decimal = ".") -> Any:
    """Cells of several numbers as lists of what stands between the marks; null where missing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    marks = r"[\[\](){};|\s]+" if decimal == "," else r"[\[\](){};,|\s]+"
    plain = pc.utf8_trim(pc.replace_substring_regex(text, marks, " "), " ")
    plain = pc.if_else(pc.is_in(plain, pa.array(NO_VALUE, plain.type)), None, plain)
    return pc.split_pattern(plain, " ")


def _word_counts(values: Any, width: int) -> Any:
    """How often each hashed word stands in each row: sparse [N, width]."""
    from sklearn.feature_extraction.text import HashingVectorizer

    hashing = HashingVectorizer(n_features=width, alternate_sign=False, norm=None)
    return hashing.transform(values.to_pylist())
