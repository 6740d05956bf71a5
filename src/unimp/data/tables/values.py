"""Read the values of one column according to its kind, and check them."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from unimp.config.choices import ColumnKind, Decimal
from unimp.data.tables.ids import not_whole
from unimp.data.tables.problems import Problems
from unimp.data.tables.table import Table, is_string, to_numpy

KINDS: tuple[str, ...] = get_args(ColumnKind)

NO_VALUE = ("", "null", "NULL", "NaN", "nan", "None", "NA", "N/A", "n/a", "#N/A")
"""Cells that mean a missing value in a column of text."""
LARGEST_IN_VECTOR = 1e15
"""The largest number in a vector. Vectors are not standardized, and the square of a larger number
is near the largest float32."""
NUMBER = r"(?i)^[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf(inity)?|nan)$"


def read_values(
    table: Table,
    column: str,
    kind: str,
    problems: Problems,
    *,
    decimal: Decimal = ".",
    length: int | None = None,
) -> Any:
    """Return the checked values of a column; None if it is missing or invalid.

    `decimal` is the decimal separator of numbers in text; it is always a point in CSV files with
    commas between fields. `length` is the length of vectors in training, for rows that are added
    later.
    """
    if not table.has(column):
        return None
    if table.delimiter == ",":
        decimal = "."
    if kind == "numeric":
        return _numbers(table, column, problems, decimal)
    if kind == "vector":
        return _vectors(table, column, problems, decimal, length)
    text = words(table, column, problems, empty_is_missing=kind == "categorical")
    return without_point(text) if kind == "categorical" and text is not None else text


def without_point(text: Any) -> Any:
    """Write whole numbers without a decimal point: 1.0 and 1. become 1.

    Programs that store integers with missing values as floats write 1.0, so both are one category,
    class or group, in one file and in later files. 01 and 1 differ, as in postal codes, and so do
    1.50 and 1.5, as in version numbers.
    """
    import pyarrow.compute as pc

    text = pc.replace_substring_regex(text, r"^([+-]?\d+)\.0*$", r"\1")
    return pc.if_else(pc.equal(text, "-0"), "0", text)


def words(table: Table, column: str, problems: Problems, *, empty_is_missing: bool = True) -> Any:
    """Return a column as text: integers without a point, booleans as true and false."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = table.get(column)
    kind = values.type
    if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        what = f"the column has type {kind} instead of text"
        fix = 'use another column, or the kind "vector" for lists of numbers'
        problems.note(table.name, what, fix, column=column)
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
    """Return numbers; a missing one is NaN."""
    import pyarrow as pa

    values = table.get(column)
    kind = values.type
    if is_string(kind):
        return _numbers_of_text(table, column, values, problems, decimal)
    if pa.types.is_null(kind):
        return np.full(len(values), np.nan)
    plain = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean)
    if not any(check(kind) for check in plain):
        what = f"the column has type {kind}, which is not numeric"
        fix = "declare another kind for it, or convert it to numbers"
        problems.note(table.name, what, fix, column=column)
        return None
    if pa.types.is_boolean(kind):
        values = values.cast(pa.uint8())
    numbers = to_numpy(values.cast(pa.float64(), safe=False)).astype(np.float64)
    return _finite(table, column, numbers, problems)


def _finite(
    table: Table, column: str, numbers: NDArray[np.float64], problems: Problems
) -> NDArray[np.float64] | None:
    # Larger numbers would become infinite in 32 bits.
    wild = np.flatnonzero(np.abs(numbers) > np.finfo(np.float32).max)
    if len(wild):
        what = f"{numbers[wild[0]]} is not a finite number"
        problems.note(table.name, what, "correct or clear the cell", column=column, rows=wild)
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
        what, fix = f"{shown!r} is not a number", _fix_for_number(shown, table, decimal)
        problems.note(table.name, what, fix, column=column, rows=wrong)
        return None
    return _finite(table, column, numbers, problems)


def _fix_for_number(shown: str, table: Table, decimal: Decimal) -> str:
    if decimal == "," and "." in shown:
        return 'write numbers with a decimal comma, as decimal = "," in [tables] states'
    if "," in shown and shown.replace(",", "").replace(".", "").isdecimal():
        point = "write a decimal point"
        comma = 'for decimal commas, set decimal = "," in [tables]'
        return f"{point if table.delimiter == ',' else comma}; remove thousands separators"
    return "correct or clear the cell, or declare the column as categorical or text"


