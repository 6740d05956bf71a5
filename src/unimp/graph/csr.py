"""Compressed sparse rows (CSR): group entries by a key and select rows, in linear time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Places = npt.NDArray[np.int64]


FEW = 4096
"""Up to this number of keys, sorting with torch is faster than creating a scipy matrix."""


def index_dtype(largest: int) -> torch.dtype:
    """int32 if `largest` fits, else int64: indices are most of the memory of a graph."""
    return torch.int32 if largest <= torch.iinfo(torch.int32).max else torch.int64


def group(keys: Tensor, num_groups: int) -> tuple[Tensor, Tensor]:
    """Sort positions by key; positions with equal keys keep their order.

    Returns `indptr` [num_groups+1] and `order` [len(keys)]: the positions of group g are
    order[indptr[g]:indptr[g+1]], in ascending order.
    """
    count = keys.numel()
    dtype = index_dtype(max(count, num_groups))
    if keys.device.type != "cpu" or count <= FEW:
        order = torch.argsort(keys, stable=True).to(dtype)
        counts = torch.bincount(keys, minlength=num_groups)
        indptr = torch.zeros(num_groups + 1, dtype=dtype, device=keys.device)
        indptr[1:] = counts.cumsum(0)
        return indptr, order
    import scipy.sparse as sp  # here, because scipy would take a fifth of `import unimp`

    # Converting CSR with one entry per row to CSC is a counting sort: O(E); argsort: O(E log E).
    ones = np.ones(count, dtype=np.int8)
    index = keys.numpy()
    rows = sp.csr_array(
        (ones, index, np.arange(count + 1, dtype=index.dtype)), shape=(count, num_groups)
    )
    columns = rows.tocsc()
    return torch.from_numpy(columns.indptr).to(dtype), torch.from_numpy(columns.indices).to(dtype)


def pick_rows(indptr: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Select the entries of some rows, row after row.

    Returns `picked_indptr` [len(rows)+1] and `positions`, the positions of the selected entries in
    the arrays that `indptr` describes.
    """
    rows = rows.long()
    start = indptr[rows].long()
    length = indptr[rows + 1].long() - start
    picked = torch.zeros(rows.numel() + 1, dtype=torch.int64, device=indptr.device)
    torch.cumsum(length, 0, out=picked[1:])
    total = int(picked[-1])
    # A position is the start of the row plus the offset within the row.
    positions = torch.repeat_interleave(start - picked[:-1], length, output_size=total)
    positions += torch.arange(total, device=indptr.device)
    return picked.to(index_dtype(max(total, rows.numel()))), positions


def pick_entries(indptr: Places, rows: Places) -> tuple[Places, Places]:
    """Return the number of entries of some rows, and the positions of the entries.

    Like `pick_rows`, for the few rows that a change affects: starting threads for these, as torch
    does, would take longer than the work.
    """
    start = indptr[rows]
    count = indptr[rows + 1] - start
    end = np.cumsum(count)
    total = int(end[-1]) if len(end) else 0
    return count, np.repeat(start - end + count, count) + np.arange(total)


def row_of_entry(indptr: Tensor) -> Tensor:
    """The row each entry belongs to: [entries]."""
    rows = torch.arange(indptr.numel() - 1, dtype=indptr.dtype, device=indptr.device)
    return torch.repeat_interleave(
        rows, (indptr[1:] - indptr[:-1]).long(), output_size=int(indptr[-1])
    )
