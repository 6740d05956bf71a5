"""One layer's bipartite adjacency."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from unimp.config.arguments import check_fields
from unimp.graph.csr import group, row_of_entry

PIECE = 512
"""The largest number of entries of a row in one piece of a `Schedule`."""


class Schedule(NamedTuple):
    """Rows cut into pieces of bounded length, longest first, so that a hub does not delay others.

    A piece is (row, begin, end, place): the entries begin to end of the row. `place` is −1 for a
    piece that is a whole row. The pieces of all hubs are numbered from 0, hub after hub. A hub is
    (row, first place, number of pieces). A row without entries is also a piece.
    """

    pieces: Tensor  # [pieces, 4]
    hubs: Tensor  # [hubs, 3]

    def to(self, device: torch.device | str) -> Schedule:
        return Schedule(self.pieces.to(device), self.hubs.to(device))


class Transpose(NamedTuple):
    """The edges of a hop grouped by source, in the order in which a backward pass reads them."""

    indptr: Tensor  # [sources+1]
    target: Tensor  # [E]
    slot: Tensor  # [E] position of each edge in the hop

    def to(self, device: torch.device | str) -> Transpose:
        return Transpose(*(array.to(device) for array in self))


@dataclass(eq=False)
class Derived:
    """Data that follows from the edges of a hop; computed on first use and then reused.

    Hops with the same edges and different edge features share one `Derived`.
    """

    target: Tensor | None = None
    transpose: Transpose | None = None
    schedule: Schedule | None = None
    source_schedule: Schedule | None = None
    kernel_edges: dict[tuple[str, bool], Any] = field(default_factory=dict)  # `fused.edges_of`

    def to(self, device: torch.device | str) -> Derived:
        """Move the expensive parts that are already known; the rest is computed there again."""
        return Derived(
            transpose=None if self.transpose is None else self.transpose.to(device),
            schedule=None if self.schedule is None else self.schedule.to(device),
            source_schedule=(
                None if self.source_schedule is None else self.source_schedule.to(device)
            ),
        )


@dataclass(frozen=True, eq=False)
class Hop:
    """Edges from sources to targets, grouped by target; the targets are the first sources.

    Target i receives from source[indptr[i]:indptr[i+1]]. A layer maps [num_sources, …] to
    [num_targets, …]. Because targets come first among the sources, h[:num_targets] are the
    targets' own rows. A square hop (num_sources == num_targets) is a whole graph.
    """

    indptr: Tensor  # [num_targets+1]
    source: Tensor  # [E] row among the sources
    num_sources: int
    edge_attr: Tensor | None = None  # [E, d_e], in the order of `source`; None: no edge features
    derived: Derived = field(default_factory=Derived, repr=False)
    numbers: Tensor | None = None  # [E] int64, for attention dropout; None: slots are used

    def __post_init__(self) -> None:
        if not (isinstance(self.indptr, Tensor) and isinstance(self.source, Tensor)):
            check_fields(self, "indptr", "source")
        if not isinstance(self.edge_attr, Tensor | None) or type(self.num_sources) is not int:
            check_fields(self, "edge_attr", "num_sources")

    @property
    def num_targets(self) -> int:
        return self.indptr.numel() - 1

    @property
    def num_edges(self) -> int:
        return self.source.numel()

    # Derived tensors are created outside inference mode, because training may reuse them and
    # refuses inference tensors.

    @property
    def target(self) -> Tensor:
        """The target of each edge: [E]."""
        if self.derived.target is None:
            with torch.inference_mode(False):
                self.derived.target = row_of_entry(self.indptr)
        return self.derived.target

    @property
    def transpose(self) -> Transpose:
        """The same edges grouped by source."""
        if self.derived.transpose is None:
            with torch.inference_mode(False):
                indptr, slot = group(self.source, self.num_sources)
                # `group` chooses the index type by size; sparse products need that of the hop.
                dtype = self.source.dtype
                target = self.target[slot.long()].to(dtype)
                self.derived.transpose = Transpose(indptr.to(dtype), target, slot.to(dtype))
        return self.derived.transpose

    @property
    def schedule(self) -> Schedule:
        """The in-edges of each target, in pieces."""
        if self.derived.schedule is None:
            with torch.inference_mode(False):
                self.derived.schedule = cut_rows(self.indptr)
        return self.derived.schedule

    @property
    def source_schedule(self) -> Schedule:
        """The out-edges of each source, in pieces: the rows of `transpose`."""
        if self.derived.source_schedule is None:
            with torch.inference_mode(False):
                self.derived.source_schedule = cut_rows(self.transpose.indptr)
        return self.derived.source_schedule

    def with_edge_attr(self, edge_attr: Tensor | None, order: Tensor | None = None) -> Hop:
        """The same edges with other edge features (None: without any).

        order: [E] the row of `edge_attr` for each edge of `source`; None: the rows have its order.
        """
        if edge_attr is not None and order is not None:
            edge_attr = edge_attr.index_select(0, order)
        if edge_attr is self.edge_attr:
            return self
        edges = self.indptr, self.source, self.num_sources
        return Hop(*edges, edge_attr, self.derived, self.numbers)

    def with_numbers(self, numbers: Tensor) -> Hop:
        """The same edges with these numbers for attention dropout."""
        return replace(self, numbers=numbers)

    def only(self, kept: Tensor) -> Hop:
        """The hop with only the edges for which `kept` [E] is true; nodes stay."""
        indptr, number = _count(kept, self.indptr)
        by_source = self.transpose
        kept_by_source = kept[by_source.slot]
        transpose = Transpose(
            _count(kept_by_source, by_source.indptr)[0],
            by_source.target[kept_by_source],
            number[by_source.slot[kept_by_source]],
        )
        return Hop(
            indptr,
            self.source[kept],
            self.num_sources,
            None if self.edge_attr is None else self.edge_attr[kept],
            Derived(transpose=transpose),
            None if self.numbers is None else self.numbers[kept],
        )

    def to(self, device: torch.device | str) -> Hop:
        if is_on(self.source, device):
            return self
        return Hop(
            self.indptr.to(device),
            self.source.to(device),
            self.num_sources,
            None if self.edge_attr is None else self.edge_attr.to(device),
            self.derived.to(device),
            None if self.numbers is None else self.numbers.to(device),
        )


def _count(kept: Tensor, indptr: Tensor) -> tuple[Tensor, Tensor]:
    """Return `indptr` of the kept entries, and the number of kept entries before each entry."""
    before = F.pad(kept.cumsum(0, dtype=indptr.dtype), (1, 0))
    return before[indptr], before[:-1]


def is_on(tensor: Tensor, device: torch.device | str) -> bool:
    """Whether a tensor is on a device; "cuda" without a number means any GPU."""
    wanted, found = torch.device(device), tensor.device
    return wanted.type == found.type and wanted.index in (None, found.index)


def cut_rows(indptr: Tensor, piece: int = PIECE) -> Schedule:
    """Cut the rows of `indptr` into pieces of at most `piece` entries."""
    begin, length = indptr[:-1].long(), indptr.diff().long()
    rows = torch.arange(len(length), device=indptr.device)
    if not len(length) or int(length.max()) <= piece:  # no hubs, as in a batch of sampled neighbors
        pieces = torch.stack((rows, begin, begin + length, torch.full_like(rows, -1)), 1)
        return Schedule(_longest_first(pieces.to(indptr.dtype), length), indptr.new_empty((0, 3)))
    count = ((length + piece - 1) // piece).clamp(min=1)  # pieces of each row
    row = torch.repeat_interleave(rows, count)
    first = count.cumsum(0) - count
    part = torch.arange(len(row), device=indptr.device) - first[row]
    start = begin[row] + part * piece
    stop = torch.minimum(start + piece, (begin + length)[row])
    is_hub = count > 1
    hubs = torch.nonzero(is_hub).squeeze(1)
    hub_first = count[hubs].cumsum(0) - count[hubs]
    place = torch.full_like(row, -1)
    place[is_hub[row]] = torch.arange(int(count[hubs].sum()), device=indptr.device)
    pieces = torch.stack((row, start, stop, place), 1)
    return Schedule(
        _longest_first(pieces.to(indptr.dtype), stop - start),
        torch.stack((hubs, hub_first, count[hubs]), 1).to(indptr.dtype),
    )


def _longest_first(pieces: Tensor, length: Tensor) -> Tensor:
    return pieces[torch.argsort(length, descending=True, stable=True)]
