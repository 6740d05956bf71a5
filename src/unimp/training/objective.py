"""Masked label prediction: the loss on hidden labels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from unimp.tasks.labels import UNLABELED


def masked_label_loss(logits: Tensor, labels: Tensor, hidden: Tensor) -> Tensor:
    """Return the mean loss over the hidden nodes.

        classes        −1/|hidden| Σ_{i ∈ hidden} log softmax(z_i)[y_i]
        binary tasks   the mean binary cross-entropy over the known entries of hidden rows

    logits [n, C]; labels [n] or [n, T]; hidden: rows of both, or a mask of rows. Rows with an
    unknown label are ignored.
    """
    logits, labels = logits[hidden], labels[hidden]
    if labels.ndim == 1:
        return F.cross_entropy(logits, labels, ignore_index=UNLABELED)
    known = labels != UNLABELED
    losses = F.binary_cross_entropy_with_logits(
        logits, labels.clamp(min=0).to(logits.dtype), reduction="none"
    )
    return torch.where(known, losses, 0.0).sum() / known.sum()
