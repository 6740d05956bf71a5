"""Dropout that is also fast on CPU, and that can be drawn per node and edge."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from unimp.errors import ModelError
from unimp.graph.hop import Hop
from unimp.ops import native
from unimp.ops.hashing import hashed, signed

BITS = 16
"""Bits that decide about one entry: a rate is exact to 1/65536."""
EDGES_AT_ONCE = 1 << 18
"""How many edges are numbered at a time, because the computation takes 40 bytes per edge."""


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
    if x.device.type != "cpu" and not is_drawn_per_node():
        return F.dropout(x, rate, training=True)
    bits, least, factor = draw_bits(x, rate, entries)
    if _is_native(x):
        dropped: Tensor = _Dropout.apply(x, bits, least, factor)  # type: ignore[no-untyped-call]
        return dropped
    return dropped_by(x, bits, least, factor)


def dropout_of_edges(x: Tensor, rate: float, training: bool, hop: Hop) -> Tensor:
    """Apply dropout to one row per edge of a hop: [E, …]."""
    draws = _draws() if training and rate else None
    if draws is None:
        return F.dropout(x, rate, training)
    bits = draws.words(draws.edges(hop), x)
    return dropped_by(x, bits.flatten().contiguous(), *bounds(rate))


def numbered(hop: Hop, seed: Tensor | int, rate: float) -> tuple[Hop, Tensor | int]:
    """The hop and the seed from which attention dropout with this rate draws.

    Inside of `drawn_per_node`, edges get new numbers in each call, and the seed is 0, because the
    numbers already depend on the seed.
    """
    draws = _draws() if rate else None
    return (hop, seed) if draws is None else (hop.with_numbers(draws.edges(hop)), 0)


def draw_bits(
    x: Tensor, rate: float, entries: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, int, float]:
    """Draw 16 bits per entry of x.

    Returns them, the least value with which an entry is kept, and the factor of kept entries. Only
    the shape of x is used.
    """
    draws = _draws()
    if draws is None:
        count = x.numel()
        bits = torch.randint(-(2**63), 2**63 - 1, ((count + 3) // 4,)).view(torch.int16)[:count]
    else:
        drawn = draws.rows(x) if entries is None else draws.entries(*entries)
        bits = drawn.flatten().contiguous()
    return bits, *bounds(rate)


def bounds(rate: float) -> tuple[int, float]:
    """The least 16-bit value with which an entry is kept, and the factor of kept entries."""
    return round(rate * 2**BITS) - 2 ** (BITS - 1), 1.0 / (1.0 - rate)


def dropped_by(x: Tensor, bits: Tensor, least: int, factor: float) -> Tensor:
    """Apply dropout with drawn bits to x or to its gradient."""
    if _is_native(x) and not x.requires_grad:
        return native.dropout(x, bits, least, factor)
    return torch.where((bits >= least).view(x.shape), x * factor, 0.0)


def _is_native(x: Tensor) -> bool:
    is_known = x.device.type == "cpu" and x.dtype in native.DTYPES and native.available()
    return is_known and not torch.compiler.is_compiling()


class _Dropout(torch.autograd.Function):
    """Dropout by the native core; both passes compute the same function of x or its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bits: Tensor, least: int, factor: float) -> Tensor:
        ctx.save_for_backward(bits)
        ctx.least, ctx.factor = least, factor
        return native.dropout(x, bits, least, factor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        (bits,) = ctx.saved_tensors
        return native.dropout(grads[0], bits, ctx.least, ctx.factor), None, None, None


@contextmanager
def drawn_per_node(nodes: Tensor, seed: int) -> Iterator[None]:
    """Draw dropout as a function of (seed, number of the call, node, column) in this block.

    Row i of every x belongs to nodes[i]. What is dropped of a node then does not depend on the
    other nodes of a batch, so several processes drop the same entries as one process. Dropout of
    attention weights is a function of (seed, number of the call, target, source, head).
    """
    token = _per_node.set(_Draws(nodes, seed))
    _blocks.append(token)
    try:
        yield
    finally:
        _blocks.remove(token)
        _per_node.reset(token)


def is_drawn_per_node() -> bool:
    """Whether the caller is inside of `drawn_per_node`."""
    return _draws() is not None


class _Draws:
    """Random bits per node; each call draws others."""

    def __init__(self, nodes: Tensor, seed: int) -> None:
        self._nodes, self._seed, self._calls = nodes, seed, 0

    def rows(self, x: Tensor) -> Tensor:
        """Sixteen bits per entry of x."""
        return self.words(self._keys(self._nodes[: len(x)]), x)

    def words(self, keys: Tensor, x: Tensor) -> Tensor:
        """Sixteen bits per entry of x; keys[i] is the key of row i."""
        columns = x[0].numel() if len(x) else 1
        words = torch.arange((columns + 3) // 4, device=x.device)
        drawn = hashed(keys[:, None] + words * signed(0x9E3779B97F4A7C15))
        return drawn.view(torch.int16)[:, :columns]

    def edges(self, hop: Hop) -> Tensor:
        """Draw one number per edge from its target, its source and the call: [E]."""
        keys = self._keys(self._nodes[: hop.num_targets])
        numbers = keys.new_empty(hop.num_edges)
        for first in range(0, hop.num_edges, EDGES_AT_ONCE):
            part = slice(first, first + EDGES_AT_ONCE)
            sources = self._nodes.index_select(0, hop.source[part]).long()
            mixed = keys.index_select(0, hop.target[part]) + sources * signed(0x9E3779B97F4A7C15)
            numbers[part] = hashed(mixed)
        return numbers

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
_blocks: list[Token[_Draws | None]] = []
"""The blocks of `drawn_per_node` in all threads. torch.compile cannot read a context variable, so
the variable is read only if there is such a block."""


def _draws() -> _Draws | None:
    return _per_node.get() if _blocks else None
