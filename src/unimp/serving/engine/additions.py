"""New nodes and edges of events, in the form of the run's prepared graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unimp.data.tables.encoding import Categorical, Encoder, Vector
from unimp.data.tables.extending import edges_to_points, encode_edges, encode_nodes
from unimp.data.tables.transforms import Transforms
from unimp.errors import TaskError, UnimpError
from unimp.graph.features import SparseFeatures
from unimp.graph.graph import Graph
from unimp.runs.run import Run

X, ATTR = "x", "attr"
"""The values of new nodes and edges of a run that was not trained on tables."""

SHOWN_CHOICES = 200
"""Categories of a column that a form offers; others can be typed."""

Rows = Sequence[Mapping[str, Any]]


class Additions:
    """How the values of new nodes and edges become features of the run."""

    def __init__(self, run: Run, graph: Graph) -> None:
        """graph: the prepared graph of the run, without structural columns."""
        tables = run.task.tables
        self.transforms = tables if isinstance(tables, Transforms) else None
        options = run.recipe.task
        self._scale_rows, self.self_loops = options.scale_rows, options.self_loops
        self._width, self._edge_width = graph.num_features, graph.num_edge_features
        layout = self.transforms.layout if self.transforms else None
        # In an undirected graph, each edge is stored in both directions.
        self.both_ways = options.symmetrize or (layout is not None and not layout.directed)

    @property
    def near(self) -> bool:
        """Whether edges come from nearest neighbors, so that edges cannot be added."""
        return self.transforms is not None and self.transforms.near is not None

    @property
    def columns(self) -> list[str]:
        """The values that a new node needs."""
        if self.transforms is None:
            return [X] if self._width else []
        near = self.transforms.layout.near
        return list(dict.fromkeys([*(e.column for e in self.transforms.nodes), *near]))

    @property
    def edge_columns(self) -> list[str]:
        """The values that a new edge needs."""
        if self.transforms is None:
            return [ATTR] if self._edge_width else []
        return [encoder.column for encoder in self.transforms.edges]

    @property
    def node_forms(self) -> list[dict[str, Any]]:
        """The columns of a new node as in `schemas.Column`."""
        if self.transforms is None:
            return [{"name": X, "kind": "vector", "length": self._width}] if self._width else []
        return _forms(self.columns, self.transforms.nodes)

    @property
    def edge_forms(self) -> list[dict[str, Any]]:
        """The columns of a new edge as in `schemas.Column`."""
        if self.transforms is None:
            width = self._edge_width
            return [{"name": ATTR, "kind": "vector", "length": width}] if width else []
        return _forms(self.edge_columns, self.transforms.edges)

    def features(
        self, ids: Sequence[str], rows: Rows
    ) -> tuple[Tensor | SparseFeatures | None, NDArray[np.float64] | None]:
        """The features of new nodes, and their places if edges come from nearest neighbors."""
        _refuse_names(rows, self.columns, "node")
        points = None
        if self.transforms is None:
            given = _numbers(rows, X, self._width)
            x: Any = None if given is None else torch.from_numpy(given)
        else:
            if self.near and self.transforms.near and not self.transforms.near.stored:
                raise TaskError(
                    "the run has too many coordinates to store them, so the nearest neighbors of "
                    "new nodes cannot be found. Add them to the table and train again."
                )
            layout = self.transforms.layout
            table = {layout.id: list(ids)} if layout.id else {}
            x, points = encode_nodes(self.transforms, table | _columns(rows, self.columns))
            if points is not None and np.isnan(points).any():
                raise TaskError("a new node has no position. Fill in its coordinates.")
            x = torch.from_numpy(x) if isinstance(x, np.ndarray) else x
        if x is not None and self._scale_rows:
            if isinstance(x, SparseFeatures):
                x = x.scale_rows()
            else:
                sums = x.sum(1, keepdim=True)
                x = x / torch.where(sums == 0, 1.0, sums)
        return x if self._width else None, points

    def edge_features(self, pairs: Sequence[tuple[str, str]], rows: Rows) -> Tensor | None:
        """The features of new edges; None if edges have none."""
        _refuse_names(rows, self.edge_columns, "edge")
        if self.transforms is None:
            given = _numbers(rows, ATTR, self._edge_width)
        else:
            layout = self.transforms.layout
            ends = {layout.source: [a for a, _ in pairs], layout.target: [b for _, b in pairs]}
            given = None
            if self.transforms.edges:
                columns = _columns(rows, self.edge_columns)
                given = encode_edges(self.transforms, ends | columns)
        return None if given is None else torch.from_numpy(given)

    def one_by_one(
        self, ids: Sequence[str], rows: Rows
    ) -> tuple[Tensor | SparseFeatures | None, NDArray[np.float64] | None]:
        """Like `features`, for rows of several requests, which may write numbers differently."""
        try:
            return self.features(ids, rows)
        except (UnimpError, ValueError, TypeError):
            found = [self.features([name], [row]) for name, row in zip(ids, rows, strict=True)]
        points = [p for _, p in found if p is not None]
        return _stacked([x for x, _ in found]), np.concatenate(points) if points else None

    def near_edges(self, points: NDArray[np.float64]) -> set[tuple[int, int]]:
        """The edges to all new nodes from their nearest neighbors, in both directions if the graph
        is undirected."""
        assert self.transforms is not None
        assert self.transforms.near is not None
        neighbors = self.transforms.layout.neighbors
        assert isinstance(neighbors, int)
        found = edges_to_points(self.transforms.near, points, neighbors)
        pairs = set(zip(found.source.tolist(), found.target.tolist(), strict=True))
        return pairs | {(b, a) for a, b in pairs} if self.both_ways else pairs


def _forms(columns: Sequence[str], encoders: Sequence[Encoder]) -> list[dict[str, Any]]:
    """What each column contains; a column without an encoder is a coordinate."""
    known = {encoder.column: encoder for encoder in encoders}
    found = []
    for name in columns:
        encoder = known.get(name)
        form: dict[str, Any] = {"name": name, "kind": encoder.kind if encoder else "numeric"}
        if isinstance(encoder, Categorical):
            form["choices"] = list(encoder.categories[:SHOWN_CHOICES])
        elif isinstance(encoder, Vector):
            form["length"] = encoder.length
        found.append(form)
    return found


def _refuse_names(rows: Rows, needed: Sequence[str], what: str) -> None:
    """Refuse values that the run does not use, which are likely to be misspelled, and the lack of a
    value in all rows."""
    given = {name for row in rows for name in row}
    unknown = sorted(given - set(needed))
    missing = [name for name in needed if name not in given]
    if unknown or missing:
        words = [f"{name!r} is not one of them" for name in unknown]
        words += [f"{name!r} is missing" for name in missing]
        raise TaskError(
            f"the values of a new {what} are {', '.join(needed) or 'none'}: {'; '.join(words)}"
        )


def _columns(rows: Rows, names: Sequence[str]) -> dict[str, list[Any]]:
    """Rows as columns; a value that a row does not have is missing."""
    return {name: [row.get(name) for row in rows] for name in names}


def _numbers(rows: Rows, name: str, width: int) -> NDArray[np.float32] | None:
    """One list of `width` numbers per row; None if the run has no such features."""
    if not width:
        return None
    for row in rows:
        given = row.get(name)
        if not isinstance(given, list) or len(given) != width:
            raise TaskError(f"the value {name!r} must be a list of {width} numbers")
    return np.array([row[name] for row in rows], dtype=np.float32)


def _stacked(parts: Sequence[Tensor | SparseFeatures | None]) -> Tensor | SparseFeatures | None:
    dense = [part for part in parts if isinstance(part, Tensor)]
    if len(dense) == len(parts):
        return torch.cat(dense)
    sparse = [part for part in parts if isinstance(part, SparseFeatures)]
    if not sparse:
        return None
    from scipy.sparse import vstack

    return SparseFeatures.from_scipy(vstack([part.to_scipy() for part in sparse], format="csr"))
