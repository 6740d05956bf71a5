"""Logits of some nodes from their in-neighbors, all or sampled, for scores during training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unimp.config.choices import ALL, Precision
from unimp.graph.features import Features, rows_of
from unimp.graph.graph import Graph
from unimp.graph.hop import Hop
from unimp.inference.incremental.stored import refuse_non_finite
from unimp.model.node_model import NodeModel
from unimp.ops.sampling import sample_hops
from unimp.training.precision import autocast, matmuls_in


@dataclass(frozen=True, eq=False)
class Surroundings:
    """Some nodes, and the rows and edges from which their logits are computed.

    They are cut out of a graph once. Models with other weights can then be scored on them.
    """

    nodes: Tensor
    x: Features | None  # features of the sources of the first hop
    observed: Tensor  # observed labels of these sources
    hops: Sequence[Hop]

    @classmethod
    @torch.no_grad()
    def exact(cls, model: NodeModel, graph: Graph, observed: Tensor, nodes: Tensor) -> Surroundings:
        """Cut out all rows and edges that the logits of the nodes depend on."""
        every_neighbor = [ALL] * model.num_layers
        x = model.features(graph, observed)
        return cls.sampled(graph, x, observed, nodes, every_neighbor, seed=0)

    @classmethod
    def sampled(
        cls,
        graph: Graph,
        x: Features | None,
        observed: Tensor,
        nodes: Tensor,
        fanout: Sequence[int],
        seed: int,
    ) -> Surroundings:
        """Cut out sampled in-neighbors. fanout: one number per layer."""
        around, hops = sample_hops(graph, nodes, fanout, seed=seed, prefetch=True)
        own = None if x is None else rows_of(x, around)
        return cls(nodes, own, observed[around.to(observed.device)], hops)

    @property
    def num_edges(self) -> int:
        """The number of in-edges in all hops."""
        return sum(hop.num_edges for hop in self.hops)

    @torch.no_grad()
    def logits(self, model: NodeModel, device: torch.device | str, precision: Precision) -> Tensor:
        """Compute the logits of the nodes: [nodes, classes], float32 on CPU."""
        model.eval()
        x = None if self.x is None else self.x.to(device)
        with matmuls_in(precision), autocast(torch.device(device), precision):
            logits = model(x, self.observed.to(device), [hop.to(device) for hop in self.hops])
        return logits.float().cpu()  # type: ignore[no-any-return]


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
    x = model.features(graph, observed)
    parts = (
        Surroundings.sampled(graph, x, observed, seeds, fanout, seed)
        for seeds in torch.split(nodes, batch_size)
    )
    logits = torch.cat([part.logits(model, device, precision) for part in parts])
    refuse_non_finite(logits, nodes)
    return logits
