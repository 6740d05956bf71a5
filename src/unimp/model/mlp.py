"""A multilayer perceptron: the baseline that uses only node features."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F

from unimp.config.choices import Norm
from unimp.errors import ModelError
from unimp.graph.features import Features
from unimp.graph.hop import Hop
from unimp.model.layers import FeatureEncoder
from unimp.model.node_model import NodeModel
from unimp.ops.dropout import dropout
from unimp.ops.products import Linear
from unimp.tasks.task import Sizes


class MLP(NodeModel):
    """A multilayer perceptron on each node's own features: inputs X.

        hˡ⁺¹ = dropout( ReLU( norm( W hˡ + b ) ) )          logits = W hᴸ + b

    It has the call of every `NodeModel` and uses neither labels nor edges.
    """

    takes_labels = False
    takes_edge_features = False
    num_layers = 0

    def __init__(
        self,
        sizes: Sizes,
        *,
        layers: int = 3,
        width: int = 256,
        dropout: float = 0.3,
        norm: Norm = "layer",
    ) -> None:
        super().__init__()
        if sizes.features == 0:
            raise ModelError("an MLP needs node features, but the task has none")
        if layers < 2:
            raise ModelError(f"an MLP needs at least 2 layers, not {layers}")
        self.dropout, self.mixes_rows = dropout, norm == "batch"
        widths = [sizes.features] + [width] * (layers - 1)
        self.blocks = nn.ModuleList(FeatureEncoder(i, o, norm) for i, o in pairwise(widths))
        self.head = Linear(width, sizes.classes)

    def embed(self, x: Features | None, observed: Tensor) -> Tensor:
        h = x
        for block in self.blocks:
            h = dropout(F.relu(block(h)), self.dropout, self.training)
        assert isinstance(h, Tensor)
        return h

    def propagate(self, h: Tensor, hop: Hop, index: int) -> Tensor:
        raise AssertionError("an MLP has no graph layers")

    def read_out(self, h: Tensor) -> Tensor:
        return self.head(h)  # type: ignore[no-any-return]
