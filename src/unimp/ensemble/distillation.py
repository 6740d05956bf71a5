"""Distillation: a student learns the answers of a teacher beside the hidden labels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from unimp.tasks.labels import mask_of


@dataclass(frozen=True, eq=False)
class Distillation:
    """The loss of a student's answers against those of its teacher.

        U = the nodes of the batch that are not in the train set

        classes        −weight / |U| Σ_{i ∈ U} Σ_c q_ic log softmax(z_i)_c
        binary tasks   the mean binary cross-entropy of sigmoid(z_it) against q_it over U, × weight

    q are the calibrated probabilities of the teacher, with train labels as inputs. Train nodes do
    not count: an observed one would be scored on an answer that the student sees, and of a hidden
    one the label itself is in the loss. Without a node of U, the loss is 0.
    """

    targets: Tensor  # [N + 1, C]: q of each node, and a row for the padding of a batch
    scored: Tensor  # [N + 1] bool: not in the train set
    weight: float
    multilabel: bool

    @classmethod
    def of(
        cls, probabilities: Tensor, train: Tensor, *, weight: float, multilabel: bool
    ) -> Distillation:
        """The loss for a teacher's probabilities [N, C], and the numbers of the train nodes."""
        targets = F.pad(probabilities.float(), (0, 0, 0, 1))
        scored = F.pad(~mask_of(train, len(probabilities)), (0, 1)).to(targets.device)
        return cls(targets, scored, weight, multilabel)

    def __call__(self, logits: Tensor, nodes: Tensor) -> Tensor:
        """The loss of logits [n, C] of the nodes [n]."""
        q, scored = self.targets[nodes], self.scored[nodes]
        if self.multilabel:
            losses = F.binary_cross_entropy_with_logits(logits, q, reduction="none").mean(1)
        else:
            losses = F.cross_entropy(logits, q, reduction="none")
        return self.weight * torch.where(scored, losses, 0.0).sum() / scored.sum().clamp(min=1)
