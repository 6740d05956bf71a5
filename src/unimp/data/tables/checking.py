"""Read a table of nodes and a table of edges, and check them completely.

read_rows     reads and checks both tables and reports every problem at once
Rows.task     builds the task: fits transforms, draws the split

Up to the task, nothing here imports torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unimp.config.choices import Metric
from unimp.data.tables.ids import Edges, read_edges, read_ids
from unimp.data.tables.labels import read_groups, read_labels
from unimp.data.tables.near import (
    Places,
    choose_neighbors,
    count_limit,
    edges_to,
    nearest,
    read_near,
    refuse_near_and_edges,
)
from unimp.data.tables.problems import Problems
from unimp.data.tables.reading import open_table
from unimp.data.tables.splits import read_parts
from unimp.data.tables.table import Table
from unimp.data.tables.transforms import Layout
from unimp.data.tables.values import KINDS, read_values
from unimp.errors import TaskError, nearest_names
from unimp.tasks.known import is_known
from unimp.tasks.splitting import Sets, split_classes, split_groups, split_of

if TYPE_CHECKING:
    from unimp.tasks.task import Task


@dataclass(frozen=True)
class Nearest:
    """The nearest neighbors of each node, of which the edges use the first `layout.neighbors`."""

    places: Places
    neighbors: NDArray[np.int64]  # [N, k], nearest first
    positions: NDArray[np.float64] | None  # longitude and latitude
    chosen: bool = False  # the number of neighbors is chosen and `Rows.edges` are those
    scores: Mapping[int, float] = field(default_factory=dict)  # of each number of neighbors


@dataclass(frozen=True)
class Rows:
    """Two tables, read and checked: everything that a task is built from."""

    layout: Layout
    ids: Any
    labels: NDArray[Any]
    class_names: tuple[str, ...]
    groups: NDArray[np.int64] | None
    parts: NDArray[np.int8] | None
    edges: Edges
    node_values: Mapping[str, Any]
    edge_values: Mapping[str, Any]
    warnings: list[str]
    nearest: Nearest | None = None  # if edges come from nearest neighbors

    @property
    def known(self) -> NDArray[np.bool_]:
        return is_known(self.labels)

    def split(self, number: int) -> Sets:
        """Return the split in the tables, or the split of this number drawn by shares."""
        if self.parts is not None:
            nodes = np.flatnonzero(self.parts >= 0)
            return split_of(nodes, self.parts[nodes])
        shares = {"train_share": self.layout.train_share, "val_share": self.layout.val_share}
        if self.groups is not None:
            return split_groups(self.groups, self.known, seed=number, **shares)
        return split_classes(self.labels, seed=number, **shares)

    def with_edges(self, split: int) -> Rows:
        """Return these rows with the edges to nearest neighbors, if no table of edges was given.

        The number of neighbors may depend on the split of this number.
        """
        if self.nearest is None or self.nearest.chosen:
            return self
        count = self.layout.neighbors
        scores: dict[int, float] = {}
        if count == "auto":
            count, scores = choose_neighbors(
                self.nearest.neighbors,
                self.labels,
                len(self.class_names),
                self.split(split),
                directed=self.layout.directed,
            )
        edges = Edges(*edges_to(self.nearest.neighbors[:, :count]))
        layout = replace(self.layout, neighbors=count)
        chosen = replace(self.nearest, chosen=True, scores=scores)
        return replace(self, layout=layout, edges=edges, nearest=chosen)

    def metric(self, asked: Metric | None) -> Metric:
        """Return the requested metric if it fits the labels; without a request, the usual one."""
        if asked == "rocauc" and self.labels.ndim == 1 and len(self.class_names) != 2:
            raise TaskError(
                f"the metric rocauc needs two classes or binary tasks, but the column "
                f"{self.layout.label} of nodes has {len(self.class_names)} classes. Use accuracy."
            )
        return asked or ("rocauc" if self.labels.ndim == 2 else "accuracy")

    def task(self, name: str, *, split: int = 0, metric: Metric | None = None) -> Task:
        """Return the task; transforms are fitted on all rows."""
        from unimp.data.tables.tensors import task_of_rows  # loads torch, which checking avoids

        return task_of_rows(self.with_edges(split), name, split=split, metric=metric)


def read_rows(nodes: Any, edges: Any, layout: Layout) -> Rows:
    """Read and check both tables; a TaskError lists every problem of both.

    edges: None if `layout.near` names the columns of nearest neighbors.
    """
    refuse_near_and_edges(layout.near, edges)
    problems = Problems()
    _check_layout(layout, problems)
    labels_of = [column for column in layout.label_columns if column]
    named = {
        "id": [layout.id] if layout.id else [],
        "label": labels_of,
        "features": list(layout.features),
        "split": [c for c in (layout.split, layout.group) if c],
        "near": list(layout.near),
    }
    wanted = [column for columns in named.values() for column in columns]
    words_of = layout.columns_in_words(layout.features)
    as_text = [layout.id, *labels_of, *words_of, layout.split, layout.group]
    node_table = open_table(nodes, "nodes", problems, wanted=wanted, as_text=as_text)
    edge_columns = [layout.source, layout.target, *layout.edge_features]
    edge_words = layout.columns_in_words(layout.edge_features)
    edge_table = None
    if edges is not None:
        edge_table = open_table(
            edges,
            "edges",
            problems,
            wanted=edge_columns,
            as_text=[layout.source, layout.target, *edge_words],
        )
    ids = labels = groups = parts = None
    if node_table is not None:
        ids = read_node_ids(node_table, layout, problems)
        labels = read_labels(node_table, layout, problems) if labels_of else None
        groups = read_groups(node_table, layout, problems)
        known = None if labels is None else is_known(labels[0])
        parts = read_parts(node_table, layout, ids, known, problems)
    joined = None
    if edge_table is not None:
        ends = (layout.source, layout.target)
        joined = read_edges(edge_table, *ends, ids, problems, unknown_ids=layout.unknown_ids)
    node_values = values_of(node_table, layout, layout.features, problems)
    edge_values = values_of(edge_table, layout, layout.edge_features, problems)
    if labels is not None and parts is None and not problems.found:
        assert node_table is not None
        _check_shares(node_table.name, layout, labels[0], groups, problems)
    found = None
    if layout.near and node_table is not None:
        found = _read_nearest(node_table, layout, problems)
        joined = Edges(*(np.empty(0, dtype=np.int64) for _ in range(2)))  # see `Rows.with_edges`
    problems.refuse()
    assert labels is not None
    assert joined is not None
    if joined.rows is not None:
        edge_values = {c: taken(values, joined.rows) for c, values in edge_values.items()}
    return Rows(
        layout,
        ids,
        labels[0],
        labels[1],
        groups,
        parts,
        joined,
        node_values,
        edge_values,
        problems.warnings,
        found,
    )


def read_node_ids(table: Table, layout: Layout, problems: Problems, *, before: int = 0) -> Any:
    """Return the ids of nodes: a column, or the row numbers after those of `before` rows."""
    import pyarrow as pa

    if layout.id:
        return read_ids(table, layout.id, problems, unique=True)
    return pa.array(np.arange(before + 1, before + table.num_rows + 1), pa.int64())


def _read_nearest(table: Table, layout: Layout, problems: Problems) -> Nearest | None:
    values = read_near(table, layout, problems)
    if values is None:
        return None
    places, points = Places.fitted(values)
    count = count_limit(table.name, points, layout.neighbors, problems)
    if not count:
        return None
    return Nearest(places, nearest(points, count), places.on_map(values))


def are_whole(ids: Any) -> bool:
    """Return whether all ids are integers, or text that is exactly one integer."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_integer(ids.type):
        return True
    return bool(pc.all(pc.match_substring_regex(ids, r"^(0|-?[1-9]\d{0,17})$")).as_py())


