"""Dropout that is also fast on CPU, and that can be drawn per node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor
from torch.nn import functional as F

from unimp.errors import ModelError
from unimp.ops.hashing import hashed, signed

BITS = 16
"""Bits that decide about one entry: a rate is exact to 1/65536."""


def dropout(
    x: Tensor, rate: float, training: bool, entries: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    """Zero each entry with probability `rate` and scale the others by 1/(1−rate).

    On CPU, torch draws one random number per entry in one thread, which was the slowest step of an
    epoch. Sixteen bits are enough there, so one 64-bit number decides for four entries. Inside of
    `drawn_per_node`, numbers are hashes of nodes. If x contains the entries of compressed rows,
    `entries` are the row pointers and the columns.
    """
    if not training or rate == 0.0:
        return x
    if not 0.0 < rate < 1.0:
        raise ModelError(f"the dropout rate must be at least 0 and less than 1, not {rate}")
    draws = _per_node.get()
    if draws is None and x.device.type != "cpu":
        return F.dropout(x, rate, training=True)
    if draws is None:
        count = x.numel()
        bits = torch.randint(-(2**63), 2**63 - 1, ((count + 3) // 4,)).view(torch.int16)[:count]
    else:
        bits = draws.rows(x) if entries is None else draws.entries(*entries)
    kept = (bits >= round(rate * 2**BITS) - 2 ** (BITS - 1)).view(x.shape)
    return torch.where(kept, x * (1.0 / (1.0 - rate)), 0.0)


@contextmanager
def drawn_per_node(nodes: Tensor, seed: int) -> Iterator[None]:
    """Draw dropout as a function of (seed, number of the call, node, column) in this block.

    Row i of every x belongs to nodes[i]. What is dropped of a node then does not depend on the
    other nodes of a batch, so several processes drop the same entries as one process.
    """
    token = _per_node.set(_Draws(nodes, seed))
    try:
        yield
    finally:
        _per_node.reset(token)


class _Draws:
    """Random bits per node; each call draws others."""

    def __init__(self, nodes: Tensor, seed: int) -> None:
        self._nodes, self._seed, self._calls = nodes, seed, 0

    def rows(self, x: Tensor) -> Tensor:
        """Sixteen bits per entry of x."""
        columns = x[0].numel() if len(x) else 1
        words = torch.arange((columns + 3) // 4, device=x.device)
        keys = self._keys(self._nodes[: len(x)])
        drawn = hashed(keys[:, None] + words * signed(0x9E3779B97F4A7C15))
        return drawn.view(torch.int16)[:, :columns]

    def entries(self, indptr: Tensor, column: Tensor) -> Tensor:
        """Sixteen bits per entry of compressed rows."""
        counts = (indptr[1:] - indptr[:-1]).long()
        nodes = self._nodes[: len(counts)]
        keys = self._keys(nodes).repeat_interleave(counts, output_size=len(column))
        drawn = hashed(keys + column.long() * signed(0x9E3779B97F4A7C15))
        return drawn.view(torch.int16)[::4]

    def _keys(self, nodes: Tensor) -> Tensor:
        """A number per node that differs from call to call."""
        self._calls += 1
        return hashed(nodes.long() + signed(self._seed + self._calls * 0xD1B54A32D192ED03))


_per_node: ContextVar[_Draws | None] = ContextVar("draws per node", default=None)
