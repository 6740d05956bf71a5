"""The numbers behind the charts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, roc_auc_score

from unimp.inference.reliability import BINS, reliability
from unimp.report.measures import (
    auc_by_task,
    bin_names,
    confusion,
    doubling_edges,
    likeliest_is_right,
    share_of_surest,
    wilson,
)


def test_confidence_that_equals_accuracy_has_no_calibration_error() -> None:
    found = reliability(np.full(10, 0.8), np.arange(10) < 8)
    assert found.error == pytest.approx(0)
    assert found.count.sum() == 10


def test_the_calibration_error_weighs_bins_by_their_nodes() -> None:
    sure, right = np.array([1.0, 1.0, 1.0, 0.5]), np.array([1, 1, 0, 1])
    expected = 3 / 4 * abs(2 / 3 - 1) + 1 / 4 * abs(1 - 0.5)
    assert reliability(sure, right).error == pytest.approx(expected)


def test_a_probability_of_one_is_in_the_last_bin() -> None:
    count = reliability(np.array([0.0, 1.0]), np.array([0, 1])).count
    assert count[0] == 1
    assert count[BINS - 1] == 1


def test_without_nodes_there_is_no_calibration_error() -> None:
    assert math.isnan(reliability(np.array([]), np.array([])).error)


def test_the_wilson_interval_equals_textbook_values() -> None:
    assert wilson(0.5, 100) == pytest.approx((0.4038, 0.5962), abs=1e-4)
    assert wilson(1.0, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)
    assert wilson(0.0, 0) == (0.0, 1.0)


def test_bins_double_and_the_last_one_is_not_nearly_empty() -> None:
    values = np.array([0] * 50 + [1] * 50 + [2, 3] * 20 + [5] * 30 + [100] * 3)
    edges = doubling_edges(values)
    assert edges == [0, 1, 2, 4]


def test_bins_are_named_by_their_ends() -> None:
    assert bin_names([0, 1, 2, 4, 9], "{} or more") == ["0", "1", "2–3", "4–8", "9 or more"]


def test_there_are_at_most_ten_bins() -> None:
    assert len(doubling_edges(np.full(100, 10**6))) == 10


def test_shares_start_with_the_most_confident_and_end_with_all_nodes() -> None:
    points = share_of_surest(np.array([0.9, 0.1, 0.8, 0.4]), np.array([1, 0, 1, 1]), steps=4)
    assert points == [(0.25, 1.0), (0.5, 1.0), (0.75, 1.0), (1.0, 0.75)]
    assert share_of_surest(np.array([]), np.array([])) == []


def test_the_first_share_contains_several_nodes() -> None:
    sure = np.linspace(1, 0, 100)
    points = share_of_surest(sure, np.arange(100) < 50, fewest=10)
    assert points[0] == (0.1, 1.0)
    assert points[-1] == (1.0, 0.5)
    assert share_of_surest(sure[:4], np.ones(4), fewest=10) == [(1.0, 1.0)]


def test_confusions_and_areas_agree_with_scikit_learn() -> None:
    draw = np.random.default_rng(0)
    label, guess = draw.integers(4, size=200), draw.integers(4, size=200)
    assert np.array_equal(confusion(label, guess, 4), confusion_matrix(label, guess))
    labels, chances = draw.integers(2, size=(200, 3)).astype(np.int8), draw.random((200, 3))
    labels[:, 2] = 1  # only one class: undefined
    areas = auc_by_task(chances, labels)
    for t in (0, 1):
        assert areas[t] == pytest.approx(roc_auc_score(labels[:, t], chances[:, t]))
    assert math.isnan(areas[2])


def test_nodes_without_a_positive_label_do_not_count() -> None:
    labels = np.array([[1, 0], [0, 0], [0, 1]], dtype=np.int8)
    some, right = likeliest_is_right(np.array([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1]]), labels)
    assert some.tolist() == [True, False, True]
    assert right.tolist() == [True, False]
