"""Columns by kind: what their values become, and that an encoder is plain data."""

import json
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from unimp.data.tables.encoding import Categorical, Encoder, fit, to_plain
from unimp.data.tables.problems import Problems
from unimp.data.tables.table import Table
from unimp.data.tables.values import read_values
from unimp.errors import TaskError
from unimp.runs.folder.schemas import AnyEncoder


def values_of(values: Any, kind: str) -> Any:
    problems = Problems()
    table = Table("nodes", pa.table({"c": values}))
    found = read_values(table, "c", kind, problems)
    problems.refuse()
    return found


def fitted(values: Any, kind: str, *, text_width: int = 16) -> Encoder:
    return fit("c", kind, values_of(values, kind), text_width=text_width)


def encoded(encoder: Encoder, values: Any) -> np.ndarray[Any, Any]:
    matrix = encoder.encode(values_of(values, encoder.kind))
    return np.asarray(matrix.toarray() if hasattr(matrix, "toarray") else matrix)


def test_numbers_are_standardized_and_gaps_have_a_column_of_their_own() -> None:
    given = [1.0, None, 3.0, 5.0]
    encoder = fitted(given, "numeric")
    found = encoded(encoder, given)
    np.testing.assert_allclose(found[[0, 2, 3], 0], np.array([-2, 0, 2]) / np.std([1, 3, 5]))
    assert found[:, 1].tolist() == [0, 1, 0, 0]
    assert found[1, 0] == 0  # the mean
    full = fitted([1.0, 3.0], "numeric")
    assert full.width == 1
    assert encoded(full, [None]).tolist() == [[0]]  # training had no gap: the mean, and no column


def test_a_constant_number_becomes_zero() -> None:
    assert encoded(fitted([0.1] * 5, "numeric"), [0.1, 0.1]).tolist() == [[0], [0]]


@pytest.mark.parametrize("values", [["1", " 2.5e0 ", "", "NA"], [1, 2.5, None, float("nan")]])
def test_numbers_may_be_text_and_nan_is_a_gap(values: Any) -> None:
    np.testing.assert_array_equal(values_of(values, "numeric"), [1, 2.5, np.nan, np.nan])


def test_truth_is_a_number_and_a_category() -> None:
    assert values_of([True, False], "numeric").tolist() == [1, 0]
    assert values_of([True, None], "categorical").to_pylist() == ["true", None]


def test_a_category_seen_once_and_one_never_seen_share_a_column() -> None:
    encoder = fitted(["b", "a", "a", "b", "b", "rare", None], "categorical")
    assert isinstance(encoder, Categorical)
    assert encoder.categories == ("b", "a")  # the commonest first
    assert encoded(encoder, ["a", "b", "rare", "new", None, ""]).tolist() == [
        [0, 1, 0, 0],
        [1, 0, 0, 0],
        [0, 0, 1, 0],
        [0, 0, 1, 0],
        [0, 0, 0, 1],
        [0, 0, 0, 1],
    ]


def test_where_training_had_no_others_a_new_category_sets_no_column() -> None:
    encoder = fitted(["a", "a", "b", "b"], "categorical")
    assert encoder.width == 2
    assert encoded(encoder, ["new", None]).tolist() == [[0, 0], [0, 0]]


def test_codes_are_categories_whole_numbers_without_a_point() -> None:
    assert values_of([1.0, 2.0, None], "categorical").to_pylist() == ["1", "2", None]
    assert values_of([1, 2], "categorical").to_pylist() == ["1", "2"]


def test_text_is_weighted_as_scikit_learn_does() -> None:
    from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer

    texts = ["a graph of nodes", "nodes and edges", "labels", ""]
    encoder = fitted([*texts[:3], None], "text", text_width=64)
    counts = HashingVectorizer(n_features=64, alternate_sign=False, norm=None).transform(texts)
    expected = TfidfTransformer().fit_transform(counts).toarray()
    np.testing.assert_allclose(encoded(encoder, texts), expected)
    np.testing.assert_allclose(encoded(encoder, ["nodes"]), encoded(encoder, ["Nodes!"]))


@pytest.mark.parametrize(
    "values",
    [
        [[1, 2], None, [3, 4]],
        ["1 2", "", "3 4"],
        ["[1, 2]", None, "[3, 4]"],
        ["1;2", None, " 3 ; 4 "],
        pa.array([[1, 2], None, [3, 4]], pa.list_(pa.float32(), 2)),
    ],
)
def test_vectors_come_as_lists_or_as_numbers_in_a_cell(values: Any) -> None:
    encoder = fitted(values, "vector")
    assert encoded(encoder, values).tolist() == [[1, 2, 0], [0, 0, 1], [3, 4, 0]]


