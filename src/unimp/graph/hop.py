"""One layer's bipartite adjacency."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from unimp.graph.csr import group, row_of_entry


class Schedule(NamedTuple):
    """Rows cut into pieces of bounded length, longest first, so that no hub keeps others waiting.

    A piece is (row, begin, end, place): entries begin to end of the row. place is −1 for a piece
    that is a whole row; the pieces of a hub are counted from 0, one hub after the other. A hub is
    (row, first place, number of pieces). A row without entries is a piece too.
    """

    pieces: Tensor  # [pieces, 4]
    hubs: Tensor  # [hubs, 3]

    def to(self, device: torch.device | str) -> Schedule:
        return Schedule(self.pieces.to(device), self.hubs.to(device))


PIECE = 512
"""The most entries of a row in one piece."""


KEPT = "kept_for_kernels"
"""Where what kernels made of a hop's edges is kept with it."""

DERIVED = {"target", "transpose", "schedule", KEPT}
"""What a hop finds out about its edges once, when it is asked."""

MOVED = {"transpose", "schedule"}
"""What of it goes along to another device."""


@dataclass(frozen=True)
class Transpose:
    """The same edges, grouped by source: what a backward pass walks over."""

    indptr: Tensor  # [sources+1]
    target: Tensor  # [E]
    slot: Tensor  # [E] where each edge stands in the hop it came from

    @cached_property
    @torch.inference_mode(False)
    def schedule(self) -> Schedule:
        return cut_rows(self.indptr)

    def to(self, device: torch.device | str) -> Transpose:
        moved = Transpose(self.indptr.to(device), self.target.to(device), self.slot.to(device))
        if "schedule" in self.__dict__:  # known already: it need not be found again
            moved.__dict__["schedule"] = self.schedule.to(device)
        return moved


@dataclass(frozen=True, eq=False)
class Hop:
    """Edges from sources to targets, grouped by target; the targets are the first sources.

    Target i receives from source[indptr[i]:indptr[i+1]]. A layer maps [num_sources, …] to
    [num_targets, …]; since targets come first among the sources, h[:num_targets] are the
    targets' own rows. A square hop (num_sources == num_targets) is a whole graph.
    """

    indptr: Tensor  # [num_targets+1]
    source: Tensor  # [E] row among the sources
    num_sources: int
    edge_attr: Tensor | None = None  # [E, d_e], in the order of `source`; None: no edge features

    @property
    def num_targets(self) -> int:
        return self.indptr.numel() - 1

    @property
    def num_edges(self) -> int:
        return self.source.numel()

    # What is kept may be used in training, which refuses tensors made in inference mode.

    @cached_property
    @torch.inference_mode(False)
    def target(self) -> Tensor:
        """The target of each edge: [E]."""
        return row_of_entry(self.indptr)

    @cached_property
    @torch.inference_mode(False)
    def transpose(self) -> Transpose:
        indptr, slot = group(self.source, self.num_sources)
        return Transpose(indptr=indptr, target=self.target[slot.long()], slot=slot)

    @cached_property
    @torch.inference_mode(False)
    def schedule(self) -> Schedule:
        return cut_rows(self.indptr)

    def with_edge_attr(self, edge_attr: Tensor | None) -> Hop:
        """The same edges with other edge features (None: for a model that takes none)."""
        if edge_attr is self.edge_attr:
            return self
        hop = Hop(self.indptr, self.source, self.num_sources, edge_attr)
        # What follows from the edges alone need not be found again.
        hop.__dict__.update({name: self.__dict__[name] for name in DERIVED & self.__dict__.keys()})
        return hop

    def to(self, device: torch.device | str) -> Hop:
        if lies_on(self.source, device):
            return self
        moved = Hop(
            self.indptr.to(device),
            self.source.to(device),
            self.num_sources,
            None if self.edge_attr is None else self.edge_attr.to(device),
        )
        for name in MOVED & self.__dict__.keys():  # known already: they need not be found again
            moved.__dict__[name] = self.__dict__[name].to(device)
        return moved


def lies_on(tensor: Tensor, device: torch.device | str) -> bool:
    """Whether a tensor lies on a device; "cuda" without a number is any of them."""
    wanted, found = torch.device(device), tensor.device
    return wanted.type == found.type and wanted.index in (None, found.index)


def cut_rows(indptr: Tensor, piece: int = PIECE) -> Schedule:
    """The rows of `indptr` in pieces of at most `piece` entries."""
    begin, length = indptr[:-1].long(), indptr.diff().long()
    count = ((length + piece - 1) // piece).clamp(min=1)  # pieces of each row
    row = torch.repeat_interleave(torch.arange(len(length), device=indptr.device), count)
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
    longest_first = torch.argsort(stop - start, descending=True, stable=True)
    return Schedule(
        pieces[longest_first].to(indptr.dtype),
        torch.stack((hubs, hub_first, count[hubs]), 1).to(indptr.dtype),
    )
