"""Ids in tables: the node of each row, and the two nodes of each edge.

Ids are text or integers. If both tables contain integers, they are compared as integers; if one
contains text, they are compared as text, so that 7 and "7" are the same node and "007" is another.
Spaces around an id are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unimp.config.choices import UnknownIds
from unimp.data.tables.problems import SHOWN_ROWS, Problems
from unimp.data.tables.table import Table, is_string, to_numpy
from unimp.errors import nearest_names

_MOST_REVERSED = 200_000  # the number of edges whose reverse is searched
_MOST_COMPARED = 20_000  # the number of ids among which similar ones are searched


@dataclass(frozen=True)
class Edges:
    """Edges between numbered nodes, in the order of their rows."""

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    rows: NDArray[np.int64] | None = None  # rows of the table; None: all of them

    @property
    def num_self_loops(self) -> int:
        return int(np.count_nonzero(self.source == self.target))

    def num_duplicates(self, num_nodes: int) -> int:
        """Return the number of edges that repeat an earlier one in the same direction."""
        key = np.sort(self.source * num_nodes + self.target)
        return int(np.count_nonzero(key[1:] == key[:-1]))

    def share_reversed(self, num_nodes: int) -> float:
        """Return the share of edges with a reverse, without self-loops; estimated on a sample."""
        other = np.flatnonzero(self.source != self.target)
        if not len(other):
            return 0.0
        key = np.sort(self.source * num_nodes + self.target)
        some = other[:: -(-len(other) // _MOST_REVERSED)]
        back = self.target[some] * num_nodes + self.source[some]
        place = np.minimum(np.searchsorted(key, back), len(key) - 1)
        return float(np.mean(key[place] == back))


def read_ids(table: Table, column: str, problems: Problems, *, unique: bool) -> Any:
    """Return a column of ids as Arrow integers or text; None, with a problem, if it is invalid."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not table.has(column):
        return None
    note = partial(problems.note, table.name, column=column)
    values = table.get(column)
    kind = values.type
    if pa.types.is_floating(kind):
        # pandas turns integers with missing values into floats.
        values = pc.if_else(pc.is_nan(values), None, values)
        broken = not_whole(values)
        if len(broken):
            note(
                f"{values[int(broken[0])].as_py()} is not an id",
                "write ids as text or integers, and integers above 2^53 as text",
                rows=broken,
            )
            return None
        values = values.cast(pa.int64())
    elif pa.types.is_integer(kind):
        values = values.cast(pa.large_string() if pa.types.is_uint64(kind) else pa.int64())
    elif is_string(kind):
        values = pc.utf8_trim_whitespace(values)
        values = pc.if_else(pc.equal(values, ""), None, values)
    else:
        note(f"the column has type {kind}", "ids must be text or integers")
        return None
    if values.null_count:
        empty = np.flatnonzero(to_numpy(values.is_null()))
        note("the id is empty", "give the row an id, or remove the row", rows=empty)
    if unique:
        first = positions(values, values)
        twice = np.flatnonzero((first != np.arange(len(values))) & (first >= 0))
        if len(twice):
            name = values[int(twice[0])].as_py()
            note(
                f"the id {name!r} is also in row {int(first[twice[0]]) + 1}"
                + (f" ({len(twice):,} such rows)" if len(twice) > 1 else ""),
                "keep one row per node",
                rows=twice,
            )
        if len(twice) or values.null_count:
            return None
    return values  # in edges an empty id is null and has been reported


def not_whole(values: Any) -> NDArray[np.int64]:
    """Return the places of floats that are not exact integers; missing values do not count."""
    numbers = to_numpy(values).astype(np.float64)  # null becomes NaN
    exact = (numbers == np.floor(numbers)) & (np.abs(numbers) <= 2.0**53)
    return np.flatnonzero(~exact & ~np.isnan(numbers))


def positions(values: Any, ids: Any) -> NDArray[np.int64]:
    """Return the index of each value in `ids`; −1 if it is not there."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if values.type != ids.type:
        values, ids = values.cast(pa.large_string()), ids.cast(pa.large_string())
    found = pc.index_in(values, value_set=ids, skip_nulls=True)
    return to_numpy(pc.fill_null(found, -1)).astype(np.int64)


def read_edges(
    table: Table,
    source: str,
    target: str,
    ids: Any,
    problems: Problems,
    *,
    unknown_ids: UnknownIds,
    where: str = "nodes",
) -> Edges | None:
    """Return edges between node numbers.

    Edges with an unknown id are a problem, or are skipped with a warning. `where` names in messages
    the source of the known ids.
    """
    ends: list[NDArray[np.int64]] = []
    for column in (source, target):
        values = read_ids(table, column, problems, unique=False)
        if values is None or ids is None:
            continue
        place = positions(values, ids)
        empty = to_numpy(values.is_null())
        lost = np.flatnonzero((place < 0) & ~empty)
        if len(lost) and unknown_ids == "refuse":
            note_unknown(table, column, values, lost, ids, problems, where)
        ends.append(place)
    if len(ends) < 2:
        return None
    both = (ends[0] >= 0) & (ends[1] >= 0)
    if both.all():
        return Edges(ends[0], ends[1])
    if unknown_ids == "refuse":
        return None
    rows = np.flatnonzero(both)
    problems.warn(
        table.name,
        f"skipped {len(both) - len(rows):,} of {len(both):,} edges, whose ids are not nodes",
    )
    return Edges(ends[0][rows], ends[1][rows], rows)


def note_unknown(
    table: Table,
    column: str,
    values: Any,
    lost: NDArray[np.int64],
    ids: Any,
    problems: Problems,
    where: str,
) -> None:
    """Add a problem that lists unknown ids, with the most similar known one."""
    import pyarrow as pa

    names = [str(v) for v in values.take(pa.array(lost[:10_000])).unique().to_pylist()]
    shown = ", ".join(repr(name) for name in names[:SHOWN_ROWS])
    hint = ""
    if len(ids) <= _MOST_COMPARED:
        near = nearest_names(names[0], [str(name) for name in ids.to_pylist()])
        hint = f" ({near})" if near.startswith("did you mean") else ""
    if not hint:
        hint = f" (an id there is {str(ids[0].as_py())!r})"
    option = '--unknown-ids skip (in Python: unknown_ids="skip")'
    if where == "nodes":
        option = 'unknown_ids = "skip" under [tables]'
    problems.note(
        table.name,
        f"{shown}{' …' if len(names) > SHOWN_ROWS else ''} {'is' if len(names) == 1 else 'are'} "
        f"not among the ids of {where}{hint}",
        f"add the nodes, correct the ids, or skip such rows with {option}",
        column=column,
        rows=lost,
    )
