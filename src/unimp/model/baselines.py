"""What UniMP is measured against: features alone, and labels alone."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unimp.errors import RecipeError
from unimp.graph.features import SparseFeatures
from unimp.graph.graph import Graph
from unimp.graph.hop import Hop
from unimp.model.layers import FeatureEncoder
from unimp.model.node_model import NodeModel
from unimp.ops.dropout import dropout
from unimp.ops.sparse import sum_rows
from unimp.tasks.labels import UNLABELED
from unimp.tasks.task import Sizes


class MLP(NodeModel):
    """A perceptron on each node's own features: inputs X.

        hˡ⁺¹ = dropout( ReLU( LayerNorm( W hˡ + b ) ) )          logits = W hᴸ + b

    It takes the same arguments as UniMP and looks at neither labels nor edges.
    """

    takes_labels = False
    takes_edge_features = False
    num_layers = 0

    def __init__(
        self, sizes: Sizes, *, layers: int = 3, width: int = 256, dropout: float = 0.3
    ) -> None:
        super().__init__()
        if sizes.features == 0:
            raise RecipeError("an MLP needs node features, and the task has none")
        if layers < 2:
            raise RecipeError(f"an MLP needs at least 2 layers; model.layers is {layers}")
        self.dropout = dropout
        widths = [sizes.features] + [width] * (layers - 1)
        self.blocks = nn.ModuleList(FeatureEncoder(i, o) for i, o in pairwise(widths))
        self.head = nn.Linear(width, sizes.classes)

    def embed(self, x: Tensor | SparseFeatures | None, observed: Tensor) -> Tensor:
        h = x
        for block in self.blocks:
            h = dropout(F.relu(block(h)), self.dropout, self.training)
        assert isinstance(h, Tensor)
        return h

    def propagate(self, h: Tensor, hop: Hop, index: int) -> Tensor:
        raise AssertionError("an MLP has no graph layers")

    def read_out(self, h: Tensor) -> Tensor:
        return self.head(h)  # type: ignore[no-any-return]


@torch.no_grad()
def propagate_labels(
    graph: Graph, observed: Tensor, num_classes: int, *, steps: int = 50, restart: float = 0.1
) -> Tensor:
    """Label propagation: scores [N, classes] from the graph and the observed labels alone.

        Y⁰ = one-hot(observed), zero where unknown        Yˡ⁺¹ = (1 − restart) D⁻¹A Yˡ + restart Y⁰

    restart = 0 is the paper's plain iteration. A multi-label row propagates its positive
    entries less the mean of its task, so that a node no label reaches scores as the mean.
    """
    if observed.ndim == 1:
        seen = observed != UNLABELED
        start = torch.zeros(graph.num_nodes, num_classes, device=observed.device)
        start[seen] = F.one_hot(observed[seen], num_classes).float()
    else:
        entry = observed != UNLABELED
        count = entry.sum(0).clamp(min=1)
        share = (observed.clamp(min=0).float() * entry).sum(0) / count
        start = torch.where(entry, observed.float() - share, torch.zeros(()).to(share))
    degree = graph.in_degree.clamp(min=1).float()
    weight = (1.0 / degree).repeat_interleave(graph.in_degree.long())
    scores = start
    for _ in range(steps):
        spread = sum_rows(graph.indptr, graph.source, weight, scores)
        scores = (1.0 - restart) * spread + restart * start
    return scores
