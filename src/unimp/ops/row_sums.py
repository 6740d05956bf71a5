"""Weighted sums over the entries of compressed rows, by row and by column.

The native core computes them on CPU. On other devices, or without the core, torch.sparse and
index_add_ compute them.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from unimp.graph.csr import index_dtype, row_of_entry
from unimp.ops import native
from unimp.ops.fused import with_contiguous_rows

# torch warns once per process that CSR is in beta. The warning is triggered and ignored here.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch.sparse_csr_tensor([0, 1], [0], [1.0])


def sum_rows(
    indptr: Tensor,
    column: Tensor,
    weight: Tensor | None,
    dense: Tensor,
    *,
    slot: Tensor | None = None,
    row_factor: Tensor | None = None,
    column_factor: Tensor | None = None,
) -> Tensor:
    """Compute f_i Σ_k w_k c_j dense_j over the entries k of each row i, with j the column of k.

    dense [columns, D] → [rows, D], with weight w [slots]; or dense [columns, H, D] → [rows, H, D],
    with weight [slots, H]. The weight of entry k is at slot[k], or at k without `slot`.
    row_factor f [rows] and column_factor c [columns]. Arguments that are None count as 1. No
    gradients are computed.
    """
    if dense.ndim == 2:
        by_head = None if weight is None else weight[:, None]
        factors = {"row_factor": row_factor, "column_factor": column_factor}
        return sum_rows(indptr, column, by_head, dense[:, None], slot=slot, **factors).squeeze(1)
    exact = torch.promote_types(dense.dtype, torch.float32)
    numbers = (None if t is None else t.to(exact) for t in (weight, row_factor, column_factor))
    weight, row_factor, column_factor = numbers
    indptr, column = _of_one_type(indptr, column)
    if is_native(dense):
        slot = None if slot is None else slot.to(column.dtype)
        of_entries = None if weight is None else weight.contiguous()
        given = (indptr, column, of_entries, slot, row_factor, column_factor)
        return native.sum_rows(native.CompressedRows(*given), with_contiguous_rows(dense))
    if weight is None:
        weight = dense.new_ones(column.numel(), dense.shape[1], dtype=exact)
    elif slot is not None:
        weight = weight.index_select(0, slot)
    if column_factor is not None:
        weight = weight * column_factor.index_select(0, column)[:, None]
    heads = range(dense.shape[1])
    sums = [_sum_sparse(indptr, column, weight[:, h], dense[:, h].to(exact)) for h in heads]
    out = torch.stack(sums, 1)
    return (out if row_factor is None else out * row_factor[:, None, None]).to(dense.dtype)


def sum_columns(
    indptr: Tensor, column: Tensor, weight: Tensor, dense: Tensor, columns: int
) -> Tensor:
    """Compute Σ_k w_k dense_i over the entries k of each column, with i the row of k.

    weight w [entries], dense [rows, D] → [columns, D]. No gradients are computed.
    """
    indptr, column = _of_one_type(indptr, column)
    if is_native(dense) and dense.dtype == weight.dtype != torch.bfloat16:
        rows = native.CompressedRows(indptr, column, weight.contiguous())
        return native.sum_columns(rows, dense[:, None].contiguous(), columns).squeeze(1)
    out = dense.new_zeros(columns, dense.shape[1])
    rows_of_entries = dense.index_select(0, row_of_entry(indptr)) * weight[:, None]
    return out.index_add_(0, column, rows_of_entries.to(out.dtype))


def is_native(dense: Tensor) -> bool:
    """Whether the native core computes sums of these rows."""
    is_known = dense.device.type == "cpu" and dense.dtype in native.DTYPES and native.available()
    return is_known and not torch.compiler.is_compiling()


def _sum_sparse(indptr: Tensor, column: Tensor, weight: Tensor, dense: Tensor) -> Tensor:
    shape = (indptr.numel() - 1, len(dense))
    if column.numel() == 0:
        return dense.new_zeros(shape[0], dense.shape[1])
    matrix = torch.sparse_csr_tensor(indptr, column, weight.contiguous(), shape)
    if weight.device.type == "cpu":
        # torch's own row-parallel kernel; MKL's, which `@` uses, is slower with int32 indices.
        return torch.sparse.mm(matrix, dense.contiguous(), "sum")  # type: ignore[no-any-return]
    return matrix @ dense.contiguous()


def _of_one_type(indptr: Tensor, column: Tensor) -> tuple[Tensor, Tensor]:
    if indptr.dtype == column.dtype:
        return indptr, column
    dtype = index_dtype(column.numel())  # they differ if the graph is mapped from disk
    return indptr.to(dtype), column.to(dtype)
