"""Other node numbers inside, so that neighbors lie near one another in memory."""

from __future__ import annotations

import importlib
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from unimp.errors import RecipeError
from unimp.graph.graph import Graph

Order = Literal["given", "rcm", "metis"]

PART = 2048
"""About how many nodes METIS puts into one part: their rows should fit a core's cache."""


@dataclass(frozen=True, eq=False)
class Reordered:
    """A graph whose nodes have other numbers than the task's, and the way there and back."""

    graph: Graph
    order: Tensor | None  # [N] node i here is the task's order[i]; None: the numbers are the task's

    def to_here(self, rows: Tensor) -> Tensor:
        """One row a node as the task numbers them → as this graph does."""
        return rows if self.order is None else rows[self.order]

    def to_task(self, rows: Tensor) -> Tensor:
        """One row a node as this graph numbers them → as the task does."""
        if self.order is None:
            return rows
        back = torch.empty_like(rows)
        back[self.order] = rows
        return back


# Keyed weakly: what was found for a graph is kept as long as the graph itself.
_FOUND: MutableMapping[Graph, dict[Order, Reordered]] = WeakKeyDictionary()


def reorder(graph: Graph, how: Order) -> Reordered:
    """The graph renumbered; found once for each graph, and kept beside it while it lives."""
    if how == "given":
        return Reordered(graph, None)
    found = _FOUND.setdefault(graph, {})
    if how not in found:
        order = node_order(graph, how)
        found[how] = Reordered(graph.renumber(order), order)
    return found[how]


def node_order(graph: Graph, how: Literal["rcm", "metis"]) -> Tensor:
    """Every node once, neighbors (whichever way the edge points) near one another: [N].

    rcm     reverse Cuthill–McKee: breadth first, so that |i − j| stays small along edges
    metis   parts of about `PART` nodes with few edges between them, one part after the other
    """
    pattern = _either_way(graph)
    if how == "rcm":
        from scipy.sparse.csgraph import reverse_cuthill_mckee

        order = reverse_cuthill_mckee(pattern, symmetric_mode=True)
        return torch.from_numpy(order.astype(np.int64))
    metis = _pymetis()
    parts = max(1, round(graph.num_nodes / PART))
    # A seed of its own: a finished run must find the same order again.
    part = metis.part_graph(
        parts,
        metis.CSRAdjacency(pattern.indptr, pattern.indices),
        options=metis.Options(seed=0),
    ).vertex_part
    return torch.from_numpy(np.argsort(np.asarray(part), kind="stable"))


def _either_way(graph: Graph) -> Any:
    """Who is joined to whom, by an edge of either direction, as a matrix without diagonal."""
    import scipy.sparse as sp

    graph = graph.without_self_loops().deduplicate("first")
    pattern = sp.csr_array(
        (np.ones(graph.num_edges, dtype=bool), graph.source.numpy(), graph.indptr.numpy()),
        shape=(graph.num_nodes, graph.num_nodes),
    )
    return (pattern + pattern.T).tocsr()


def _pymetis() -> Any:
    try:
        return importlib.import_module("pymetis")
    except ImportError as error:
        raise RecipeError(
            "task.order is 'metis', which needs the package pymetis; install it with "
            'pip install "unimp[metis]", or set task.order to rcm or given'
        ) from error
