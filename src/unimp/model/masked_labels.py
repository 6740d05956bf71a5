"""Masked label prediction for any module that passes messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from unimp.errors import RecipeError
from unimp.graph.features import SparseFeatures
from unimp.graph.hop import Hop
from unimp.model.layers import FeatureEncoder, LabelEncoder, LabelTable
from unimp.model.node_model import NodeModel
from unimp.ops.dropout import dropout
from unimp.tasks.task import Sizes

Inputs = Literal["X", "X,A", "A,Y", "X,A,Y"]


class MaskedLabels(NodeModel):
    """A module of your own, given observed labels beside the features.

        h = x + embed(observed)        or, combine = concat:  h = [x | embed(observed)]
        logits = module(h, edge_index)        or module(h, edge_index, edge_attr), or module(h)

    The module takes rows h [N, width] and edge_index [2, E] of sources and targets, as PyG's layers
    do, and gives logits [N, classes]. It is called without edges if `inputs` is X, and with edge
    features if `edge_features`. What it may look at is decided here: a label that is hidden never
    reaches it.

    Features that are dense and as wide as their place are taken as they are, others projected.
    Added, features and labels are `width` wide both; beside one another, labels take what dense
    features leave of it, or half if that is too little.

    How the module's layers follow one another is not known, so that predictions are computed on the
    whole graph at once; with sampled neighbors it runs on all nodes sampled, `reach` hops far.
    """

    by_layer = False

    def __init__(
        self,
        module: nn.Module,
        sizes: Sizes,
        *,
        width: int,
        inputs: Inputs = "X,A,Y",
        combine: Literal["add", "concat"] = "add",
        reach: int = 3,
        edge_features: bool = False,
        input_norm: bool = False,
        input_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if inputs not in get_args(Inputs):
            raise RecipeError(f"no inputs {inputs!r}; there are {' | '.join(get_args(Inputs))}")
        self.takes_features, self.takes_labels = "X" in inputs, "Y" in inputs
        if self.takes_features and sizes.features == 0:
            raise RecipeError(f"inputs are {inputs}, but the task has no node features; use A,Y")
        if edge_features and sizes.edge_features == 0:
            raise RecipeError("edge_features is set, but the task's edges have none")
        self.module, self.combine = module, combine
        self.takes_edges, self.takes_edge_features = "A" in inputs, edge_features
        self.input_dropout = input_dropout
        self.num_layers = reach if self.takes_edges else 0
        feature_width = label_width = width
        if combine == "concat" and self.takes_features and self.takes_labels:
            # A label needs some room: in a row of one number a norm would leave nothing of it.
            least = min(sizes.classes, 8)
            beside = not sizes.sparse and sizes.features + least <= width
            feature_width = sizes.features if beside else width - width // 2
            label_width = width - feature_width
        as_they_are = not sizes.sparse and sizes.features == feature_width
        self.feature_encoder = (
            FeatureEncoder(sizes.features, feature_width)
            if self.takes_features and not as_they_are
            else None
        )
        embedding = LabelEncoder if sizes.multilabel else LabelTable
        self.label_embedding = embedding(sizes.classes, label_width) if self.takes_labels else None
        self.input_norm = nn.LayerNorm(width) if input_norm else None

    def embed(self, x: Tensor | SparseFeatures | None, observed: Tensor) -> Tensor:
        parts: list[Tensor] = []
        if self.takes_features:
            rows = x if self.feature_encoder is None else self.feature_encoder(x)
            assert isinstance(rows, Tensor)
            parts.append(rows)
        if self.label_embedding is not None:
            parts.append(self.label_embedding(observed))
        if self.combine == "concat":
            h = torch.cat(parts, 1)
        else:
            h = parts[0] if len(parts) == 1 else parts[0] + parts[1]
        if self.input_norm is not None:
            h = self.input_norm(h)
        return dropout(h, self.input_dropout, self.training)

    def propagate(self, h: Tensor, hop: Hop, index: int) -> Tensor:
        edge_index = torch.stack((hop.source, hop.target)).long()
        more: list[Any] = [hop.edge_attr] if self.takes_edge_features else []
        logits: Tensor = self.module(h, edge_index, *more)
        return logits[: hop.num_targets]

    def read_out(self, h: Tensor) -> Tensor:
        return h if self.takes_edges else self.module(h)

    def forward(
        self, x: Tensor | SparseFeatures | None, observed: Tensor, hops: Sequence[Hop]
    ) -> Tensor:
        h = self.embed(x, observed)
        if hops:
            # The first hop has in-edges of every node that a later one has; the seeds come first.
            h = self.propagate(h, hops[0], 0)[: hops[-1].num_targets]
        return self.read_out(h)
