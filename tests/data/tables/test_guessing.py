"""Which columns of edges are the ends, if several contain ids."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unimp.data.tables.guessing import Guess, guess
from unimp.data.tables.table import Table

COUNT = 200
DRAW = np.random.default_rng(0)
NODES = pa.table({"id": np.arange(COUNT), "size": DRAW.normal(size=COUNT)})


def guessed(edges: dict[str, Any]) -> Guess:
    return guess(Table("nodes", NODES), Table("edges", pa.table(edges)))


def ends_of(found: Guess) -> tuple[str, str]:
    return found.layout.source, found.layout.target


SENDER, RECEIVER = DRAW.integers(0, COUNT, (2, 150))


def test_a_row_number_is_not_an_end() -> None:
    for name in ("row", "", "x"):
        found = guessed({name: np.arange(150), "sender": SENDER, "receiver": RECEIVER})
        assert ends_of(found) == ("sender", "receiver")
        assert any("all contain ids" in caution for caution in found.cautions)


@pytest.mark.parametrize("name", ["amount", "weight", "totalAmount", "hours", "x"])
def test_an_amount_is_not_an_end(name: str) -> None:
    amount = DRAW.integers(0, 50, 150)
    found = guessed({name: amount, "sender": SENDER, "receiver": RECEIVER})
    assert ends_of(found) == ("sender", "receiver")
    (caution,) = found.cautions
    for column in (name, "sender", "receiver"):
        assert column in caution


def test_one_end_and_a_row_number_are_not_a_pair() -> None:
    other = [f"item {n}" for n in RECEIVER]
    assert not guessed({"row": np.arange(150), "user": SENDER, "item": other}).joins


def test_a_path_whose_ends_count_by_one_is_joined() -> None:
    found = guessed({"p": np.arange(150), "q": np.arange(1, 151)})
    assert ends_of(found) == ("p", "q")
    assert found.joins
    assert not found.cautions


def test_ends_with_usual_names_need_no_caution() -> None:
    found = guessed({"weight": SENDER, "source": SENDER, "target": RECEIVER})
    assert ends_of(found) == ("source", "target")
    assert not found.cautions


@given(
    order=st.permutations(["amount", "row", "sender", "receiver", "year"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_in_any_order_of_columns_the_ends_are_found(order: list[str], seed: int) -> None:
    draw = np.random.default_rng(seed)
    columns = {
        "amount": draw.integers(0, COUNT, 150),
        "row": np.arange(150),
        "sender": SENDER,
        "receiver": RECEIVER,
        "year": draw.integers(0, 100, 150),
    }
    found = guessed({name: columns[name] for name in order})
    assert set(ends_of(found)) == {"sender", "receiver"}
    assert found.cautions


def test_the_work_grows_with_the_number_of_columns_and_not_with_its_square(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listed = 0
    columns = Table.columns.fget  # type: ignore[attr-defined]

    def counted(table: Table) -> list[str]:
        nonlocal listed
        names: list[str] = columns(table)
        listed += len(names)
        return names

    monkeypatch.setattr(Table, "columns", property(counted))
    nodes = {f"g{n}": DRAW.integers(0, 9, 30) for n in range(300)}
    nodes = {"id": np.arange(30), "label": DRAW.integers(0, 2, 30), **nodes}
    ends = DRAW.integers(0, 30, (2, 40))
    edges = {"source": ends[0], "target": ends[1]}
    guess(Table("nodes", pa.table(nodes)), Table("edges", pa.table(edges)))
    assert 0 < listed < 20 * len(nodes)
