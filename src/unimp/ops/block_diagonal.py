"""Block-diagonal matrices with one block per head, for the edge encoder of `ops/layer.py`."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


def block_diagonal(blocks: Tensor, heads: int, *, across: bool = False) -> Tensor:
    """Put blocks on the diagonal of one matrix, with zeros elsewhere: [H·R, H·C].

    The blocks are stacked vertically, [H·R, C], or horizontally if `across`, [R, H·C].
    """
    rows, columns = blocks.shape
    if across:
        block, stacked = (rows, columns // heads), blocks.view(1, rows, heads, -1)
    else:
        block, stacked = (rows // heads, columns), blocks.view(heads, -1, 1, columns)
    whole = _diagonal(heads, *block, blocks.dtype, blocks.device) * stacked
    return whole.view(heads * block[0], heads * block[1])


@cache
@torch.inference_mode(False)
def _diagonal(
    heads: int, rows: int, columns: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Ones at the entries of the blocks: [H, R, H, C]."""
    one = torch.eye(heads, dtype=dtype, device=device).view(heads, 1, heads, 1)
    return one.expand(-1, rows, -1, columns).contiguous()


def blocks(matrix: Tensor, heads: int) -> Tensor:
    """The diagonal blocks of a matrix [H·R, H·C]: [H, R, C]."""
    rows, columns = matrix.shape[0] // heads, matrix.shape[1] // heads
    each = matrix.view(heads, rows, heads, columns)
    return each.diagonal(dim1=0, dim2=2).permute(2, 0, 1)
