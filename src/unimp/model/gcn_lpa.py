"""GCN-LPA: a graph convolution with learned edge weights that must also propagate labels well."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unimp.config.choices import Norm
from unimp.errors import ModelError
from unimp.graph.features import Features
from unimp.graph.graph import Graph
from unimp.graph.hop import Hop
from unimp.model.layers import NORMS, FeatureEncoder
from unimp.model.node_model import NodeModel
from unimp.ops.dropout import dropout
from unimp.ops.products import Linear
from unimp.ops.weighted_sum import edge_dot, edge_softmax, weighted_sum
from unimp.tasks.labels import UNLABELED
from unimp.tasks.task import Sizes

KEY_WIDTH = 32
"""The width of the vectors from which edge weights are computed."""

LEAST = 1e-6
"""The smallest probability that propagated labels give a class; its logarithm must be finite."""


class GCNLPA(NodeModel):
    """Features propagate along learned edge weights; in training, labels regularize the weights.

        p = P x / ‖P x‖      w_ij = softmax_j( p_i·p_j )        (the same in every layer)
        hˡ⁺¹ = dropout( ReLU( norm( W Σ_j w_ij hˡ_j + b ) ) )
        logits = W Σ_j w_ij hᴸ⁻¹_j + b
        ŷ⁰ = one-hot(observed)        ŷˡ⁺¹_i = Σ_j w_ij ŷˡ_j

        loss = −log softmax(logits) − weight · log ŷᴸ        (means over the hidden nodes)

    For binary tasks, ŷ is the share of positives among the entries that arrive, separately for
    each task. Wang and Leskovec learn one number per edge. Here, a weight is computed from the two
    ends of its edge, so that parts, sampled neighbors and nodes that are added later also have
    weights. One weight is at most e² times another: without a bound, a node would receive mostly
    from itself, because it is most similar to itself. The observed labels of a step are propagated
    and the hidden labels are scored, so that no label predicts itself. Labels are not used for
    prediction.
    """

    takes_labels = False
    takes_edge_features = False
    adds_self_loops = True

    def __init__(
        self,
        sizes: Sizes,
        *,
        layers: int = 3,
        width: int = 256,
        dropout: float = 0.3,
        norm: Norm = "layer",
        lpa_weight: float = 1.0,
    ) -> None:
        super().__init__()
        if sizes.features == 0:
            raise ModelError("GCN-LPA needs node features, but the task has none")
        self.dropout, self.num_layers, self.classes = dropout, layers, sizes.classes
        self.multilabel = sizes.multilabel
        self.regularizer_weight, self.mixes_rows = lpa_weight, norm == "batch"
        self.encoder = FeatureEncoder(sizes.features, width)
        self.direction = nn.Linear(width, KEY_WIDTH)
        widths = [width] * (layers - 1) + [sizes.classes]
        self.layers = nn.ModuleList(Linear(width, out) for out in widths)
        self.norms = nn.ModuleList(NORMS[norm](width) for _ in range(layers - 1))

    def prepare(self, graph: Graph) -> Graph:
        return graph.without_edge_attr().with_self_loops()

    def embed(self, x: Features | None, observed: Tensor) -> Tensor:
        """Compute [h | p]; every layer computes edge weights from the same p."""
        h = self.encoder(x)
        return torch.cat((dropout(F.relu(h), self.dropout, self.training), self._keys(h)), 1)

    def propagate(self, h: Tensor, hop: Hop, index: int) -> Tensor:
        keys = h[:, -KEY_WIDTH:]
        rows = self._spread(h[:, :-KEY_WIDTH], keys, hop)
        rows = self.layers[index](rows)
        if index < len(self.norms):
            rows = F.relu(self.norms[index](rows))
            rows = dropout(rows, self.dropout, self.training)
        return torch.cat((rows, keys[: hop.num_targets]), 1)

    def read_out(self, h: Tensor) -> Tensor:
        return h[:, :-KEY_WIDTH]

    def regularizer(self, x: Features | None, observed: Tensor, hops: Sequence[Hop]) -> Tensor:
        """Propagate observed labels along the learned weights to the targets of the last hop.

        Returns log ŷ, or for binary tasks the logit of ŷ.
        """
        keys = self._keys(self.encoder(x))
        seen = observed != UNLABELED
        if self.multilabel:
            labels = torch.cat(((observed > 0), seen), 1).to(keys.dtype)  # positives | entries
        else:
            labels = F.one_hot(observed.clamp(min=0), self.classes) * seen[:, None]
            labels = labels.to(keys.dtype)
        for hop in hops:
            labels = self._spread(labels, keys, hop)
            keys = keys[: hop.num_targets]
        if self.multilabel:
            labels, total = labels.chunk(2, 1)
            even = torch.full_like(labels, 0.5)
        else:
            total = labels.sum(1, keepdim=True)
            even = torch.full_like(labels, 1.0 / self.classes)
        # A node that no label reaches gets the same probability for every class.
        share = torch.where(total > 0, labels / total.clamp(min=LEAST), even)
        return torch.logit(share, LEAST) if self.multilabel else share.clamp(min=LEAST).log()

    def _keys(self, h: Tensor) -> Tensor:
        """Compute p from encoded features: rows of length 1."""
        return F.normalize(self.direction(h), dim=1)

    def _spread(self, rows: Tensor, keys: Tensor, hop: Hop) -> Tensor:
        """Compute Σ_j w_ij rows_j."""
        weight = self.edge_weights(keys, hop)
        return weighted_sum(weight, rows.contiguous()[:, None], hop).squeeze(1)

    def edge_weights(self, keys: Tensor, hop: Hop) -> Tensor:
        """Compute w_ij of the edges of a hop from p of its sources: [E, 1]."""
        return edge_softmax(edge_dot(keys[: hop.num_targets], keys, hop)[:, None], hop)
