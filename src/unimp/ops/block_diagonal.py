"""One matrix for all heads, from a block for each: the edge encoder of `ops/layer.py`."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


def block_diagonal(blocks: Tensor, heads: int, *, across: bool = False) -> Tensor:
    """Blocks along the diagonal of one matrix, zeros elsewhere.

    Blocks lie under one another, [H·R, C] → [H·R, H·C]; or, `across`, beside one another, [R, H·C].
    """
    rows, columns = blocks.shape
    whole = blocks.repeat(heads, 1) if across else blocks.repeat(1, heads)
    block = (rows, columns // heads) if across else (rows // heads, columns)
    return whole.mul_(_diagonal(heads, *block, whole.dtype, whole.device))


@cache
@torch.inference_mode(False)
def _diagonal(
    heads: int, rows: int, columns: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Ones where the blocks are."""
    block = torch.ones(rows, columns, dtype=dtype, device=device)
    return torch.kron(torch.eye(heads, dtype=dtype, device=device), block)


def blocks(matrix: Tensor, heads: int) -> Tensor:
    """The diagonal blocks of a matrix [H·R, H·C]: [H, R, C]."""
    rows, columns = matrix.shape[0] // heads, matrix.shape[1] // heads
    each = matrix.view(heads, rows, heads, columns)
    return each.diagonal(dim1=0, dim2=2).permute(2, 0, 1)
