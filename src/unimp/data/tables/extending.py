"""Add nodes and edges to a task after training."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unimp.config.choices import UnknownIds
from unimp.data.tables.checking import read_node_ids, taken, values_of
from unimp.data.tables.encoding import LARGEST, Categorical, Encoder, Numeric, Vector
from unimp.data.tables.ids import Edges, positions, read_edges
from unimp.data.tables.labels import read_more_labels
from unimp.data.tables.near import Places, edges_to, nearest, read_near
from unimp.data.tables.problems import SHOWN_ROWS, Problems
from unimp.data.tables.reading import open_table
from unimp.data.tables.table import Table
from unimp.data.tables.transforms import Layout, Transforms
from unimp.errors import TaskError
from unimp.graph.features import SparseFeatures
from unimp.graph.graph import Graph
from unimp.tasks.labels import UNLABELED
from unimp.tasks.task import Task

LOG = logging.getLogger("unimp")


def extend_task(
    task: Task, nodes: Any = None, edges: Any = None, *, unknown_ids: UnknownIds = "refuse"
) -> Task:
    """Return the task with more nodes and edges, encoded as in training; new nodes come last.

    An id that the task already has is refused. Edges may join new and old nodes; an edge that
    already exists is merged with it. Labels in the new table are added to the labels of the task.
    The new nodes are in no set, so their labels are inputs only if all known labels are.

    If edges come from nearest neighbors, each new node gets edges from the nearest old and new
    nodes. The edges between old nodes stay as they are.
    """
    transforms = task.tables
    if not isinstance(transforms, Transforms) or task.node_names is None:
        raise TaskError(
            f"{task.name} was not built from tables in memory, so other tables cannot be added to "
            "it. Train on tables first; a store does not accept new nodes."
        )
    import pyarrow as pa

    layout, problems = transforms.layout, Problems()
    _refuse_near(task, transforms, nodes, edges)
    old = pa.array(task.node_names, pa.large_string())
    ids, values, labels, places = old, None, None, None
    if nodes is not None:
        ids = None  # if the table is invalid
        table = _open_more(nodes, "nodes", layout, transforms, problems)
        if table is not None:
            fresh = _fresh_ids(table, layout, old, problems)
            if transforms.near is not None:
                places = read_near(table, layout, problems, transforms.near)
            values = _values(table, layout, transforms.nodes, problems)
            labels = read_more_labels(table, layout, task.class_names or (), problems)
            ids = None if fresh is None else pa.concat_arrays([old, fresh])
    joined, edge_values = None, None
    if edges is not None:
        table = _open_more(edges, "edges", layout, transforms, problems)
        if table is not None:
            ends = (layout.source, layout.target)
            joined = read_edges(
                table, *ends, ids, problems, unknown_ids=unknown_ids, where="the run"
            )
            edge_values = _values(table, layout, transforms.edges, problems)
    problems.refuse()
    for warning in problems.warnings:
        LOG.warning(warning)
    count = len(ids) - len(old)
    on_map = task.positions
    if places is not None and transforms.near is not None:
        assert isinstance(layout.neighbors, int)
        points = transforms.near.points_of(places)
        joined, edge_values = edges_to_points(transforms.near, points, layout.neighbors), {}
        more_on_map = transforms.near.on_map(places)
        if on_map is not None:
            on_map = (
                None
                if more_on_map is None
                else torch.cat((on_map, torch.from_numpy(more_on_map).to(on_map)))
            )
    x = task.graph.x
    if count and x is not None:
        assert values is not None
        x = _stacked(x, _features(transforms, values))
    graph = _with_more_edges(task.graph, x, len(ids), transforms, joined, edge_values)
    unknown = torch.full((count, *task.labels.shape[1:]), UNLABELED, dtype=task.labels.dtype)
    more = unknown if labels is None else torch.from_numpy(labels)
    groups = task.groups
    if groups is not None:  # each new node is its own group
        groups = torch.cat((groups, int(groups.max()) + 1 + torch.arange(count)))
    return replace(
        task,
        graph=graph,
        labels=torch.cat((task.labels, more)),
        node_names=tuple(ids.to_pylist()),
        groups=groups,
        positions=on_map,
    )


def encode_nodes(transforms: Transforms, nodes: Any) -> tuple[Any, NDArray[np.float64] | None]:
    """Encode new rows as in training: their features [k, F], and where they are, if edges come
    from nearest neighbors. Rows that are not valid are refused."""
    layout, problems = transforms.layout, Problems()
    table = _open_more(nodes, "nodes", layout, transforms, problems)
    values: dict[str, Any] = {}
    places = None
    if table is not None:
        if transforms.near is not None:
            places = read_near(table, layout, problems, transforms.near)
        values = _values(table, layout, transforms.nodes, problems)
    problems.refuse()
    points = None
    if places is not None and transforms.near is not None:
        points = transforms.near.points_of(places)
    return _features(transforms, values), points


def encode_edges(transforms: Transforms, edges: Any) -> NDArray[np.float32] | None:
    """Encode the rows of new edges as in training, [m, d]; None if edges have no features."""
    problems = Problems()
    table = _open_more(edges, "edges", transforms.layout, transforms, problems)
    values = {} if table is None else _values(table, transforms.layout, transforms.edges, problems)
    problems.refuse()
    found: NDArray[np.float32] | None = transforms.edge_features(values)
    return found


def edges_to_points(near: Places, points: NDArray[np.float64], neighbors: int) -> Edges:
    """Return edges to new points from their nearest neighbors among old and new nodes."""
    old = near.points
    fresh = np.arange(len(old), len(old) + len(points))
    return Edges(*edges_to(nearest(np.concatenate((old, points)), neighbors, of=fresh), fresh))


def _refuse_near(task: Task, transforms: Transforms, nodes: Any, edges: Any) -> None:
    """Refuse what a run cannot add if its edges come from nearest neighbors."""
    if transforms.near is None:
        return
    if edges is not None:
        raise TaskError(
            f"{task.name} has no table of edges: its edges come from nearest neighbors in "
            f"{', '.join(transforms.layout.near)}, and so do those of new nodes. Give only nodes."
        )
    if nodes is not None and not transforms.near.stored:
        raise TaskError(
            f"{task.name} has too many coordinates to store them with the run, so the nearest "
            "neighbors of new nodes cannot be found. Add the nodes to the table and train again."
        )


def _values(
    table: Table, layout: Layout, encoders: Sequence[Encoder], problems: Problems
) -> dict[str, Any]:
    """Return the values of new rows, compared with those of training."""
    lengths = {e.column: e.length for e in encoders if isinstance(e, Vector)}
    values = values_of(table, layout, {e.column: e.kind for e in encoders}, problems, lengths)
    for encoder in encoders:
        given = values[encoder.column]
        if given is not None and isinstance(encoder, Numeric):
            _check_numbers(table, encoder, given, problems)
        elif given is not None and isinstance(encoder, Categorical):
            _check_categories(table, encoder, given, problems)
    return values


def _check_numbers(
    table: Table, encoder: Numeric, values: NDArray[np.float64], problems: Problems
) -> None:
    distance = np.abs(encoder.standardized(values))
    far = np.flatnonzero(distance > LARGEST)
    if len(far):
        problems.note(
            table.name,
            f"{values[far[0]]:g} is {distance[far[0]]:.0e} standard deviations from the values of "
            f"training (mean {encoder.mean:g}, standard deviation {encoder.std:g})",
            "correct the cell, for example its unit, or clear it",
            column=encoder.column,
            rows=far,
        )


def _check_categories(table: Table, encoder: Categorical, values: Any, problems: Problems) -> None:
    import pyarrow as pa

    given = values.drop_null()
    unseen = np.flatnonzero(positions(given, pa.array(encoder.categories, pa.large_string())) < 0)
    if len(unseen) > len(given) / 2:
        known = ", ".join(repr(name) for name in encoder.categories[:SHOWN_ROWS])
        problems.warn(
            table.name,
            f"{len(unseen):,} of {len(given):,} values, such as {given[int(unseen[0])].as_py()!r}, "
            "are not among the frequent categories of training "
            f"({known}{' …' if len(encoder.categories) > SHOWN_ROWS else ''}), so the model cannot "
            "use them. Check that they are written in the same way",
            column=encoder.column,
        )


def _open_more(
    given: Any, what: str, layout: Layout, transforms: Transforms, problems: Problems
) -> Table | None:
    ends = [layout.id] if what == "nodes" else [layout.source, layout.target]
    ends = [column for column in ends if column]  # without an id, nodes are numbered
    encoders = transforms.nodes if what == "nodes" else transforms.edges
    near = layout.near if what == "nodes" else ()
    in_words = layout.columns_in_words({e.column: e.kind for e in encoders})
    optional = layout.label_columns if what == "nodes" else []
    return open_table(
        given,
        what,
        problems,
        wanted=[*ends, *(encoder.column for encoder in encoders), *near],
        optional=optional,
        as_text=[*ends, *optional, *in_words],
    )


def _fresh_ids(table: Table, layout: Layout, old: Any, problems: Problems) -> Any:
    import pyarrow as pa

    fresh = read_node_ids(table, layout, problems, before=len(old))
    if fresh is None:
        return None
    fresh = fresh.cast(pa.large_string())
    known = np.flatnonzero(positions(fresh, old) >= 0)
    if len(known):
        problems.note(
            table.name,
            f"{fresh[int(known[0])].as_py()!r} is already a node of the run",
            "remove nodes that the run was trained with",
            column=layout.id,
            rows=known,
        )
    return fresh


def _features(transforms: Transforms, values: Mapping[str, Any]) -> Any:
    """Return the features of nodes: an array, or SparseFeatures."""
    features = transforms.node_features(values)
    return SparseFeatures.from_scipy(features) if transforms.sparse else features


def _stacked(x: Any, more: Any) -> Any:
    if not isinstance(x, SparseFeatures):
        return torch.cat((x, torch.from_numpy(more)))
    last = x.indptr[-1]
    return SparseFeatures(
        indptr=torch.cat((x.indptr, more.indptr[1:].to(x.indptr.dtype) + last)),
        column=torch.cat((x.column, more.column.to(x.column.dtype))),
        value=torch.cat((x.value, more.value)),
        shape=(x.shape[0] + more.shape[0], x.shape[1]),
    )


def _with_more_edges(
    graph: Graph,
    x: Any,
    num_nodes: int,
    transforms: Transforms,
    joined: Edges | None,
    values: Mapping[str, Any] | None,
) -> Graph:
    edges, attr = graph.edge_index.long(), graph.edge_attr_of(None)
    if joined is not None and values is not None:
        if joined.rows is not None:
            values = {column: taken(v, joined.rows) for column, v in values.items()}
        ends = torch.from_numpy(np.stack((joined.source, joined.target)))
        more = transforms.edge_features(values)
        rows = None if more is None else torch.from_numpy(more)
        if not transforms.layout.directed:
            other = ends[0] != ends[1]
            ends = torch.cat((ends, ends.flip(0)[:, other]), 1)
            rows = None if rows is None else torch.cat((rows, rows[other]))
        edges = torch.cat((edges, ends), 1)
        attr = None if attr is None or rows is None else torch.cat((attr, rows))
    larger = Graph.from_edges(edges, num_nodes=num_nodes, x=x, edge_attr=attr)
    return larger.deduplicate()