def _check_layout(layout: Layout, problems: Problems) -> None:
    note = partial(problems.note, "[tables]")
    if not layout.label or not all(layout.label_columns):
        fix = 'write label = "COLUMN", the column to predict; empty cells are unknown'
        note("the label column is missing", fix)
    for column, count in Counter(layout.label_columns).items():
        if count > 1:
            note("label lists the column twice", "list each column once", column=column)
    for option, kinds in (("features", layout.features), ("edge_features", layout.edge_features)):
        for column, kind in kinds.items():
            allowed = [k for k in KINDS if option == "features" or k != "text"]
            if kind not in allowed:
                near = nearest_names(str(kind), allowed)
                note(f"{option} has the unknown kind {kind!r}", near, column=column)
    uses = (("features", "a feature", layout.features), ("near", "a position", layout.near))
    for option, what, columns in uses:
        for column in columns:
            if column in layout.label_columns:
                problem = f"the column is both the label and {what}"
                note(problem, f"remove it from {option}", column=column)
    for column, count in Counter(layout.near).items():
        if count > 1:
            note("near lists the column twice", "list each column once", column=column)
    if layout.near and layout.edge_features:
        problem = "edges to nearest neighbors have no features, but edge_features are given"
        note(problem, "remove edge_features")
    if not layout.id and not layout.near:
        note("id is empty", "name the column of nodes that contains the ids in edges")
    if layout.train_share + layout.val_share > 1 or layout.train_share <= 0:
        note(
            f"train_share is {layout.train_share:g} and val_share is {layout.val_share:g}",
            "their sum must be at most 1; the rest is the test set",
        )
    if layout.source == layout.target:
        note(f"source and target are both {layout.source!r}", "name two columns")


def _check_shares(
    name: str,
    layout: Layout,
    labels: NDArray[Any],
    groups: NDArray[np.int64] | None,
    problems: Problems,
) -> None:
    known = is_known(labels)
    count = np.count_nonzero(known)
    column = layout.label_columns[0]
    if count < 3:
        fix = "give at least 3, or state the sets in a column or in files"
        what = f"{count} known labels are too few to draw a split"
        problems.note(name, what, fix, column=column)
    elif groups is not None and (few := len(np.unique(groups[known]))) < 3:
        fix = "label nodes of other groups, or remove the option group"
        what = f"the known labels are in {few} groups; a split needs 3"
        problems.note(name, what, fix, column=layout.group)


def values_of(
    table: Table | None,
    layout: Layout,
    kinds: Mapping[str, str],
    problems: Problems,
    lengths: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Return the checked values of feature columns; `lengths` are those of vectors in training."""
    if table is None:
        return {}
    read, lengths = partial(read_values, decimal=layout.decimal), lengths or {}
    return {
        column: read(table, column, kind, problems, length=lengths.get(column))
        for column, kind in kinds.items()
        if kind in KINDS
    }


def taken(values: Any, rows: NDArray[np.int64]) -> Any:
    """Return the values of these rows."""
    import pyarrow as pa

    return values[rows] if isinstance(values, np.ndarray) else values.take(pa.array(rows))
