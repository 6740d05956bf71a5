"""Weighted sums over compressed rows, by the native core and by torch."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from unimp.ops import native
from unimp.ops.row_sums import sum_columns, sum_rows
from unimp.ops.weighted_sum import sparse_product

ROWS, COLUMNS, ENTRIES = 1500, 700, 9000  # more than 1,024 rows are divided among threads
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}

needs_core = pytest.mark.skipif(not native.available(), reason="the native core is not built")


@pytest.fixture(params=[pytest.param("native", marks=needs_core), "torch"])
def core(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What computes the sums: the native core or torch."""
    if request.param == "torch":
        monkeypatch.setattr(native, "available", lambda: False)
    name: str = request.param
    return name


@pytest.fixture
def instruction_sets() -> Iterator[tuple[str, ...]]:
    best = native.instruction_set()
    yield native.INSTRUCTION_SETS[: native.INSTRUCTION_SETS.index(best) + 1]
    native.limit_instruction_set(best)


def some_rows(dtype: torch.dtype = torch.int32) -> tuple[Tensor, Tensor, Tensor]:
    """Row pointers, columns and rows of random entries; row 7 is empty, row 9 has many."""
    draw = torch.Generator().manual_seed(0)
    row = torch.randint(ROWS, (ENTRIES,), generator=draw)
    row[row == 7] = 9
    row[: ENTRIES // 20] = 9
    row = row.sort().values
    indptr = torch.zeros(ROWS + 1, dtype=dtype)
    indptr[1:] = torch.bincount(row, minlength=ROWS).cumsum(0)
    return indptr, torch.randint(COLUMNS, (ENTRIES,), generator=draw).to(dtype), row


def draw(*shape: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize(("heads", "width"), [(1, 1), (1, 37), (2, 16), (3, 200)])
def test_sums_of_rows_equal_their_definition(
    core: str, heads: int, width: int, index: torch.dtype, dtype: torch.dtype
) -> None:
    indptr, column, row = some_rows(index)
    dense, weight = draw(COLUMNS, heads, width), draw(ENTRIES, heads, seed=2)
    slot = torch.randperm(ENTRIES, generator=torch.Generator().manual_seed(3)).to(index)
    row_factor, column_factor = draw(ROWS, seed=4), draw(COLUMNS, seed=5)
    dense = dense.to(dtype).double()  # the operands are rounded to dtype
    every = (weight[slot.long()] * column_factor[column.long(), None])[..., None]
    expected = torch.zeros(ROWS, heads, width, dtype=torch.float64)
    expected.index_add_(0, row, every * dense[column.long()])
    expected *= row_factor[:, None, None]
    found = sum_rows(
        indptr,
        column,
        weight,
        dense.to(dtype),
        slot=slot,
        row_factor=row_factor,
        column_factor=column_factor,
    )
    assert found.dtype == dtype
    scale = float(expected.abs().max())
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=TOLERANCE[dtype] * scale)


def test_omitted_weights_and_factors_are_one(core: str) -> None:
    indptr, column, row = some_rows()
    dense = draw(COLUMNS, 5)
    expected = torch.zeros(ROWS, 5, dtype=torch.float64).index_add_(0, row, dense[column.long()])
    torch.testing.assert_close(sum_rows(indptr, column, None, dense), expected)


def test_rows_may_be_slices_of_wider_rows(core: str) -> None:
    indptr, column, _ = some_rows()
    wide, weight = draw(COLUMNS, 3, 24), draw(ENTRIES, 3)
    for part in (wide[:, :, 4:9], wide.transpose(1, 2)[:, :3], wide[::2].repeat(2, 1, 1)):
        expected = sum_rows(indptr, column, weight, part.contiguous())
        assert torch.equal(sum_rows(indptr, column, weight, part), expected)
    narrow = wide[:, 0, 4:9]
    expected = sum_rows(indptr, column, None, narrow.contiguous())
    assert torch.equal(sum_rows(indptr, column, None, narrow), expected)


@pytest.mark.parametrize("width", [1, 16, 37])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_sums_of_columns_equal_their_definition(core: str, width: int, dtype: torch.dtype) -> None:
    indptr, column, row = some_rows()
    weight, dense = draw(ENTRIES).to(dtype), draw(ROWS, width, seed=2).to(dtype)
    found = sum_columns(indptr, column, weight, dense, COLUMNS + 3)
    expected = torch.zeros(COLUMNS + 3, width, dtype=torch.float64)
    expected.index_add_(0, column.long(), (weight[:, None] * dense[row]).double())
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=100 * TOLERANCE[dtype])


def test_no_entries_give_zeros(core: str) -> None:
    indptr, column = torch.zeros(4, dtype=torch.int32), torch.empty(0, dtype=torch.int32)
    assert torch.equal(
        sum_rows(indptr, column, torch.empty(0), torch.ones(2, 5)), torch.zeros(3, 5)
    )
    sums = sum_columns(indptr, column, torch.empty(0), torch.ones(3, 5), 2)
    assert torch.equal(sums, torch.zeros(2, 5))


@needs_core
def test_results_do_not_depend_on_threads(instruction_sets: tuple[str, ...]) -> None:
    indptr, column, _ = some_rows()
    dense, weight = draw(COLUMNS, 2, 37).float(), draw(ENTRIES, 2).float()
    grad, before = draw(ROWS, 70).float(), torch.get_num_threads()
    for name in instruction_sets:
        native.limit_instruction_set(name)
        found = []
        for threads in (1, 3):
            torch.set_num_threads(threads)
            try:
                sums = sum_rows(indptr, column, weight, dense)
                found.append((sums, sum_columns(indptr, column, weight[:, 0], grad, COLUMNS)))
            finally:
                torch.set_num_threads(before)
        assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@needs_core
def test_instruction_sets_agree(instruction_sets: tuple[str, ...]) -> None:
    indptr, column, _ = some_rows()
    dense, weight = draw(COLUMNS, 2, 37).float(), draw(ENTRIES, 2).float()
    grad, found = draw(ROWS, 70).float(), []
    for name in instruction_sets:
        assert native.limit_instruction_set(name) == name
        sums = sum_rows(indptr, column, weight, dense)
        found.append((sums, sum_columns(indptr, column, weight[:, 0], grad, COLUMNS)))
    for other in found[1:]:
        for one, same in zip(found[0], other, strict=True):
            torch.testing.assert_close(same, one, rtol=0, atol=1e-4)


def test_gradients_of_a_sparse_product_equal_finite_differences(core: str) -> None:
    indptr, column = torch.tensor([0, 2, 2, 5]), torch.tensor([1, 3, 0, 3, 3])
    value, table = draw(5), draw(4, 6).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: sparse_product(indptr, column, value, t), (table,))
    # The values can have a gradient, too.
    both = (value.requires_grad_(), table)
    assert torch.autograd.gradcheck(lambda v, t: sparse_product(indptr, column, v, t), both)
