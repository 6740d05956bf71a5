"""Logits of some nodes from sampled in-neighbors, for scores during training on a large graph."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from unimp.config.choices import Precision
from unimp.graph.features import rows_of
from unimp.graph.graph import Graph
from unimp.inference.incremental.stored import refuse_non_finite
from unimp.model.node_model import NodeModel
from unimp.ops.sampling import sample_hops
from unimp.training.precision import autocast, matmuls_in


@torch.no_grad()
def sampled_logits(
    model: NodeModel,
    graph: Graph,
    observed: Tensor,
    nodes: Tensor,
    *,
    fanout: Sequence[int],
    batch_size: int,
    seed: int,
    device: torch.device | str = "cpu",
    precision: Precision = "fp32",
) -> Tensor:
    """Compute the logits of `nodes` with sampled neighbors, as in training: [nodes, classes].

    The in-neighbors that are drawn for a node depend only on `seed`, the layer and the node.
    fanout: one number per layer. The result is on CPU.
    """
    model.eval()
    x = model.features(graph, observed)
    parts = []
    with matmuls_in(precision), autocast(torch.device(device), precision):
        for seeds in torch.split(nodes, batch_size):
            around, hops = sample_hops(graph, seeds, fanout, seed=seed, prefetch=True)
            own = None if x is None else rows_of(x, around).to(device)
            labels = observed[around.to(observed.device)].to(device)
            parts.append(model(own, labels, [hop.to(device) for hop in hops]).float().cpu())
    logits = torch.cat(parts)
    refuse_non_finite(logits, nodes)
    return logits
