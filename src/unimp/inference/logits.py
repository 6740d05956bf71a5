"""Compute the logits of all nodes, given observed labels: the entry point of inference."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from unimp.config.choices import Precision
from unimp.graph.graph import Graph
from unimp.inference.exact import exact_logits
from unimp.inference.parts import partition_logits
from unimp.model.node_model import NodeModel
from unimp.training.precision import autocast, matmuls_in


def predict_logits(
    model: NodeModel,
    graph: Graph,
    observed: Tensor,
    *,
    regime: Literal["exact", "partition"] = "exact",
    chunk_edges: int = 5_000_000,
    parts: int = 5,
    passes: int = 1,
    seed: int = 0,
    device: torch.device | str | None = None,
    precision: Precision = "fp32",
) -> Tensor:
    """Compute logits [N, classes], float32 on the CPU; `observed` are the labels that are inputs.

    The computation runs on `device`, by default that of the model, and in `precision`.
    """
    if device is None:
        device = next((weight.device for weight in model.parameters()), observed.device)
    with matmuls_in(precision), autocast(device, precision):
        if regime == "exact":
            logits = exact_logits(model, graph, observed, chunk_edges=chunk_edges, device=device)
        else:
            logits = partition_logits(
                model, graph, observed, parts=parts, passes=passes, seed=seed, device=device
            )
    return logits.float()


def probabilities(logits: Tensor, *, multilabel: bool) -> Tensor:
    """Turn logits into probabilities: softmax over classes, or a sigmoid per binary task."""
    return torch.sigmoid(logits) if multilabel else torch.softmax(logits, 1)
