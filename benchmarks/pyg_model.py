"""UniMP's layers built from PyG's TransformerConv, for comparisons on the same batches."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch_geometric.nn import TransformerConv

from measure import edge_index_of
from unimp.training.batch import Batch


class PyGModel(nn.Module):
    """A label embedding, three TransformerConv layers with gates, and LayerNorm between them."""

    def __init__(self, features: int, classes: int, *, width: int, heads: int) -> None:
        super().__init__()
        self.labels, self.norm = nn.Embedding(classes + 1, features), nn.LayerNorm(features)
        sizes = [(features, width, True), (heads * width, width, True)]
        sizes.append((heads * width, classes, False))
        self.convs = nn.ModuleList(
            TransformerConv(before, after, heads=heads, concat=concat, beta=True)
            for before, after, concat in sizes
        )
        self.norms = nn.ModuleList(nn.LayerNorm(heads * width) for _ in range(2))

    def forward(self, batch: Batch, edges: Sequence[Tensor]) -> Tensor:
        h = self.norm(batch.x + self.labels(batch.observed + 1))
        for index, conv in enumerate(self.convs):
            h = conv((h, h[: batch.hops[index].num_targets]), edges[index])
            if index < 2:
                h = self.norms[index](h).relu()
        return h


def edges_of(batch: Batch) -> list[Tensor]:
    """The edges of each layer in the format of PyG."""
    return [edge_index_of(hop) for hop in batch.hops]
