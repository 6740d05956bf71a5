"""Inference over random parts, as in the paper for ogbn-proteins."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from unimp.graph.features import rows_of
from unimp.graph.graph import Graph
from unimp.model.node_model import NodeModel
from unimp.ops.sampling import induced_hop
from unimp.training.batching import random_parts


@torch.no_grad()
def partition_logits(
    model: NodeModel,
    graph: Graph,
    observed: Tensor,
    *,
    parts: int,
    passes: int = 1,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Compute the logits of each node within its part, averaged over `passes` partitions.

    Edges between parts are not used, so this is an approximation; more passes improve it.
    """
    model.eval()
    rng = np.random.Generator(np.random.PCG64(seed))
    features = model.features(graph, observed)
    total: Tensor | None = None
    for _ in range(passes):
        for nodes in random_parts(graph.num_nodes, parts, rng=rng):
            there = nodes.to(graph.device)
            hop = induced_hop(graph, there).to(device)
            x = None if features is None else rows_of(features, there).to(device)
            logits = model(x, observed[nodes].to(device), [hop] * model.num_layers).float().cpu()
            if total is None:
                total = logits.new_zeros(graph.num_nodes, logits.shape[1])
            total[nodes] += logits / passes
    assert total is not None
    return total
