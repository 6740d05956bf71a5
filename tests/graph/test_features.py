"""Sparse node features: they equal the dense matrix, and invalid arrays are refused."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor

from unimp.errors import GraphError
from unimp.graph.features import (
    FeaturesWithLabels,
    SparseFeatures,
    as_float,
    rows_of,
    without_rows,
)


def matrix(seed: int = 0) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    dense = rng.random((12, 20)) * (rng.random((12, 20)) < 0.2)
    dense[4] = 0.0
    return dense.astype(np.float32)


def dense(features: SparseFeatures) -> np.ndarray[Any, Any]:
    parts = features.value.numpy(), features.column.numpy(), features.indptr.numpy()
    return sp.csr_array(parts, features.shape).toarray()


@pytest.mark.parametrize("form", [sp.csr_array, sp.csc_array, sp.coo_matrix, sp.csr_matrix])
def test_any_scipy_matrix_is_accepted(form: Any) -> None:
    features = SparseFeatures.from_scipy(form(matrix()))
    assert np.array_equal(dense(features), matrix())
    assert features.value.dtype == torch.float32


def test_selected_rows_are_in_the_given_order() -> None:
    nodes = torch.tensor([7, 4, 0, 7])
    picked = SparseFeatures.from_scipy(sp.csr_array(matrix()))[nodes]
    assert np.array_equal(dense(picked), matrix()[nodes.numpy()])
    assert picked.shape == (4, 20)


def test_an_empty_selection_of_rows_works() -> None:
    picked = SparseFeatures.from_scipy(sp.csr_array(matrix()))[torch.tensor([], dtype=torch.int64)]
    assert picked.shape == (0, 20)


def test_scaled_rows_sum_to_one_and_empty_rows_stay_empty() -> None:
    sums = dense(SparseFeatures.from_scipy(sp.csr_array(matrix())).scale_rows()).sum(1)
    assert sums[4] == 0.0
    assert np.allclose(np.delete(sums, 4), 1.0)


def test_scaling_does_not_change_a_row_that_sums_to_zero() -> None:
    features = SparseFeatures.from_scipy(sp.csr_array(np.array([[2.0, -2.0], [0.0, 4.0]])))
    assert dense(features.scale_rows()).tolist() == [[2.0, -2.0], [0.0, 1.0]]


def test_rows_can_be_set_to_zero() -> None:
    features = SparseFeatures.from_scipy(sp.csr_array(matrix()))
    rows = torch.zeros(features.shape[0], dtype=torch.bool)
    rows[1] = rows[-1] = True
    expected = without_rows(torch.from_numpy(dense(features)), rows)
    assert isinstance(expected, torch.Tensor)
    assert not bool(expected[rows].any())
    found = without_rows(features, rows)
    assert isinstance(found, SparseFeatures)
    assert np.array_equal(dense(found), expected.numpy())


def test_integers_and_half_precision_become_float32() -> None:
    for values in ([1, 2], np.array([1, 2], dtype=np.float16), torch.tensor([True, False])):
        assert as_float(values, "values").dtype == torch.float32


def test_complex_numbers_are_refused() -> None:
    with pytest.raises(GraphError, match=r"real numbers.*complex64"):
        as_float(torch.ones(2, dtype=torch.complex64), "node features")


def parts(**changes: Any) -> dict[str, Any]:
    return {
        "indptr": torch.tensor([0, 1, 3]),
        "column": torch.tensor([2, 0, 1]),
        "value": torch.tensor([1.0, 2.0, 3.0]),
        "shape": (2, 3),
    } | changes


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"indptr": torch.tensor([0, 3])}, "2 nodes need 3 row pointers"),
        ({"indptr": torch.tensor([1, 2, 3])}, "start at 0"),
        ({"indptr": torch.tensor([0, 4, 3])}, "must increase from 0"),
        ({"indptr": torch.tensor([0, 1, 2])}, "stored values (3), but the last one is 2"),
        ({"column": torch.tensor([2, 0])}, "3 values but 2 column numbers"),
        ({"column": torch.tensor([2, 0, 3])}, "must be in 0..2, but they range from 0 to 3"),
        ({"column": torch.tensor([2, -1, 0])}, "they range from -1 to 2"),
        ({"value": torch.tensor([1.0, float("nan"), 3.0])}, "nan at node 1, column 0"),
    ],
)
def test_inconsistent_arrays_are_refused_with_the_position(
    changes: dict[str, Tensor], words: str
) -> None:
    SparseFeatures(**parts())
    with pytest.raises(GraphError) as caught:
        SparseFeatures(**parts(**changes))
    assert words in str(caught.value)


def test_the_repr_contains_the_share_of_stored_values() -> None:
    assert repr(SparseFeatures(**parts())) == "SparseFeatures(2 × 3, 50.00% filled)"


@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_rows_of_sparse_features_have_integers_of_one_type(kind: torch.dtype) -> None:
    """torch's products of sparse matrices refuse a mixture."""
    indptr, column = torch.tensor([0, 1, 3]).to(kind), torch.tensor([1, 0, 2]).to(kind)
    x = SparseFeatures(indptr, column, torch.tensor([1.0, 2.0, 3.0]), (2, 3))
    rows = x[torch.tensor([1])]
    assert rows.indptr.dtype == rows.column.dtype
    assert torch.equal(rows.to_dense(), torch.tensor([[2.0, 0.0, 3.0]]))
    assert torch.equal(x.to_dense(), torch.tensor([[0.0, 1.0, 0.0], [2.0, 0.0, 3.0]]))


def test_rows_of_16_bit_features_beside_propagated_labels_are_float32() -> None:
    both = FeaturesWithLabels(torch.ones(4, 2, dtype=torch.float16), torch.rand(4, 3))
    rows = rows_of(both, torch.tensor([2, 0]))
    assert isinstance(rows, FeaturesWithLabels)
    assert isinstance(rows.x, Tensor)
    assert rows.x.dtype == torch.float32
    assert torch.equal(rows.propagated, both.propagated[[2, 0]])
    alone = rows_of(FeaturesWithLabels(None, both.propagated), torch.tensor([1]))
    assert isinstance(alone, FeaturesWithLabels)
    assert alone.x is None
