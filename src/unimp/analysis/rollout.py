"""Trace the attention behind a prediction back through the layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unimp.config.choices import ALL
from unimp.graph.graph import Graph
from unimp.graph.hop import Hop
from unimp.inference.incremental.logits import IncrementalLogits
from unimp.inference.incremental.reach import Nodes
from unimp.model.gat import GATLayer
from unimp.model.layers import GraphTransformerLayer, MessageLayer
from unimp.ops.sampling import sample_hops

Shares = npt.NDArray[np.float64]

Weigh = Callable[[Tensor, Hop, int], tuple[Tensor, float]]
"""(nodes, hop, layer) → the share of each edge among those of its target [E], and the share that a
node keeps."""

BEAM = 64
"""So many nodes of a layer are followed further: those with the largest shares."""

KEPT = 0.5
"""The share that a node keeps of itself if a layer has a residual connection."""


@dataclass(frozen=True, eq=False)
class Rollout:
    """The shares of one prediction, largest first; they sum to 1, minus what was not followed."""

    nodes: Nodes
    share: Shares  # of each node's own input
    hops: Nodes  # the distance of each node in edges
    source: Nodes
    target: Nodes
    flow: Shares  # of each edge, summed over layers

    @property
    def followed(self) -> float:
        """The share that was followed to the end."""
        return float(self.share.sum())


def roll_out(graph: Graph, node: int, layers: int, weigh: Weigh, *, beam: int = BEAM) -> Rollout:
    """Follow the shares of a node's in-edges back from the last layer to the first.

        s^L = 1 at the node        s^l_j = Σ_i s^{l+1}_i ( kept [i = j] + (1 − kept) α_ij )

    This is attention rollout (Abnar and Zuidema, 2020). At each layer the `beam` largest shares
    are followed further; `followed` shows how much was lost with the others.
    """
    nodes: Nodes = np.array([node])
    share: Shares = np.ones(1)
    hops: dict[int, int] = {node: 0}
    pairs: list[Nodes] = [np.empty(0, dtype=np.int64)]
    amounts: list[Shares] = [np.empty(0)]
    for layer in range(layers - 1, -1, -1):
        if len(nodes) > beam:
            largest = np.argpartition(-share, beam)[:beam]
            nodes, share = nodes[largest], share[largest]
        reached, (hop,) = sample_hops(graph, torch.from_numpy(nodes), [ALL], seed=0)
        weight, kept = weigh(reached, hop, layer)
        numbers: Nodes = reached.numpy()
        target, source = hop.target.numpy(), hop.source.numpy()
        alone = np.diff(hop.indptr.numpy()) == 0  # without in-edges: it keeps everything
        amount = share[target] * (1.0 - kept) * weight.double().numpy()
        found: Shares = np.bincount(source, amount, minlength=len(numbers)).astype(np.float64)
        found[: len(nodes)] += share * np.where(alone, 1.0, kept)
        pairs.append(numbers[source] * graph.num_nodes + numbers[target])
        amounts.append(amount)
        for fresh in numbers[len(nodes) :].tolist():
            hops.setdefault(fresh, layers - layer)
        nodes, share = numbers, found
    order = np.argsort(-share, kind="stable")
    pair, place = np.unique(np.concatenate(pairs), return_inverse=True)
    flow: Shares = np.bincount(place, np.concatenate(amounts), minlength=len(pair)).astype(float)
    strongest = np.argsort(-flow, kind="stable")
    source, target = divmod(pair[strongest], graph.num_nodes)
    distance = np.array([hops[n] for n in nodes[order].tolist()], dtype=np.int64)
    return Rollout(nodes[order], share[order], distance, source, target, flow[strongest])


def weigh_by_attention(live: IncrementalLogits) -> Weigh | None:
    """Take shares from the attention of the model, averaged over heads; None without attention."""
    layers = getattr(live.model, "layers", None)
    if layers is None or not all(isinstance(a, GraphTransformerLayer | GATLayer) for a in layers):
        return None

    def weigh(nodes: Tensor, hop: Hop, index: int) -> tuple[Tensor, float]:
        layer: MessageLayer = layers[index]
        assert isinstance(layer, GraphTransformerLayer | GATLayer)
        weights = layer.attention_weights(live.state(index, nodes), hop.to(live.device))
        return weights.mean(1).float().cpu(), 0.0 if layer.skip is None else KEPT

    return weigh


def weigh_evenly(nodes: Tensor, hop: Hop, index: int) -> tuple[Tensor, float]:
    """Give all in-edges of a node the same share."""
    return 1.0 / hop.indptr.diff()[hop.target.long()].double(), KEPT
