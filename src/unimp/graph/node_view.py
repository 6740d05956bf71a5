"""Some nodes of a graph as rows: what scikit-learn slices where it would slice a matrix."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unimp.errors import GraphError
from unimp.graph.features import SparseFeatures

if TYPE_CHECKING:
    from unimp.graph.graph import Graph


@dataclass(frozen=True, eq=False)
class NodeView:
    """Nodes of a graph, one a row, by number; the graph behind them stays whole.

    `graph.nodes` holds them all, and `graph.nodes[rows]` some: a mask, numbers, or a slice of what
    is here. A node may stand in several rows. It has the length and shape of the matrix of its
    features, but is none: it cannot be made into one without losing the edges.
    """

    graph: Graph
    numbers: NDArray[np.int64]  # [rows]

    def __post_init__(self) -> None:
        numbers = np.asarray(self.numbers)
        if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
            raise GraphError(
                f"a view of nodes takes their numbers, one a row; got {numbers.dtype} of shape "
                f"{numbers.shape} (of a mask: graph.nodes[mask])"
            )
        numbers = numbers.astype(np.int64)
        outside = np.flatnonzero((numbers < 0) | (numbers >= self.graph.num_nodes))
        if len(outside):
            raise GraphError(
                f"row {outside[0]} is node {numbers[outside[0]]}, but nodes are numbered "
                f"0..{self.graph.num_nodes - 1}"
            )
        numbers.setflags(write=False)
        object.__setattr__(self, "numbers", numbers)

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.numbers), self.graph.num_features

    @property
    def features(self) -> Any:
        """The features of these nodes alone, as a NumPy array or a scipy.sparse.csr_array."""
        x, rows = self.graph.x, torch.from_numpy(self.numbers.copy())
        if x is None:
            raise GraphError("the nodes of this graph have no features")
        return x[rows].to_scipy() if isinstance(x, SparseFeatures) else x[rows].numpy()

    def with_graph(self, graph: Graph) -> NodeView:
        """The same rows of another graph, such as `self.graph.symmetrize()`."""
        return replace(self, graph=graph)

    def __getitem__(self, rows: Any) -> NodeView:
        if isinstance(rows, tuple):  # rows and all columns, as scikit-learn writes it
            rows, *columns = rows
            if any(column is not Ellipsis and column != slice(None) for column in columns):
                raise GraphError("a view of nodes has no columns to choose; change the graph's x")
        if isinstance(rows, Tensor):
            rows = rows.cpu().numpy()
        return replace(self, numbers=np.atleast_1d(self.numbers[rows]))

    def __array__(self, *arguments: Any, **options: Any) -> Any:
        raise GraphError(
            "a view of nodes is no matrix: its edges would be lost. For the features of these "
            "nodes alone take view.features; to scale them, do it before the graph is made"
        )

    def __repr__(self) -> str:
        return f"NodeView({len(self):,} of {self.graph!r})"
