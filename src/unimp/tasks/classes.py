"""Convert labels as users write them, integers or strings, into class numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unimp.errors import TaskError, nearest_names
from unimp.tasks.known import UNLABELED

Codes = NDArray[np.int64]
Classes = NDArray[Any]

_EXACT = np.float64(2**53)  # below it, a float64 represents each integer exactly


def encode_classes(values: Any) -> tuple[Codes, Classes]:
    """Return class numbers [n], UNLABELED if unknown, and the sorted classes.

    The number −1, NaN, None and the empty string mean unknown; any other value is a class.
    """
    labels, known = _labels(values)
    classes, found = np.unique(labels[known], return_inverse=True)
    codes = np.full(len(labels), UNLABELED, dtype=np.int64)
    codes[known] = found
    return codes, classes


def codes_of(values: Any, classes: Classes) -> Codes:
    """Return class numbers [n] for given classes; refuse a value that is not one of them."""
    codes, found = encode_classes(values)
    if found.dtype.kind == "b" and classes.dtype.kind != "b":
        raise TaskError(
            "labels are True and False, but the classes are not; give labels that are classes."
        )
    place = {value: code for code, value in enumerate(classes.tolist())}
    for code, value in enumerate(found.tolist()):
        if value not in place:
            hint = nearest_names(str(value), [str(name) for name in place])
            row = int(np.flatnonzero(codes == code)[0])
            raise TaskError(f"the label {value!r} in row {row} is not a class of this task; {hint}")
    numbers = np.array([place[value] for value in found.tolist()], dtype=np.int64)
    known = codes != UNLABELED
    codes[known] = numbers[codes[known]]
    return codes


def as_labels(values: Any) -> NDArray[Any]:
    """Return values as an array, with numbers in a mixed list and each NUL in a text kept."""
    labels = np.asarray(values)
    if labels.dtype.kind not in "US" or isinstance(values, np.ndarray):
        return labels
    plain = np.array(values, dtype=object)
    texts = all(isinstance(value, str | bytes) for value in plain.flat)
    # An array of strings loses a NUL at the end of a string.
    lost = texts and any(value[-1:] in ("\0", b"\0") for value in plain.flat)
    return labels if texts and not lost else plain


def _refuse_texts_of_numbers(labels: NDArray[Any]) -> None:
    """Refuse an array of strings in which numpy converted unknown numbers to strings."""
    # numpy uses at least this width when it converts numbers to strings.
    if labels.dtype.kind != "U" or labels.dtype.itemsize < np.dtype("U21").itemsize:
        return
    row = next((row for row, text in enumerate(labels) if text in ("nan", "-1")), None)
    if row is not None:
        raise TaskError(
            f"row {row} contains the string {str(labels[row])!r}, probably a number that numpy "
            "converted. Use None for unknown labels, in a list or an array of dtype=object."
        )


def _labels(values: Any) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return one label per row, and which of them are known; refuse values that are not classes."""
    labels = as_labels(values)
    if labels.ndim != 1:
        raise TaskError(f"labels have shape {labels.shape}; give one label per row.")
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
                f"Unknown label type: continuous values such as {first}. Classes must be integers "
                "or strings, with -1 or NaN for unknown."
            )
        if len(large := labels[known][np.abs(labels[known]) >= _EXACT]):
            raise TaskError(
                f"the label {large[0]:.0f} is a decimal number so large that different integers "
                "become equal. Give integers with -1 or None for unknown, or strings."
            )
        return labels, known
    if kind in "US":
        if isinstance(values, np.ndarray):
            _refuse_texts_of_numbers(labels)
        return labels, labels != labels.dtype.type()
    if kind != "O":
        raise TaskError(f"Unknown label type: {labels.dtype}. Use integers or strings.")
    known = np.array([not _is_missing(value) for value in labels], dtype=bool)
    kept = labels[known].tolist()
    if all(isinstance(value, str) for value in kept):
        return labels, known
    whole = (int, np.integer, np.bool_)
    numbers = (*whole, float, np.floating)
    odd_one = next((v for v in kept if not isinstance(v, numbers)), None)
    if odd_one is not None:
        text = next((v for v in kept if isinstance(v, numbers)), None)
        beside = "" if text is None else f", together with the number {text!r}"
        raise TaskError(
            f"Unknown label type: {type(odd_one).__name__} ({odd_one!r}){beside}. Use only "
            "integers or only strings, with None for unknown."
        )
    codes = np.full(len(labels), UNLABELED, dtype=np.int64)
    try:
        if not all(isinstance(value, whole) for value in kept):
            kept = _labels([float(value) for value in kept])[0].tolist()
        codes[known] = np.array([int(value) for value in kept], dtype=np.int64)
    except OverflowError:
        row = next(row for row in np.flatnonzero(known) if abs(labels[row]) >= 2**63)
        raise TaskError(
            f"the label in row {row} does not fit into 64 bits. Give smaller integers, or strings."
        ) from None
    return codes, known


def _is_missing(value: Any) -> bool:
    if value is None or (isinstance(value, str) and value == ""):
        return True
    if type(value).__name__ in ("NAType", "NaTType"):  # of pandas, which is not imported for this
        return True
    if isinstance(value, (float, np.floating)) and bool(np.isnan(value)):
        return True
    return isinstance(value, (int, float, np.number)) and value == UNLABELED
