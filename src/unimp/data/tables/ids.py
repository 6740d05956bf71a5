"""Ids out of tables: which node each row is, and which two nodes each edge joins.

Ids are text or whole numbers. Where both tables have numbers they are compared as numbers; where
one has text, as text, so that 7 and "7" are one node and "007" is another. Spaces around an id do
not count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unimp.config.choices import UnknownIds
from unimp.data.tables.problems import SHOWN_ROWS, Problems
from unimp.data.tables.table import Table, is_string, to_numpy
from unimp.errors import nearest_names

_MOST_REVERSED = 200_000  # edges whose reverse is looked for
_MOST_COMPARED = 20_000  # ids among which a near one is looked for


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
        """Edges that stand there already, in the same direction."""
        key = np.sort(self.source * num_nodes + self.target)
        return int(np.count_nonzero(key[1:] == key[:-1]))

    def share_reversed(self, num_nodes: int) -> float:
        """The share of edges, self-loops aside, whose reverse is there too; of many, by some."""
        other = np.flatnonzero(self.source != self.target)
        if not len(other):
            return 0.0
        key = np.sort(self.source * num_nodes + self.target)
        some = other[:: -(-len(other) // _MOST_REVERSED)]
        back = self.target[some] * num_nodes + self.source[some]
        place = np.minimum(np.searchsorted(key, back), len(key) - 1)
        return float(np.mean(key[place] == back))


def read_ids(table: Table, column: str, problems: Problems, *, unique: bool) -> Any:
    """A column of ids as Arrow integers or text; None, and a note, where some cannot be ids."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column not in table.columns:
        return None
    values = table.get(column)
    kind = values.type
    if pa.types.is_floating(kind):
        # Whole numbers with a gap among them become floats on their way through pandas.
        values = pc.if_else(pc.is_nan(values), None, values)
        broken = not_whole(values)
        if len(broken):
            problems.note(
                table.name,
                f"{values[int(broken[0])].as_py()} is no id",
                "ids are text or whole numbers, the largest of them as text",
                column=column,
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
        problems.note(
            table.name, f"is of type {kind}", "ids are text or whole numbers", column=column
        )
        return None
    if values.null_count:
        problems.note(
            table.name,
            "the id is empty",
            "give each row one, or take the row out",
            column=column,
            rows=np.flatnonzero(to_numpy(values.is_null())),
        )
    if unique:
        first = positions(values, values)
        twice = np.flatnonzero((first != np.arange(len(values))) & (first >= 0))
        if len(twice):
            name = values[int(twice[0])].as_py()
            problems.note(
                table.name,
                f"{name!r} stands on row {int(first[twice[0]]) + 1} already"
                + (f" ({len(twice):,} such rows)" if len(twice) > 1 else ""),
                "keep one row a node",
                column=column,
                rows=twice,
            )
        if len(twice) or values.null_count:
            return None
    return values  # ends of edges: null where one is empty, which has been told


def not_whole(values: Any) -> NDArray[np.int64]:
    """Places of floats that stand for no whole number exactly; gaps and NaN are not among them."""
    numbers = to_numpy(values).astype(np.float64)  # NaN where null
    exact = (numbers == np.floor(numbers)) & (np.abs(numbers) <= 2.0**53)
    return np.flatnonzero(~exact & ~np.isnan(numbers))


def positions(values: Any, ids: Any) -> NDArray[np.int64]:
    """Where each value stands among the ids; −1 where it does not."""
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
    """Edges by the numbers of the nodes they join; an end that is no node is refused, or its edge
    is left out."""
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
        f"{len(both) - len(rows):,} of {len(both):,} edges name an id that is no node; left out",
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
    """Tell of ids that are no node, each once, with what may have been meant."""
    import pyarrow as pa

    names = [str(v) for v in values.take(pa.array(lost[:10_000])).unique().to_pylist()]
    shown = ", ".join(repr(name) for name in names[:SHOWN_ROWS])
    hint = ""
    if len(ids) <= _MOST_COMPARED:
        near = nearest_names(names[0], [str(name) for name in ids.to_pylist()])
        hint = f" ({near})" if near.startswith("did you mean") else ""
    if not hint:
        hint = f" (ids there are such as {str(ids[0].as_py())!r})"
    problems.note(
        table.name,
        f"{shown}{' …' if len(names) > SHOWN_ROWS else ''} {'is' if len(names) == 1 else 'are'} "
        f"not among the ids of {where}{hint}",
        f"add the nodes, mend the ids, or leave such rows out with {skip_words(where)}",
        column=column,
        rows=lost,
    )


def skip_words(where: str) -> str:
    """How to leave out what names an unknown id, as the reader would write it."""
    return (
        'unknown_ids = "skip" under [tables]'
        if where == "nodes"
        else ('--unknown-ids skip (in Python: unknown_ids="skip")')
    )
