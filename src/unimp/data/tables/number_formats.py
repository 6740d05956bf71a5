"""Recognize how numbers in text are written: decimal commas, thousands separators, vectors.

`1,5` may be one number with a decimal comma or two numbers; `1,003` may be a thousand and three.
Ambiguous columns are reported to the user instead of guessed.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from unimp.config.choices import Decimal
from unimp.data.tables.table import to_numpy
from unimp.data.tables.values import split_vectors

_COMMA = r"(?i)^[+-]?(\d+(,\d+)?|,\d+)(e[+-]?\d+)?$"
_THOUSANDS = r"^[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?$"
_THOUSANDS_BY_POINTS = r"^[+-]?[1-9]\d{0,2}(\.\d{3})+(,\d+)?$"
_POINT = r"^[+-]?\d+(\.\d+)?$"
_ONE = r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?"
_VECTOR = rf"(?i)^[\[({{\s]*{_ONE}([;,|\s]+{_ONE})+[\])}}\s]*$"
_ALIKE = 0.9  # the share of cells with the same length in a column of vectors


def has_decimal_commas(cells: Any) -> bool:
    """Return whether numbers have a comma, and at least one is not a thousands separator."""
    if not _all(cells, _COMMA):
        return False
    with_comma = _match(cells, ",")
    return bool((with_comma & ~_match(cells, _THOUSANDS)).any())


def kind_of_numbers(cells: Any, decimal: Decimal, delimiter: str) -> tuple[str, str] | None:
    """Return the kind of a column whose cells are all numbers with separators, and the reason.

    The kind is empty if it is ambiguous. The result is None if the cells are something else.
    """
    if decimal == "," and delimiter != ",":
        if _all(cells, _COMMA):
            return "numeric", "numbers with a decimal comma"
        if _all(cells, rf"{_COMMA}|{_THOUSANDS_BY_POINTS}"):
            return "", "points as thousands separators; remove them"
        if _are_vectors(cells, decimal):
            return "vector", "several numbers per cell"
        if _are_vectors(cells, "."):
            return "", "commas between numbers, but this table has decimal commas"
        return None
    if not _all(cells, _VECTOR) and not _match(cells, ",").any():
        return None
    how = "write points" if delimiter == "," else 'decimal = ","'
    if _all(cells, rf"{_THOUSANDS}|{_POINT}") and _match(cells, _THOUSANDS).any():
        also = "" if delimiter == "," else f"; for decimal commas: {how}"
        return "", f"probably commas as thousands separators; remove them{also}"
    if _all(cells, _COMMA):
        return "", f"either decimal commas ({how}) or two numbers per cell (kind vector)"
    if _all(cells, rf"{_COMMA}|{_THOUSANDS_BY_POINTS}"):
        return "", f"points as thousands separators; remove them ({how})"
    return ("vector", "several numbers per cell") if _are_vectors(cells, decimal) else None


def _are_vectors(cells: Any, decimal: Decimal) -> bool:
    import pyarrow.compute as pc

    if decimal == ",":
        if _match(cells, r"\.").any():
            return False
        cells = pc.replace_substring(cells, ",", ".")
    if not _all(cells, _VECTOR):
        return False
    lengths = Counter(to_numpy(pc.list_value_length(split_vectors(cells))).tolist())
    return lengths.most_common(1)[0][1] >= _ALIKE * len(cells)


def _match(cells: Any, pattern: str) -> Any:
    import pyarrow.compute as pc

    return np.asarray(to_numpy(pc.match_substring_regex(cells, pattern)), dtype=bool)


def _all(cells: Any, pattern: str) -> bool:
    return bool(_match(cells, pattern).all())
