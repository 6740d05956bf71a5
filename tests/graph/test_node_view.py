"""Views of nodes: scikit-learn slices them like a matrix, and the graph stays complete."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn.utils import _safe_indexing

from unimp.errors import GraphError
from unimp.graph.graph import Graph

X = np.arange(12, dtype=np.float32).reshape(6, 2)
GRAPH = Graph.from_edges([[0, 1, 2], [1, 2, 3]], x=X)


@pytest.mark.parametrize(
    "rows",
    [
        [4, 1],
        np.array([4, 1, 1]),
        np.array([True, False, False, True, False, True]),
        torch.tensor([2, 5]),
        torch.tensor([True, False, False, True, False, True]),
        slice(1, 5, 2),
        slice(None, None, -1),
        [],
    ],
)
def test_rows_are_selected_as_in_an_array(rows: Any) -> None:
    view = GRAPH.nodes[::-1]
    chosen = view[rows]
    expected = np.arange(6)[::-1][rows]
    assert chosen.numbers.tolist() == expected.tolist()
    assert chosen.graph is GRAPH
    assert chosen.shape == (len(chosen), 2) == chosen.features.shape
    assert np.array_equal(chosen.features, X[chosen.numbers])


def test_scikit_learn_can_slice_a_view() -> None:
    assert _safe_indexing(GRAPH.nodes, np.array([5, 0])).numbers.tolist() == [5, 0]
    assert _safe_indexing(GRAPH.nodes, [True] + 5 * [False]).numbers.tolist() == [0]
    assert GRAPH.nodes[3].numbers.tolist() == [3]


def test_sparse_features_stay_sparse() -> None:
    sparse = Graph.from_edges([[0], [1]], x=sp.csr_array(X))
    chosen = sparse.nodes[[3, 0, 3]].features
    assert sp.issparse(chosen)
    assert np.array_equal(chosen.toarray(), X[[3, 0, 3]])


def test_with_graph_keeps_the_rows_of_another_graph() -> None:
    both = GRAPH.nodes[[1, 2]].with_graph(GRAPH.symmetrize())
    assert both.numbers.tolist() == [1, 2]
    assert both.graph.num_edges == 6


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda: np.asarray(GRAPH.nodes), "edges would be lost"),
        (lambda: GRAPH.nodes[:, 1], "columns of a view"),
        (lambda: type(GRAPH.nodes)(GRAPH, np.array([6])), r"row 0 is node 6.*0\.\.5"),
        (lambda: type(GRAPH.nodes)(GRAPH, np.array([0.5])), "one integer node number per row"),
        (lambda: GRAPH.with_features(None).nodes.features, "have no features"),
        (
            lambda: GRAPH.nodes.with_graph(Graph.from_edges([[0], [1]])),
            r"row 2 is node 2, but nodes are numbered 0\.\.1",
        ),
    ],
)
def test_unsupported_uses_of_a_view_are_refused(attempt: Callable[[], Any], words: str) -> None:
    with pytest.raises(GraphError, match=words):
        attempt()


def test_a_missing_row_raises_index_error_and_ends_a_loop() -> None:
    with pytest.raises(IndexError):
        GRAPH.nodes[6]
    assert [view.numbers[0] for view in GRAPH.nodes] == list(range(6))
