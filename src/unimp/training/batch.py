"""One shape for the batches of all regimes: seeds, the nodes around them, and hops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from unimp.graph.features import Features
from unimp.graph.hop import Hop, is_on


@dataclass(frozen=True, eq=False)
class Batch:
    """The input of one step: nodes, seeds first, and one hop per layer.

    The model's logits belong to nodes[:num_seeds]. `observed` contains the labels that the model
    may see, and UNLABELED elsewhere. `hidden` contains the rows of the seeds to predict. It is a
    list of rows instead of a mask, so that its length is known without waiting for a GPU.
    """

    nodes: Tensor  # [n] node numbers
    num_seeds: int
    x: Features | None  # [n, F]
    observed: Tensor  # [n] or [n, T]
    hidden: Tensor  # rows among the seeds
    hops: tuple[Hop, ...]
    draws: int | None = None  # the seed of dropout that is drawn per node; None: per entry
    hidden_of_all: int | None = None  # hidden nodes of all processes; None: len(hidden)

    @property
    def num_hidden(self) -> int:
        """The number of hidden nodes in this step, summed over all processes."""
        return self.hidden.numel() if self.hidden_of_all is None else self.hidden_of_all

    @property
    def seeds(self) -> Tensor:
        return self.nodes[: self.num_seeds]

    def to(self, device: torch.device | str) -> Batch:
        if is_on(self.nodes, device):
            return self
        # Layers that share one hop, and its transpose, must still share it after the move.
        moved = {id(hop): hop.to(device) for hop in self.hops}
        return Batch(
            self.nodes.to(device),
            self.num_seeds,
            None if self.x is None else self.x.to(device),
            self.observed.to(device),
            self.hidden.to(device),
            tuple(moved[id(hop)] for hop in self.hops),
            self.draws,
            self.hidden_of_all,
        )


class Batches(Protocol):
    """A regime: a way to divide the nodes of each epoch into batches."""

    def epoch(self, epoch: int, begin: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, starting with batch number `begin`."""
        ...
