"""Labels as people write them become class numbers and back."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unimp.errors import TaskError
from unimp.tasks.classes import codes_of, encode_classes

TEXTS = st.lists(st.one_of(st.none(), st.text("añ日 1", max_size=2)), max_size=20)
NUMBERS = st.lists(st.integers(-3, 2**40), max_size=20)


@given(st.one_of(TEXTS, NUMBERS))
def test_known_labels_come_back_and_unknown_ones_have_no_class(labels: list[Any]) -> None:
    kind = np.int64 if all(isinstance(v, int) for v in labels) else object
    given_labels = np.array(labels, dtype=kind)
    codes, classes = encode_classes(given_labels)
    for label, code in zip(labels, codes.tolist(), strict=True):
        assert (code == -1) == (label in (None, "", -1))
        assert code == -1 or classes[code] == label
    assert sorted(classes.tolist()) == classes.tolist()
    assert np.array_equal(codes_of(given_labels, classes), codes)


@pytest.mark.parametrize(
    ("values", "answer"),
    [
        ([0.5, 1.0], "continuous values such as 0.5"),
        ([np.inf, 1.0], "continuous"),
        ([[1], [2]], r"shape \(2, 1\)"),
        (np.array([1, "a"], dtype=object), "str.*the number 1"),
        (["a", 1], "str.*the number 1"),
        (np.array([(1, 2), None], dtype=object), "tuple"),
        (np.array(["2020-01-01"], dtype="datetime64[D]"), "datetime64"),
    ],
)
def test_what_cannot_be_a_class_is_refused(values: Any, answer: str) -> None:
    with pytest.raises(TaskError, match=answer):
        encode_classes(values)


def test_a_class_that_is_not_there_answers_with_its_nearest_neighbor() -> None:
    _, classes = encode_classes(["apple", "pear"])
    with pytest.raises(TaskError, match=r"label 'aple' in row 1 .* did you mean 'apple'"):
        codes_of(["pear", "aple", ""], classes)


@pytest.mark.parametrize("unknown", [float("nan"), -1, np.int64(-1), None, ""], ids=repr)
@pytest.mark.parametrize("kind", [list, tuple, lambda v: np.array(v, dtype=object)])
def test_what_is_unknown_beside_texts_is_no_class(unknown: Any, kind: Any) -> None:
    codes, classes = encode_classes(kind(["b", unknown, "a"]))
    assert classes.tolist() == ["a", "b"]
    assert codes.tolist() == [1, -1, 0]


@pytest.mark.parametrize("unknown", [float("nan"), -1])
def test_an_array_in_which_the_unknown_became_a_text_is_refused_with_the_fix(unknown: Any) -> None:
    with pytest.raises(
        TaskError, match=r"row 1 contains the string '(nan|-1)'.* None .*dtype=object"
    ):
        encode_classes(np.array(["b", unknown, "a"]))


def test_texts_that_look_like_numbers_are_classes() -> None:
    for values in (["-1", "1", "nan"], np.array(["-1", "1", "nan"])):
        assert encode_classes(values)[1].tolist() == ["-1", "1", "nan"]


def test_large_integers_beside_unknown_labels_stay_different_classes() -> None:
    labels = [None, 2**53, 2**53 + 1, np.uint64(5), -(2**63), 2**63 - 1]
    codes, classes = encode_classes(labels)
    assert classes.tolist() == [-(2**63), 5, 2**53, 2**53 + 1, 2**63 - 1]
    assert codes.tolist() == [-1, 2, 3, 1, 0, 4]


@pytest.mark.parametrize(
    "values",
    [
        [None, 10**19, 5],
        [None, -(2**63) - 1],
        [None, 10**400, 1.0],
        [None, 10**5000],
        [None, 2**53, 2**53 + 1, 1.0],
        [float("nan"), 2**53, 2**53 + 1],
        np.array([1e19, 1.0]),
    ],
)
def test_integers_that_could_become_equal_or_negative_are_refused(values: Any) -> None:
    with pytest.raises(TaskError, match="label"):
        encode_classes(values)