def _parsed(text: Any, decimal: Decimal) -> tuple[NDArray[np.float64] | None, NDArray[np.int64]]:
    """Parse text as numbers, null as NaN; on failure return None and the places of other text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if decimal == ",":  # a point becomes invalid
        text = pc.replace_substring(pc.replace_substring(text, ".", "·"), ",", ".")
    try:
        return to_numpy(text.cast(pa.float64())).astype(np.float64), np.empty(0, np.int64)
    except pa.ArrowInvalid:
        # Slower than parsing, so only after it failed.
        right = pc.match_substring_regex(text, NUMBER)
        return None, np.flatnonzero(~to_numpy(pc.fill_null(right, True)))


def _vectors(
    table: Table, column: str, problems: Problems, decimal: Decimal, trained: int | None
) -> NDArray[np.float32] | None:
    """Return rows of equal length; a missing one is a row of NaN."""
    import pyarrow as pa
    import pyarrow.compute as pc

    refuse = partial(problems.note, table.name, column=column)
    values = table.get(column)
    if is_string(values.type):
        values = split_vectors(values, decimal)
    if trained is not None and values.null_count == len(values):
        return np.full((len(values), trained), np.nan, dtype=np.float32)
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if not any(check(values.type) for check in lists):
        refuse(
            f"the column has type {values.type} instead of lists of numbers",
            "declare a column with one number per cell as numeric",
        )
        return None
    there = ~to_numpy(values.is_null())
    lengths = to_numpy(pc.fill_null(pc.list_value_length(values), 0))[there]
    if not len(lengths):
        refuse("the column contains no vector", "remove it from the features")
        return None
    length = trained or Counter(lengths.tolist()).most_common(1)[0][0]
    ragged = np.flatnonzero(there)[lengths != length]
    if len(ragged) or not length:
        odd = int(lengths[lengths != length][0]) if len(ragged) else 0
        refuse(
            f"{odd} numbers, but {'those in training' if trained else 'other rows'} have {length}",
            f"give {length} numbers" if trained else "give all rows the same length, or none",
            rows=ragged if len(ragged) else np.flatnonzero(there),
        )
        return None
    flat = pc.list_flatten(values)
    row_of = np.repeat(np.flatnonzero(there), length)
    if is_string(flat.type):
        numbers, wrong = _parsed(flat, decimal)
        if numbers is None:
            shown, odd_rows = flat[int(wrong[0])].as_py()[:60], np.unique(row_of[wrong])
            refuse(f"{shown!r} is not a number", "correct the cell", rows=odd_rows)
            return None
    elif pa.types.is_integer(flat.type) or pa.types.is_floating(flat.type):
        numbers = to_numpy(flat.cast(pa.float64(), safe=False)).astype(np.float64)
    else:
        refuse(f"the lists contain {flat.type}, not numbers", "convert them to numbers")
        return None
    wild = ~(np.abs(numbers) <= LARGEST_IN_VECTOR)  # NaN too
    if wild.any():
        finite = np.isfinite(numbers[wild][0])
        refuse(
            f"a vector contains {numbers[wild][0]}, which is "
            + ("too large for 32-bit numbers" if finite else "not a finite number"),
            "replace it, or clear the cell if the whole vector is missing",
            rows=np.unique(row_of[wild]),
        )
        return None
    rows = np.full((len(there), length), np.nan, dtype=np.float32)
    rows[there] = numbers.reshape(-1, length)
    return rows


def split_vectors(text: Any, decimal: Decimal = ".") -> Any:
    """Split cells with several numbers into lists of text; null if the cell is empty."""
    import pyarrow as pa
    import pyarrow.compute as pc

    marks = r"[\[\](){};|\s]+" if decimal == "," else r"[\[\](){};,|\s]+"
    plain = pc.utf8_trim(pc.replace_substring_regex(text, marks, " "), " ")
    plain = pc.if_else(pc.is_in(plain, pa.array(NO_VALUE, plain.type)), None, plain)
    return pc.split_pattern(plain, " ")
