"""One layer's bipartite adjacency."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from unimp.graph.csr import group, row_of_entry


@dataclass(frozen=True)
class Transpose:
    """The same edges, grouped by source: what a backward pass walks over."""

    indptr: Tensor  # [sources+1]
    target: Tensor  # [E]
    slot: Tensor  # [E] where each edge stands in the hop it came from


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

    @cached_property
    def target(self) -> Tensor:
        """The target of each edge: [E]."""
        return row_of_entry(self.indptr)

    @cached_property
    def transpose(self) -> Transpose:
        indptr, slot = group(self.source, self.num_sources)
        return Transpose(indptr=indptr, target=self.target[slot.long()], slot=slot)

    def without_edge_attr(self) -> Hop:
        """The same edges for a model that takes no edge features."""
        if self.edge_attr is None:
            return self
        return Hop(self.indptr, self.source, self.num_sources)

    def to(self, device: torch.device | str) -> Hop:
        if torch.device(device) == self.source.device:
            return self
        return Hop(
            self.indptr.to(device),
            self.source.to(device),
            self.num_sources,
            None if self.edge_attr is None else self.edge_attr.to(device),
        )
