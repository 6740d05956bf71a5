"""Find columns that contain the answer: copies and codes of the label, one-hots, predictions.

A model that receives such a column scores nearly perfectly and fails on new nodes, in which the
column is empty or only a guess.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import lgamma, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unimp.data.tables.table import to_numpy
from unimp.tasks.known import UNLABELED

_PREDICTIONS = ("prediction", "confidence", "observed", "known_neighbors")
_CHANCE = 1e-6  # the accepted chance that a column of a table fits the label by accident
_ROWS_PER_VALUE = 5  # the least average; an id has one row per value
_LOOKED_AT = 50_000  # the number of known labels that are compared


def leaking_columns(
    values: Mapping[str, Any], labels: NDArray[Any], names: Sequence[str]
) -> dict[str, str]:
    """Return the columns that determine the label, and how.

    A column determines the label if, among the known labels, each of its values belongs to one
    class, or one of its values occurs in all rows of one class and in no other row. There must be
    few values, and enough known labels that this is not an accident: if the labels were
    shuffled, the chance that any column of the table fits as well would be below 1 in a million.
    Unique ids and measurements therefore do not count, however well they predict. Columns of our
    own prediction files are found by name.

    values: the columns as `read_values` returns them. labels: [N] classes, or [N, T] of 0 and 1.
    names: the names of the classes or binary tasks.
    """
    found: dict[str, str] = {}
    if values.keys() >= set(_PREDICTIONS[:2]):
        found = {c: "it is a column of predictions" for c in _PREDICTIONS if c in values}
    chances = [f"p_{name}" for name in names if f"p_{name}" in values]
    if len(chances) > 1:
        found |= dict.fromkeys(chances, "it is the predicted probability of a class")
    several = labels.ndim == 2
    rows = np.flatnonzero((labels != UNLABELED).any(1) if several else labels != UNLABELED)
    rows = rows[:: max(1, -(-len(rows) // _LOOKED_AT))]
    tasks = (labels[rows] if several else labels[rows, None]).astype(np.int64)
    accident = log(_CHANCE / max(1, len(values) * tasks.shape[1]))
    for column, given in values.items():
        if given is None or column in found:
            continue
        codes = _codes(given, rows)
        for task in _determined(codes, tasks) if several else (0,):
            known = tasks[:, task] != UNLABELED
            classes = [f"not {names[task]}", names[task]] if several else names
            if why := _how(codes[known], tasks[known, task], classes, accident):
                found[column] = why
                break
    return {column: found[column] for column in values if column in found}


def _codes(values: Any, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return one code per row, equal for equal values; −1 if the value is missing."""
    import pyarrow as pa

    if not isinstance(values, np.ndarray):
        some = values.take(pa.array(rows)).dictionary_encode().indices
        return to_numpy(some.fill_null(-1)).astype(np.int64)
    some = values[rows]
    if some.ndim == 2:  # different vectors have different random sums
        some = some.astype(np.float64) @ np.random.default_rng(0).random(some.shape[1])
    distinct, codes = np.unique(some, return_inverse=True)
    missing = len(distinct) and np.isnan(distinct[-1])
    return np.where(codes == len(distinct) - 1, -1, codes) if missing else codes


def _determined(codes: NDArray[np.int64], tasks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the binary tasks in which no value of the column has both 0 and 1."""
    from scipy import sparse

    place = (codes + 1, np.arange(len(codes)))
    counting = sparse.csr_array((np.ones(len(codes), dtype=np.float32), place))
    both = ((counting @ (tasks == 1)) > 0) & ((counting @ (tasks == 0)) > 0)
    return np.flatnonzero(~both[1:].any(0))


def _how(
    codes: NDArray[np.int64], label: NDArray[np.int64], classes: Sequence[str], accident: float
) -> str:
    """Return how the codes of a column determine the label; empty if they do not.

    accident: the logarithm of the chance above which a relation may be an accident.
    """
    empty = codes < 0
    few = (codes.max(initial=-1) + 1) * _ROWS_PER_VALUE <= len(codes) - np.count_nonzero(empty)
    if few:
        pairs = _pairs(codes, label, len(classes))
        value, of_class, count = (part[pairs[0] >= 0] for part in pairs)
        distinct = len(np.unique(value))
        if 0 < distinct == len(value):  # each value has one class
            counts = np.bincount(of_class, weights=count)
            counts = counts[counts > 0]
            orders = lgamma(counts.sum() + 1) - sum(lgamma(c + 1) for c in counts)
            if distinct * log(len(counts)) - orders < accident:
                like = "a copy or a code of it" if distinct == len(counts) else "a code"
                return f"its {distinct:,} different values determine the label, like {like}"
        if (marked := _marked(*pairs, accident)) is not None:
            return f"one of its values marks all nodes of the class {classes[marked]} and no others"
    if empty.any():
        marked = _marked(*_pairs(empty.astype(np.int64), label, len(classes)), accident)
        if marked is not None:
            return f"its empty cells separate the class {classes[marked]} from all others"
    return ""


def _marked(
    value: NDArray[np.int64], of_class: NDArray[np.int64], count: NDArray[np.int64], accident: float
) -> int | None:
    """Return a class that has one value in all of its rows, which no other row has."""
    alone = (np.bincount(value + 1)[value + 1] == 1) & (np.bincount(of_class)[of_class] == 1)
    total = int(count.sum())
    for place in np.flatnonzero(alone):
        chosen = int(count[place])
        orders = lgamma(total + 1) - lgamma(chosen + 1) - lgamma(total - chosen + 1)
        if log(len(value)) - orders < accident:
            return int(of_class[place])
    return None


def _pairs(
    codes: NDArray[np.int64], label: NDArray[np.int64], num_classes: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the values and classes that occur together, and how often each pair does."""
    pair, count = np.unique(codes * num_classes + label, return_counts=True)
    return *np.divmod(pair, num_classes), count
