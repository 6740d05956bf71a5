"""The loss: masked label prediction on hidden labels, and consistency on all nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from unimp.tasks.labels import UNLABELED


class Consistency(NamedTuple):
    """How much the predictions of several forward passes with different dropout must agree."""

    weight: float = 0.0  # of the consistency loss; 0: it is not computed
    samples: int = 1  # forward passes per step
    temperature: float = 0.5  # of the target; less than 1 sharpens it
    warmup: int = 0  # epochs until the weight has its full value

    def share_at(self, epoch: int) -> float:
        """The part of the weight that applies in an epoch; the first epoch has the number 1."""
        return min(1.0, epoch / self.warmup) if self.warmup else 1.0


ONE_PASS = Consistency()

FurtherLoss = Callable[[Tensor, Tensor], Tensor]
"""A loss that is added to that of the hidden labels, from logits [n, C] and node numbers [n].

A node number of N, the number of nodes, is a row without a node, which must not count.
"""


def masked_label_loss(logits: Tensor, labels: Tensor, hidden: Tensor) -> Tensor:
    """Return the mean loss over the hidden nodes.

        classes        −1/|hidden| Σ_{i ∈ hidden} log softmax(z_i)[y_i]
        binary tasks   the mean binary cross-entropy over the known entries of hidden rows

    logits [n, C]; labels [n] or [n, T]; hidden: numbers of rows of both. Rows with an unknown label
    are ignored.
    """
    # Both passes of `index_select` are faster than those of `logits[hidden]`.
    logits, labels = logits.index_select(0, hidden), labels.index_select(0, hidden)
    if labels.ndim == 1:
        return F.cross_entropy(logits, labels, ignore_index=UNLABELED)
    known = labels != UNLABELED
    losses = F.binary_cross_entropy_with_logits(
        logits, labels.clamp(min=0).to(logits.dtype), reduction="none"
    )
    return torch.where(known, losses, 0.0).sum() / known.sum()


def consistency_loss(
    logits: Tensor, rows: Tensor, *, temperature: float, multilabel: bool
) -> Tensor:
    """Return the mean squared distance of S predictions from their sharpened mean.

        p̄ = 1/S Σ_s p_s        t_c = p̄_c^(1/temperature) / Σ_k p̄_k^(1/temperature)
        1/S Σ_s mean_{i ∈ rows} ‖p_s,i − t_i‖²

    logits [S, n, C]; rows [n] is a mask. The target t has no gradient. No label is used, so that
    the loss applies to every node. A binary task is a prediction of two classes; the mean over
    tasks is used.
    """
    if multilabel:
        log_p = torch.stack((F.logsigmoid(logits), F.logsigmoid(-logits)), -1)
    else:
        log_p = F.log_softmax(logits, -1)
    p = log_p.exp()
    target = torch.softmax(p.detach().mean(0).log() / temperature, -1)
    distance = (p - target).square().sum(-1).mean(0)  # [n], or [n, T] for binary tasks
    distance = distance.reshape(len(rows), -1).mean(1)
    return torch.where(rows, distance, 0.0).sum() / rows.sum()
