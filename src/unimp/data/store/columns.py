"""The columns of nodes and edges, part by part: their statistics, features, labels and split."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unimp.data.store.parts import Part, PartProblems, read_chunks
from unimp.data.store.statistics import Statistics, statistics_of
from unimp.data.store.workspace import ArrayFile
from unimp.data.tables.encoding import Vector
from unimp.data.tables.labels import joined_names, names_in, read_more_labels
from unimp.data.tables.problems import Problems
from unimp.data.tables.splits import parts_of_column
from unimp.data.tables.table import Table
from unimp.data.tables.transforms import Layout, Transforms
from unimp.data.tables.values import read_values
from unimp.errors import TaskError
from unimp.tasks.known import SEVERAL_CLASSES, is_known

_CELLS_PER_CHUNK = 1 << 22  # numbers that are encoded at a time
_MOST_ROWS = 1 << 17
_MOST_NAMES = 1_000_000


def rows_per_chunk(width: int) -> int:
    """How many rows of a table are read at a time."""
    return max(256, min(_MOST_ROWS, _CELLS_PER_CHUNK // max(1, width)))


@dataclass(frozen=True)
class Fitted:
    """What one pass over all parts finds out: the transforms, and the names of the classes."""

    transforms: Transforms
    class_names: tuple[str, ...]


def fit_columns(
    layout: Layout, nodes: Sequence[Part], edges: Sequence[Part], on_part: Callable[[], None]
) -> Fitted:
    """Read the columns of features and labels once, and fit the transforms."""
    found: set[str] = set()

    def add_labels(table: Table, problems: Problems) -> None:
        names = names_in(table, layout, problems)
        if names is not None:
            found.update(names.to_pylist())
            if len(found) > _MOST_NAMES:
                raise TaskError(
                    f"column {layout.label}: there are more than {_MOST_NAMES:,} labels"
                )

    one_column = isinstance(layout.label, str)
    label = layout.label_columns[:1] if one_column else []
    of_nodes = _fit(layout, layout.features, nodes, label, add_labels, on_part)
    of_edges = _fit(layout, layout.edge_features, edges, [], None, on_part)
    encoders = [tuple(e for e in made if e.width) for made in (of_nodes, of_edges)]
    names = joined_names(found) if one_column else tuple(layout.label_columns)
    if one_column and len(names) < (1 if layout.label_separator else 2):
        raise TaskError(
            f"column {layout.label}: {'no label is known' if not names else 'only one class'}. "
            f"{SEVERAL_CLASSES}."
        )
    return Fitted(Transforms(layout, encoders[0], encoders[1], sparse=False), names)


def _fit(
    layout: Layout,
    kinds: Mapping[str, str],
    parts: Sequence[Part],
    others: Sequence[str],
    add: Callable[[Table, Problems], None] | None,
    on_part: Callable[[], None],
) -> list[Any]:
    gathered: list[Statistics] = [
        statistics_of(column, kind, layout.text_width) for column, kind in kinds.items()
    ]
    columns = [*kinds, *others]
    for part in parts if columns else ():
        problems = PartProblems()
        for table in read_chunks(part, columns, rows_per_chunk(len(columns)), problems):
            for statistics in gathered:
                statistics.add(table, problems, layout.decimal)
            if add is not None and others:
                add(table, problems)
        on_part()
    return [statistics.encoder() for statistics in gathered]


def values_in(
    table: Table, layout: Layout, encoders: Sequence[Any], problems: Problems
) -> dict[str, Any]:
    """The checked values of the columns of some encoders."""
    values = {}
    for encoder in encoders:
        length = encoder.length if isinstance(encoder, Vector) else None
        values[encoder.column] = read_values(
            table, encoder.column, encoder.kind, problems, decimal=layout.decimal, length=length
        )
    return values


@dataclass(frozen=True)
class NodeArrays:
    """The arrays of nodes, which are written part by part."""

    x: ArrayFile | None
    y: ArrayFile
    split: ArrayFile | None

    def sync(self) -> None:
        for array in (self.x, self.y, self.split):
            if array is not None:
                array.sync()


def write_nodes(
    part: Part,
    first: int,
    fitted: Fitted,
    arrays: NodeArrays,
    sets: NDArray[np.int8] | None,
) -> int:
    """Write the features, labels and sets of the nodes of a part; return how many are in train.

    first: the number of its first node. sets: of all nodes, if files of ids contain the split.
    """
    transforms, layout = fitted.transforms, fitted.transforms.layout
    columns = [e.column for e in transforms.nodes] + layout.label_columns
    columns += [layout.split] if layout.split else []
    width = sum(encoder.width for encoder in transforms.nodes)
    problems, in_train = PartProblems(), 0
    for table in read_chunks(part, columns, rows_per_chunk(width), problems):
        begin = first + problems.first_row
        values = values_in(table, layout, transforms.nodes, problems)
        labels = read_more_labels(table, layout, fitted.class_names, problems)
        own = None if sets is None else sets[begin : begin + table.num_rows]
        if layout.split:
            own = parts_of_column(table, layout.split, problems)
        problems.refuse()
        assert labels is not None
        if own is not None:
            in_train += _check_sets(table, layout, labels, own, problems)
        if arrays.x is not None:
            features = transforms.node_features(values)
            arrays.x.write(begin, as_precision(features, arrays.x.dtype, table, problems))
        arrays.y.write(begin, labels)
        if arrays.split is not None and own is not None:
            arrays.split.write(begin, own)
    return in_train


def _check_sets(
    table: Table,
    layout: Layout,
    labels: NDArray[Any],
    sets: NDArray[np.int8],
    problems: Problems,
) -> int:
    known = is_known(labels)
    for code, name in ((0, "train"), (1, "val")):
        blank = np.flatnonzero((sets == code) & ~known)
        if len(blank):
            what = f"the set is {name}, but the label is unknown"
            fix = "give the label, or remove the node from the set"
            problems.note(table.name, what, fix, column=layout.split or None, rows=blank)
    return int(np.count_nonzero((sets == 0) & known))


def as_precision(
    rows: NDArray[np.float32], dtype: np.dtype[Any], table: Table, problems: Problems
) -> NDArray[Any]:
    """Convert features to the stored type; a number that is too large for it is a problem."""
    with np.errstate(over="ignore"):
        stored = rows.astype(dtype, copy=False)
    if dtype != rows.dtype and not np.isfinite(stored).all():
        wild = np.flatnonzero(~np.isfinite(stored).all(1))
        largest = np.abs(rows[wild]).max()
        what = f"the feature {largest:g} is too large for 16-bit numbers"
        problems.note(table.name, what, "build the store with --precision f32", rows=wild)
    return stored


def edge_features(
    part: Part, fitted: Fitted, dtype: np.dtype[Any]
) -> Iterator[NDArray[np.float32]]:
    """Yield the features of the edges of a part, chunk after chunk: [rows, d].

    dtype: the type in which they are stored later; a number that is too large for it is refused.
    """
    transforms = fitted.transforms
    columns = [encoder.column for encoder in transforms.edges]
    problems = PartProblems()
    width = sum(encoder.width for encoder in transforms.edges)
    for table in read_chunks(part, columns, rows_per_chunk(width), problems):
        values = values_in(table, transforms.layout, transforms.edges, problems)
        problems.refuse()
        rows = np.asarray(transforms.edge_features(values), dtype=np.float32)
        as_precision(rows, dtype, table, problems)
        problems.refuse()
        yield rows
