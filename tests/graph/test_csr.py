"""Compressed rows compared with dictionaries and loops."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unimp.graph.csr import group, index_dtype, pick_rows, row_of_entry

ROWS = st.lists(st.lists(st.integers(0, 99), max_size=5), min_size=1, max_size=8)


def pointers(rows: list[list[int]]) -> torch.Tensor:
    lengths = torch.tensor([0] + [len(row) for row in rows])
    return lengths.cumsum(0).to(torch.int32)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@given(keys=st.lists(st.integers(0, 6), max_size=30))
def test_a_group_lists_the_positions_of_its_key_in_ascending_order(
    dtype: torch.dtype, keys: list[int]
) -> None:
    indptr, order = group(torch.tensor(keys, dtype=dtype), 7)
    for key in range(7):
        positions = order[indptr[key] : indptr[key + 1]].tolist()
        assert positions == [i for i, k in enumerate(keys) if k == key]
    assert indptr.dtype == order.dtype == torch.int32


@given(ROWS, st.data())
def test_picked_rows_are_concatenated(rows: list[list[int]], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=10))
    values = torch.tensor([value for row in rows for value in row], dtype=torch.int64)
    indptr, positions = pick_rows(pointers(rows), torch.tensor(chosen, dtype=torch.int64))
    got = [values[positions[a:b]].tolist() for a, b in pairwise(indptr.tolist())]
    assert got == [rows[i] for i in chosen]


@given(ROWS)
def test_row_of_entry_is_the_row_of_each_entry(rows: list[list[int]]) -> None:
    expected = [i for i, row in enumerate(rows) for _ in row]
    assert row_of_entry(pointers(rows)).tolist() == expected


def test_indices_are_int64_only_if_int32_is_too_small() -> None:
    assert index_dtype(2**31 - 1) == torch.int32
    assert index_dtype(2**31) == torch.int64
