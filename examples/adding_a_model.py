"""Your own model: each layer adds the mean of a node's in-neighbors to its row."""

from torch import Tensor, nn

import unimp
from unimp.errors import ModelError
from unimp.graph.features import SparseFeatures
from unimp.graph.hop import Hop
from unimp.model.layers import FeatureEncoder
from unimp.model.node_model import NodeModel
from unimp.ops.dropout import dropout
from unimp.ops.weighted_sum import weighted_sum
from unimp.tasks.task import Sizes


class NeighborMean(NodeModel):
    """h⁰ = LayerNorm(W x + b)      hˡ⁺¹_i = dropout(hˡ_i + mean_j hˡ_j)      logits = W hᴸ + b."""

    takes_labels = False
    takes_edge_features = False

    def __init__(
        self, sizes: Sizes, *, layers: int = 2, width: int = 64, dropout: float = 0.3
    ) -> None:
        super().__init__()
        if sizes.features == 0:
            raise ModelError("NeighborMean needs node features, but the task has none")
        self.num_layers, self.dropout = layers, dropout
        self.encoder = FeatureEncoder(sizes.features, width)
        self.head = nn.Linear(width, sizes.classes)

    def embed(self, x: Tensor | SparseFeatures | None, observed: Tensor) -> Tensor:
        return self.encoder(x)

    def propagate(self, h: Tensor, hop: Hop, index: int) -> Tensor:
        count = hop.indptr.diff().clamp(min=1).index_select(0, hop.target)
        mean = weighted_sum((1.0 / count).to(h.dtype)[:, None], h[:, None], hop).squeeze(1)
        return dropout(h[: hop.num_targets] + mean, self.dropout, self.training)

    def read_out(self, h: Tensor) -> Tensor:
        return self.head(h)


if __name__ == "__main__":
    print(unimp.run("synthetic", model=NeighborMean, settings=["task.scale=0.05"], progress=False))
