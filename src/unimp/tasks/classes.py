"""Labels as people write them → class numbers: any whole numbers or texts, and what is unknown."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unimp.errors import TaskError, nearest_names
from unimp.tasks.labels import UNLABELED

Codes = NDArray[np.int64]
Classes = NDArray[Any]


def encode_classes(values: Any) -> tuple[Codes, Classes]:
    """Class numbers [n], UNLABELED where nothing is known, and the classes in order.

    Unknown are the number −1, NaN, None and the empty text; any other value is a class.
    """
    labels, known = _labels(values)
    classes, found = np.unique(labels[known], return_inverse=True)
    codes = np.full(len(labels), UNLABELED, dtype=np.int64)
    codes[known] = found
    return codes, classes


def codes_of(values: Any, classes: Classes) -> Codes:
    """Class numbers [n] where the classes are given; a value that is none of them is refused."""
    codes, found = encode_classes(values)
    place = {value: code for code, value in enumerate(classes.tolist())}
    for code, value in enumerate(found.tolist()):
        if value not in place:
            hint = nearest_names(str(value), [str(name) for name in place])
            row = int(np.flatnonzero(codes == code)[0])
            raise TaskError(f"label {value!r} in row {row} is no class of this task; {hint}")
    numbers = np.array([place[value] for value in found.tolist()], dtype=np.int64)
    known = codes != UNLABELED
    codes[known] = numbers[codes[known]]
    return codes


def as_labels(values: Any) -> NDArray[Any]:
    """Values as an array; numbers in a list of texts stay numbers, which numpy would make texts."""
    labels = np.asarray(values)
    if labels.dtype.kind not in "US" or isinstance(values, np.ndarray):
        return labels
    plain = np.array(values, dtype=object)
    return labels if all(isinstance(value, str | bytes) for value in plain.flat) else plain


def _refuse_texts_of_numbers(labels: NDArray[Any]) -> None:
    """Refuse an array of texts in which numpy made texts of what was unknown."""
    # It leaves that much room where it makes texts of numbers; who wrote the texts, hardly ever.
    if labels.dtype.kind != "U" or labels.dtype.itemsize < np.dtype("U21").itemsize:
        return
    row = next((row for row, text in enumerate(labels) if text in ("nan", "-1")), None)
    if row is not None:
        raise TaskError(
            f"row {row} holds the text {str(labels[row])!r}, which numpy makes of a number beside "
            "texts; where unknown, give None in an array of dtype=object, or in a list"
        )


def _labels(values: Any) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """One label a row, and which of them are known; refused where they cannot be classes."""
    labels = as_labels(values)
    if labels.ndim != 1:
        raise TaskError(f"labels have shape {labels.shape}; one a row is needed")
    kind = labels.dtype.kind
    if kind == "b":
        return labels, np.ones(len(labels), dtype=bool)
    if kind in "iu":
        return labels, labels != UNLABELED
    if kind == "f":
        known = ~np.isnan(labels) & (labels != UNLABELED)
        odd = labels[known][labels[known] != np.round(labels[known])]
        if len(odd) or not np.isfinite(labels[known]).all():
            first = odd[0] if len(odd) else np.inf
            raise TaskError(
                f"Unknown label type: continuous values such as {first}; classes are whole "
                "numbers or texts, and -1 or NaN where unknown"
            )
        return labels, known
    if kind in "US":
        if isinstance(values, np.ndarray):
            _refuse_texts_of_numbers(labels)
        return labels, labels != labels.dtype.type()
    if kind != "O":
        raise TaskError(f"Unknown label type: {labels.dtype}; classes are whole numbers or texts")
    known = np.array([not _is_missing(value) for value in labels], dtype=bool)
    kept = labels[known].tolist()
    if all(isinstance(value, str) for value in kept):
        return labels, known
    numbers = (bool, int, float, np.number, np.bool_)
    odd_one = next((v for v in kept if not isinstance(v, numbers)), None)
    if odd_one is not None:
        text = next((v for v in kept if isinstance(v, numbers)), None)
        beside = "" if text is None else f" beside the number {text!r}"
        raise TaskError(
            f"Unknown label type: {type(odd_one).__name__} ({odd_one!r}){beside}; classes are all "
            "whole numbers or all texts, with None where unknown"
        )
    plain = np.full(len(labels), np.nan)
    plain[known] = np.array(kept, dtype=np.float64)
    _, known = _labels(plain)
    whole = np.full(len(labels), UNLABELED, dtype=np.int64)
    whole[known] = plain[known].astype(np.int64)
    return whole, known


def _is_missing(value: Any) -> bool:
    if value is None or (isinstance(value, str) and value == ""):
        return True
    if type(value).__name__ in ("NAType", "NaTType"):  # pandas' own, not imported for this
        return True
    if isinstance(value, (float, np.floating)) and bool(np.isnan(value)):
        return True
    return isinstance(value, (int, float, np.number)) and value == UNLABELED
