"""Columns that determine the label are found; honest ones, however strong, are not."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unimp.data.tables.checking import read_rows
from unimp.data.tables.guessing import Guess, guess
from unimp.data.tables.leakage import leaking_columns
from unimp.data.tables.summary import cautions
from unimp.data.tables.table import Table
from unimp.data.tables.transforms import Layout

COUNT = 120
DRAW = np.random.default_rng(0)
NUMBER = DRAW.integers(0, 3, COUNT)
LABEL = np.array(["red", "green", "blue"], dtype=object)[NUMBER]
KNOWN = np.where(DRAW.random(COUNT) < 0.7, LABEL, None)
ENDS = DRAW.integers(0, COUNT, (2, 300))

LEAKS: dict[str, Any] = {
    "copy": LABEL,
    "code": NUMBER * 10 + 7,
    "code as a float": NUMBER / 4,
    "copy with gaps": np.where(DRAW.random(COUNT) < 0.3, None, LABEL),
    "subclass": [f"{name} {n}" for name, n in zip(LABEL, DRAW.integers(0, 3, COUNT), strict=True)],
    "one-hot": (NUMBER == 1).astype(float),
    "true or false": NUMBER == 2,
    "filled in for one class": np.where(NUMBER == 0, DRAW.integers(1, 9, COUNT), None),
    "vector": [[float(n == c) for c in range(3)] for n in NUMBER],
}
HONEST: dict[str, Any] = {
    "key": [f"k{n}" for n in range(COUNT)],
    "strong": NUMBER + 0.1 * DRAW.normal(size=COUNT),
    "strong but not exact": np.where(np.arange(COUNT) % 12 == 0, 0, NUMBER),
    "random": DRAW.integers(0, 2, COUNT),
    "family": np.arange(COUNT) // 2,
    "embedding": [[*row] for row in DRAW.normal(size=(COUNT, 4))],
    "confidence": DRAW.random(COUNT),  # not beside a column of predictions
}


def guessed(columns: dict[str, Any]) -> Guess:
    nodes = {"id": [f"n{i}" for i in range(COUNT)], "label": KNOWN, **columns}
    edges = {"source": [f"n{i}" for i in ENDS[0]], "target": [f"n{i}" for i in ENDS[1]]}
    return guess(Table("nodes", pa.table(nodes)), Table("edges", pa.table(edges)))


def checked(columns: dict[str, Any], features: dict[str, str]) -> str:
    nodes = {"id": [f"n{i}" for i in range(COUNT)], "label": KNOWN, **columns}
    edges = {"source": [f"n{i}" for i in ENDS[0]], "target": [f"n{i}" for i in ENDS[1]]}
    rows = read_rows(nodes, edges, Layout(label="label", features=features))
    return "\n".join(cautions(rows, rows.split(0)))


@pytest.mark.parametrize("column", LEAKS)
def test_a_column_that_determines_the_label_is_left_out_and_reported(column: str) -> None:
    columns = {column: LEAKS[column], "age": DRAW.random(COUNT)}
    found = guessed(columns)
    assert column not in found.layout.features
    assert column in found.left_out
    assert any(column in caution for caution in found.cautions)
    assert "age" in found.layout.features
    kind = {"vector": "vector"}.get(column, "categorical")
    assert f"the column {column} seems to contain the answer" in checked(columns, {column: kind})


@pytest.mark.parametrize("column", HONEST)
def test_an_honest_column_is_kept(column: str) -> None:
    assert not guessed({column: HONEST[column]}).cautions
    kind = {"embedding": "vector", "key": "text"}.get(column, "numeric")
    assert "seems to contain the answer" not in checked({column: HONEST[column]}, {column: kind})


def test_columns_of_predictions_are_left_out() -> None:
    chances = DRAW.dirichlet([1, 1, 1], COUNT)
    columns = {
        "prediction": DRAW.choice(["red", "green", "blue"], COUNT),
        "confidence": chances.max(1),
        **{f"p_{name}": chances[:, c] for c, name in enumerate(("red", "green", "blue"))},
        "p_value": DRAW.random(COUNT),
    }
    found = guessed(columns)
    assert set(found.layout.features) == {"p_value"}
    assert len(found.cautions) == 5
    kinds = dict.fromkeys(columns, "numeric") | {"prediction": "categorical"}
    assert checked(columns, kinds).count("seems to contain the answer") == 5


def test_a_copy_of_a_binary_task_is_found() -> None:
    labels = DRAW.integers(-1, 2, (COUNT, 3)).astype(np.int8)
    values = {"copy": labels[:, 1].astype(float), "other": DRAW.integers(0, 2, COUNT) * 1.0}
    found = leaking_columns(values, labels, ("a", "b", "c"))
    assert set(found) == {"copy"}


def test_few_known_labels_are_no_evidence() -> None:
    labels = np.array([0, 1, 0, 1, 1, 0, 1, 0])
    assert not leaking_columns({"same": labels.astype(float)}, labels, ("a", "b"))


@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(60, 400),
    classes=st.integers(2, 6),
    values=st.integers(2, 8),
)
def test_random_columns_are_never_left_out_and_their_codes_always(
    seed: int, count: int, classes: int, values: int
) -> None:
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, classes, count)
    columns = {f"random {n}": draw.integers(0, values, count) * 1.0 for n in range(20)}
    columns["code"] = draw.permutation(classes)[labels] * 1.5
    found = leaking_columns(columns, labels, [f"class {c}" for c in range(classes)])
    assert set(found) == {"code"}
