"""Nodes of a graph as rows that scikit-learn can slice like a matrix."""

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
    """Nodes of a graph, one number per row; the graph itself stays complete.

    `graph.nodes` contains all nodes. `graph.nodes[rows]` selects some of them by a mask, by
    positions or by a slice. A node may be in several rows. A view has the length and shape of the
    feature matrix of its nodes, but it is not a matrix: a conversion would lose the edges.
    """

    graph: Graph
    numbers: NDArray[np.int64]  # [rows]

    def __post_init__(self) -> None:
        numbers = np.asarray(self.numbers)
        if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
            raise GraphError(
                f"a view of nodes needs one integer node number per row, not {numbers.dtype} of "
                f"shape {numbers.shape}; for a mask use graph.nodes[mask]"
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
        """The features of these nodes as a NumPy array or a scipy.sparse.csr_array."""
        x, rows = self.graph.x, torch.from_numpy(self.numbers.copy())
        if x is None:
            raise GraphError("the nodes of this graph have no features")
        return x[rows].to_scipy() if isinstance(x, SparseFeatures) else x[rows].numpy()

    def with_graph(self, graph: Graph) -> NodeView:
        """The same rows of another graph, such as `self.graph.symmetrize()`."""
        return replace(self, graph=graph)

    def __getitem__(self, rows: Any) -> NodeView:
        if isinstance(rows, tuple):  # scikit-learn selects rows and all columns
            rows, *columns = rows
            if any(column is not Ellipsis and column != slice(None) for column in columns):
                raise GraphError(
                    "columns of a view of nodes cannot be selected; change x of the graph"
                )
        if isinstance(rows, Tensor):
            rows = rows.cpu().numpy()
        return replace(self, numbers=np.atleast_1d(self.numbers[rows]))

    def __array__(self, *arguments: Any, **options: Any) -> Any:
        raise GraphError(
            "a view of nodes cannot be converted to a matrix, because the edges would be lost; use "
            "view.features for the features of these nodes, and scale features before you build "
            "the graph"
        )

    def __repr__(self) -> str:
        return f"NodeView({len(self):,} of {self.graph!r})"