@pytest.mark.parametrize(
    ("values", "kind", "message"),
    [
        (["1", "x", "y"], "numeric", "rows 2, 3: 'x' is not a number"),
        ([1.0, np.inf], "numeric", "row 2: inf is not a finite number"),
        (["1", "-inf"], "numeric", "row 2: -inf is not a finite number"),
        ([1.0, 1e39], "numeric", "is not a finite number"),
        ([[1.0], [2.0]], "numeric", "not numeric"),
        ([[1.0, 2.0], [1.0]], "vector", "row 2: 1 numbers, but other rows have 2"),
        ([[1.0, 2.0], [1.0, np.nan]], "vector", "row 2: a vector contains nan"),
        (["1 2", "1 two"], "vector", "row 2: 'two' is not a number"),
        ([1.0, 2.0], "vector", "as numeric"),
        ([None, None], "vector", "instead of lists of numbers"),
        (["", None], "vector", "contains no vector"),
        ([["a"], ["b"]], "vector", "'a' is not a number"),
        ([[1.0], [2.0]], "categorical", "instead of text"),
    ],
)
def test_what_does_not_fit_its_kind_is_told_with_its_rows(
    values: Any, kind: str, message: str
) -> None:
    with pytest.raises(TaskError) as error:
        values_of(values, kind)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1.0, None, 1 / 3], "numeric"),
        (["ü", "ü", "b", None], "categorical"),
        (["some words", "other words"], "text"),
        ([[1.0, 2.0], [3.0, 4.0]], "vector"),
    ],
)
def test_an_encoder_comes_back_from_json_as_it_was(values: Any, kind: str) -> None:
    encoder = fitted(values, kind)
    again = TypeAdapter(AnyEncoder).validate_json(json.dumps(to_plain(encoder)))
    assert again == encoder
    np.testing.assert_array_equal(encoded(again, values), encoded(encoder, values))


@given(st.integers(-(10**12), 10**12))
def test_a_whole_number_is_one_category_however_it_is_written(number: int) -> None:
    forms: list[Any] = [[number], [float(number)], [str(number)], [f"{number}.0"], [f"{number}."]]
    forms += [[f" {number}.000 "], [Decimal(f"{number}.0")]]
    encoder = fitted([number, number, None], "categorical")
    for form in forms:
        assert values_of(form, "categorical").to_pylist() == [str(number)]
        assert encoded(encoder, form).tolist() == [[1, 0]]


def test_leading_zeros_and_fractions_make_other_categories() -> None:
    given = ["1", "01", "1.5", "1.50", "v1.0", "1.0.0"]
    assert values_of(given, "categorical").to_pylist() == given


@pytest.mark.parametrize(
    "values",
    [
        [1e3, 1e3 + 1e-9, 1e3 + 2e-9],
        [1e-20, 2e-20, 3e-20],
        [1e-300, 2e-300, 3e-300],
        [1e6, 1e6 + 1e-6, 1e6 + 2e-6],
    ],
)
def test_a_tiny_spread_is_not_erased(values: list[float]) -> None:
    found = encoded(fitted(values, "numeric"), values)[:, 0]
    np.testing.assert_allclose(found, np.array([-1, 0, 1]) * np.sqrt(1.5), atol=1e-3)


@given(
    center=st.floats(-1e30, 1e30),
    steps=st.lists(st.integers(-1000, 1000), min_size=2, max_size=20),
    spread=st.floats(1e-300, 1e30),
)
def test_numbers_that_differ_in_float64_are_standardized_to_variance_one(
    center: float, steps: list[int], spread: float
) -> None:
    values = center + np.array(steps) * spread
    assume(np.ptp(values) > 1e4 * np.spacing(np.abs(values).max()))
    found = encoded(fitted(values, "numeric"), values)[:, 0].astype(np.float64)
    assert abs(found.mean()) < 1e-2
    assert abs(found.std() - 1) < 1e-2


@given(st.floats(-1e30, 1e30), st.integers(2, 50))
def test_a_constant_is_zero_however_its_mean_is_rounded(value: float, count: int) -> None:
    assert not encoded(fitted([value] * count, "numeric"), [value] * count).any()


def test_an_encoder_without_a_spread_is_refused() -> None:
    plain = to_plain(fitted([1.0, 2.0], "numeric")) | {"std": 0.0}
    with pytest.raises(ValueError, match="std"):
        TypeAdapter(AnyEncoder).validate_json(json.dumps(plain))


def test_a_vector_with_a_number_whose_square_is_infinite_is_refused() -> None:
    with pytest.raises(TaskError, match=r"row 2: a vector contains 3e\+38"):
        values_of([[1.0, 2.0], [1.0, 3e38]], "vector")
