"""Edges between nearest neighbors, for a table of nodes without a table of edges.

Each node receives messages from the k nodes that are nearest to it in the columns `near`. Columns
of numbers are standardized, and a column of vectors is used unchanged; distances are Euclidean. Two
columns that are named and valued like longitude and latitude are places on the globe instead. A
node without a value in one of the columns has no position and therefore no edges.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from unimp.data.tables.encoding import Numeric, Vector, to_plain
from unimp.data.tables.number_formats import kind_of_numbers
from unimp.data.tables.problems import Problems
from unimp.data.tables.table import Table, is_string
from unimp.data.tables.values import NO_VALUE, read_values, words
from unimp.errors import TaskError
from unimp.tasks.known import UNLABELED
from unimp.tasks.splitting import Sets

if TYPE_CHECKING:
    from unimp.data.tables.transforms import Layout

CANDIDATES = (4, 8, 16, 32)
"""The numbers of neighbors among which neighbors = "auto" chooses."""
UNCHOSEN = 8
"""The number of neighbors without validation labels to choose by."""
MOST_STORED = 32_000_000
"""The most coordinates that a run stores. A larger run cannot add nodes later."""
_LONGITUDE = ("longitude", "lon", "lng", "long")
_LATITUDE = ("latitude", "lat")
_TREE = 16  # columns; with more, comparing all pairs of nodes is faster than a tree
_SPARE = 8  # candidates beyond the nearest, so that rows decide among equal distances
_BLOCK = 1 << 24  # numbers that are compared at a time
_STEPS, _RESTART = 10, 0.1  # of the label propagation that chooses the number of neighbors
_LOOKED_AT = 1000  # cells that show whether text contains vectors


@dataclass(frozen=True)
class Places:
    """How cells of the columns `near` become points, and the points of training."""

    columns: tuple[Numeric | Vector, ...]  # of a globe: longitude, latitude
    globe: bool
    stored: str = ""  # float32 [N, width] in base64, little-endian; empty if there are too many

    def __post_init__(self) -> None:
        numeric = [column for column in self.columns if isinstance(column, Numeric)]
        if not self.columns or (self.globe and not len(numeric) == len(self.columns) == 2):
            raise ValueError("the columns do not give positions")
        if len(base64.b64decode(self.stored, validate=True)) % (4 * self.width):
            raise ValueError("the stored points are not complete")

    @property
    def width(self) -> int:
        """The number of coordinates of a point."""
        lengths = (c.length if isinstance(c, Vector) else 1 for c in self.columns)
        return 3 if self.globe else sum(lengths)

    @property
    def points(self) -> NDArray[np.float64]:
        """The points of training, [N, width], or no points if they are not stored."""
        numbers = np.frombuffer(base64.b64decode(self.stored), dtype="<f4")
        return numbers.reshape(-1, self.width).astype(np.float64)

    @classmethod
    def fitted(cls, values: Mapping[str, NDArray[Any]]) -> tuple[Places, NDArray[np.float64]]:
        """Return how the values of training become points, and the points, [N, width]."""
        names = _globe_columns(values)
        columns = tuple(
            Numeric.fit(name, values[name]) if values[name].ndim == 1
            # A missing vector is a missing position here, and never marked.
            else Vector(name, values[name].shape[1], indicator=False)
            for name in names or values
        )  # fmt: skip
        places = cls(columns, globe=bool(names))
        points = places.points_of(values)
        data = points.astype("<f4").tobytes() if points.size <= MOST_STORED else b""
        return cls(columns, places.globe, base64.b64encode(data).decode()), points

    def points_of(self, values: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """Return points, [N, width]; a row of a node without a position contains NaN."""
        given = [np.asarray(values[c.column], dtype=np.float64) for c in self.columns]
        if self.globe:
            east, north = np.radians(given[0]), np.radians(given[1])
            around = np.cos(north)
            return np.stack((around * np.cos(east), around * np.sin(east), np.sin(north)), axis=1)
        parts = [
            np.where(np.isnan(v), np.nan, column.standardized(v))[:, None]
            if isinstance(column, Numeric)
            else v
            for column, v in zip(self.columns, given, strict=True)
        ]
        return np.hstack(parts)

    def on_map(self, values: Mapping[str, NDArray[Any]]) -> NDArray[np.float64] | None:
        """Return longitude and latitude of every node, [N, 2]; None if one of them has none."""
        if not self.globe:
            return None
        degrees = np.stack([values[c.column] for c in self.columns], axis=1)
        return degrees if np.isfinite(degrees).all() else None

    def to_plain(self) -> dict[str, Any]:
        columns = [to_plain(column) for column in self.columns]
        return {"columns": columns, "globe": self.globe, "stored": self.stored}


def _globe_columns(values: Mapping[str, NDArray[Any]]) -> list[str]:
    """Return the columns with longitude and latitude, if these are the two columns."""
    named = {
        kind: [name for name in values if name.strip().lower() in names]
        for kind, names in (("longitude", _LONGITUDE), ("latitude", _LATITUDE))
    }
    if len(values) != 2 or any(len(names) != 1 for names in named.values()):
        return []
    (east,), (north,) = named.values()
    for column, largest in ((east, 360), (north, 90)):
        given = values[column]
        if given.ndim != 1 or (np.abs(given[~np.isnan(given)]) > largest).any():
            return []
    return [east, north]


def read_near(
    table: Table, layout: Layout, problems: Problems, places: Places | None = None
) -> dict[str, NDArray[Any]] | None:
    """Return the values of the columns `near`; None, with a problem, if one is invalid.

    places: the columns of training, for rows that are added later.
    """
    before = {c.column: c for c in places.columns} if places else {}
    found = {}
    for name in layout.near:
        if not table.has(name):
            continue
        trained = before.get(name)
        kind = trained.kind if trained else _kind(table, name, layout)
        length = trained.length if isinstance(trained, Vector) else None
        found[name] = read_values(
            table, name, kind, problems, decimal=layout.decimal, length=length
        )
    if len(found) < len(layout.near) or any(values is None for values in found.values()):
        return None
    for name, values in found.items():
        empty = np.flatnonzero(np.isnan(values).reshape(len(values), -1).any(1))
        if len(empty):
            problems.warn(
                table.name,
                "the node has no position, and therefore no neighbors",
                column=name,
                rows=empty,
            )
    return found


def _kind(table: Table, column: str, layout: Layout) -> Literal["numeric", "vector"]:
    """Return whether a column contains numbers or vectors; the kind of a feature decides first."""
    import pyarrow as pa
    import pyarrow.compute as pc

    declared = layout.features.get(column)
    if declared in ("numeric", "vector"):
        return "vector" if declared == "vector" else "numeric"
    if pa.types.is_nested(table.kind(column)):
        return "vector"
    if not is_string(table.kind(column)):
        return "numeric"
    text = words(table, column, Problems()).drop_null()
    cells = text.filter(pc.invert(pc.is_in(text, pa.array(NO_VALUE, text.type))))
    found = kind_of_numbers(cells.slice(0, _LOOKED_AT), layout.decimal, table.delimiter)
    return "vector" if found is not None and found[0] == "vector" else "numeric"


def nearest(
    points: NDArray[np.float64], count: int, *, of: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Return the nearest other points, nearest first: [len(of), count], −1 without a position.

    The search is exact. Among equal distances the first rows come first; if more than a few points
    are equally near, the choice among them is fixed, but not by their rows.
    of: the rows whose neighbors are returned, by default all.
    """
    of = np.arange(len(points)) if of is None else of
    rows = np.flatnonzero(~np.isnan(points).any(1))
    found = np.full((len(of), count), -1, dtype=np.int64)
    asked = np.flatnonzero(np.isin(of, rows))
    if not len(asked):
        return found
    among, wanted = points[rows], points[of[asked]]
    most = min(len(rows), count + 1 + _SPARE)
    if points.shape[1] <= _TREE:
        from scipy.spatial import cKDTree

        near = cKDTree(among).query(wanted, k=[*range(1, most + 1)], workers=-1)[1]
    else:
        from sklearn.neighbors import NearestNeighbors

        search = NearestNeighbors(n_neighbors=most, algorithm="brute").fit(among)
        near = search.kneighbors(wanted, return_distance=False)
    block = max(1, _BLOCK // (most * points.shape[1]))
    for start in range(0, len(asked), block):
        part = slice(start, start + block)
        others = rows[near[part]]
        distance = ((points[others] - wanted[part, None]) ** 2).sum(2)
        distance[others == of[asked[part], None]] = np.inf  # not a neighbor of itself
        order = np.lexsort((others, distance), axis=1)[:, :count]
        found[asked[part]] = np.take_along_axis(others, order, axis=1)
    return found


def edges_to(
    neighbors: NDArray[np.int64], targets: NDArray[np.int64] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return source and target of the edges from neighbors [M, k] to their nodes."""
    targets = np.arange(len(neighbors)) if targets is None else targets
    target = np.repeat(targets, neighbors.shape[1])
    source, there = neighbors.ravel(), neighbors.ravel() >= 0
    return source[there], target[there]


def count_limit(
    where: str, points: NDArray[np.float64], neighbors: int | str, problems: Problems
) -> int:
    """Return how many neighbors of each node are needed; a problem if there are too few nodes."""
    placed = points[~np.isnan(points).any(1)]
    others = len(placed) - 1
    if others < 1 or not np.ptp(placed, axis=0).any():
        problems.note(
            where,
            "fewer than two nodes have different positions",
            "name other columns in near, or give a table of edges",
        )
        return 0
    if isinstance(neighbors, int) and neighbors > others:
        problems.note(
            where,
            f"neighbors is {neighbors}, but a node has only {others} other nodes with a position",
            f"set neighbors to {others} or less",
        )
        return 0
    return neighbors if isinstance(neighbors, int) else min(max(CANDIDATES), others)


def choose_neighbors(
    neighbors: NDArray[np.int64],
    labels: NDArray[Any],
    num_classes: int,
    split: Sets,
    *,
    directed: bool,
) -> tuple[int, dict[int, float]]:
    """Choose the number of neighbors with which train labels predict validation labels best.

    Train labels are propagated along the edges to the validation nodes, which takes seconds. Of
    equal scores the smaller number wins. Test labels are not used.
    Returns the number, and the score of each candidate: accuracy, or ROC-AUC of binary tasks.
    """
    import torch  # here, because most tables need neither torch nor this choice

    from unimp.tasks.metrics import score

    most = neighbors.shape[1]
    candidates = [k for k in CANDIDATES if k < most] + [most]
    if not split.val.size:
        return min(UNCHOSEN, most), {}
    train, val = split.train, split.val
    start, shares = _start(labels[train], train, len(labels), num_classes)
    metric: Literal["accuracy", "rocauc"] = "accuracy" if labels.ndim == 1 else "rocauc"
    answers = torch.from_numpy(labels[val])
    scores = {}
    for count in candidates:
        reached = _propagated(neighbors[:, :count], start, directed=directed)[val]
        # A node that no label reaches gets the most frequent class.
        scores[count] = score(metric, torch.from_numpy(reached + 1e-9 * shares), answers)
    best = max(candidates, key=lambda k: (-math.inf if math.isnan(scores[k]) else scores[k], -k))
    return best, scores


def _start(
    known: NDArray[Any], nodes: NDArray[np.int64], num_nodes: int, num_classes: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return known labels as rows [N, classes], zero elsewhere, and the share of each class.

    Of binary tasks the share is subtracted, so that zero means that nothing is known.
    """
    start = np.zeros((num_nodes, num_classes))
    if known.ndim == 1:
        start[nodes, known] = 1.0
        return start, start.mean(0)
    entries = known != UNLABELED
    share = (known * entries).sum(0) / np.maximum(1, entries.sum(0))
    start[nodes] = np.where(entries, known - share, 0.0)
    return start, np.zeros(num_classes)


def _propagated(
    neighbors: NDArray[np.int64], start: NDArray[np.float64], *, directed: bool
) -> NDArray[np.float64]:
    """Return zˡ⁺¹ = (1 − restart) D⁻¹A zˡ + restart z⁰ after some steps from z⁰ = start."""
    from scipy import sparse

    source, target = edges_to(neighbors)
    shape = (len(neighbors), len(neighbors))
    matrix = sparse.csr_array((np.ones(len(source)), (target, source)), shape=shape)
    if not directed:
        matrix = matrix.maximum(matrix.T)
    degree = np.asarray(matrix.sum(1)).reshape(-1, 1)
    rows = start
    for _ in range(_STEPS):
        rows = (1 - _RESTART) * (matrix @ rows) / np.maximum(degree, 1) + _RESTART * start
    return np.asarray(rows)


def refuse_near_and_edges(near: Sequence[str], edges: Any) -> None:
    """Refuse a table of edges beside `near`, and a task with neither of them."""
    if near and edges is not None:
        table = edges if isinstance(edges, str | Path) else "a table"
        raise TaskError(
            f"edges ({table}) and near ({', '.join(near)}) are both given. Remove one of them: "
            "edges come from a table, or from nearest neighbors."
        )
    if not near and edges is None:
        raise TaskError(
            "edges are missing. Give a table of edges, or name columns with near (--near "
            "COLUMNS): then each node gets edges from its nearest neighbors in these columns."
        )
