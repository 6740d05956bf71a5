"""Compute everything again after a change, for models that do not run layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from unimp.graph.graph import Graph, checked_numbers
from unimp.inference.incremental.changes import Change, Update, checked_change, limits_of, nothing
from unimp.tasks.labels import UNLABELED


class FullRecomputation:
    """Compute everything again after each change: equal to a cold prediction bit by bit.

    scores: returns the scores [N, classes] of all nodes of a graph, given observed labels.
    """

    def __init__(
        self,
        scores: Callable[[Graph, Tensor], Tensor],
        graph: Graph,
        observed: Tensor,
        num_classes: int,
    ) -> None:
        self._scores, self.graph, self.observed = scores, graph, observed.clone()
        self._num_classes = num_classes

    @cached_property
    def logits(self) -> Tensor:
        return self._scores(self.graph, self.observed)

    @cached_property
    def without_labels(self) -> Tensor:
        return self._scores(self.graph, torch.full_like(self.observed, UNLABELED))

    def after(self, changes: Sequence[Change], targets: Sequence[Tensor]) -> list[Tensor]:
        answers = []
        for change, wanted in zip(changes, targets, strict=True):
            graph, observed = self._changed(change)
            nodes = checked_numbers(wanted, graph.num_nodes)
            scores = self.logits if change.is_empty else self._scores(graph, observed)
            answers.append(scores[nodes])
        return answers

    @property
    def is_local(self) -> bool:
        return False

    def prepare(self, change: Change, between: Callable[[], None] = nothing) -> Update:
        graph, observed = self._changed(change)
        before, scores = self.logits, self._scores(graph, observed)
        more = before.new_full((len(scores) - len(before), before.shape[1]), torch.nan)
        before = torch.cat((before, more))
        nodes = torch.nonzero(scores.ne(before).any(1)).squeeze(1)

        def apply() -> None:
            self.graph, self.observed = graph, observed
            self.__dict__.pop("without_labels", None)
            self.__dict__["logits"] = scores

        return Update(nodes, before[nodes], scores[nodes], apply)

    def commit(self, change: Change, between: Callable[[], None] = nothing) -> Update:
        return self.prepare(change, between).applied()

    def _changed(self, change: Change) -> tuple[Graph, Tensor]:
        limits = limits_of(self.graph, self.observed, self._num_classes)
        change = checked_change(change, limits)
        return change.graph_from(self.graph), change.labels_from(self.observed)
