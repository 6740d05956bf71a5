"""Masked label prediction for any module that passes messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from unimp.config.choices import Inputs
from unimp.errors import RecipeError
from unimp.graph.features import SparseFeatures
from unimp.graph.graph import Graph
from unimp.graph.hop import Hop
from unimp.model.layers import FeatureEncoder, LabelEncoder, LabelTable
from unimp.model.node_model import NodeModel
from unimp.ops.dropout import dropout
from unimp.tasks.labels import UNLABELED
from unimp.tasks.task import Sizes

Combine = Literal["add", "concat"]


class MaskedLabels(NodeModel):
    """A module of your own, or a model of ours, given observed labels beside the features.

        h = x + embed(observed)        or, combine = concat:  h = [x | embed(observed)]
        logits = module(h, edge_index)        or module(h, edge_index, edge_attr), or module(h)

    The module takes rows h [N, width] and edge_index [2, E] of sources and targets, as PyG's layers
    do, and gives logits [N, classes]. It is called without edges if `inputs` is X, and with edge
    features if `edge_features`. What it may look at is decided here: a label that is hidden never
    reaches it.

    A model of ours is one that takes no labels itself, made for `sizes.with_width(width)`:
    APPNP(sizes.with_width(64)). It runs on its own graph, layer by layer, and its edge features
    and reach are its own.

    Features that are dense and as wide as their place are taken as they are, others projected.
    Added, features and labels are `width` wide both; beside one another, labels take what dense
    features leave of it, or half if that is too little.

    How the layers of a module of your own follow one another is not known, so that predictions are
    computed on the whole graph at once; with sampled neighbors it runs on all nodes sampled,
    `reach` hops far.
    """

    def __init__(
        self,
        module: nn.Module,
        sizes: Sizes,
        *,
        width: int,
        inputs: Inputs = "X,A,Y",
        combine: Combine = "add",
        reach: int = 3,
        edge_features: bool = False,
        input_norm: bool = False,
        input_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        for name, given, accepted in (
            ("inputs", inputs, get_args(Inputs)),
            ("combine", combine, get_args(Combine)),
        ):
            if given not in accepted:
                raise RecipeError(f"no {name} {given!r}; there are {' | '.join(accepted)}")
        self.takes_features, self.takes_labels = "X" in inputs, "Y" in inputs
        if self.takes_features and sizes.features == 0:
            raise RecipeError(f"inputs are {inputs}, but the task has no node features; use A,Y")
        if edge_features and sizes.edge_features == 0:
            raise RecipeError("edge_features is set, but the task's edges have none")
        both = self.takes_features and self.takes_labels and combine == "concat"
        if width < 1 + both:
            raise RecipeError(f"width is {width}; the module's rows need at least {1 + both}")
        if isinstance(module, NodeModel):
            _refuse_unfit(module, inputs, edge_features)
            _refuse_other_width(module, width, (1, sizes.classes) if sizes.multilabel else (1,))
            self.model = module
        else:
            if reach < 1:
                raise RecipeError(f"reach is {reach}; a module looks at least 1 hop far")
            hops = reach if "A" in inputs else 0
            self.model = EdgeModule(module, sizes.classes, reach=hops, edge_features=edge_features)
        self.takes_edge_features = self.model.takes_edge_features
        self.num_layers, self.by_layer = self.model.num_layers, self.model.by_layer
        self.attends, self.weighs_by_degree = self.model.attends, self.model.weighs_by_degree
        self.regularizer_weight = self.model.regularizer_weight
        self.combine, self.input_dropout = combine, input_dropout
        feature_width = label_width = width
        if both:
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

    @property
    def layers(self) -> nn.ModuleList | None:
        """The layers of a model of ours, where it has some that may tell their attention."""
        return getattr(self.model, "layers", None)

    def prepare(self, graph: Graph) -> Graph:
        return self.model.prepare(graph)

    def rows(self, x: Tensor | SparseFeatures | None, observed: Tensor) -> Tensor:
        """Features and observed labels as the module takes them: [N, width]."""
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

    def embed(self, x: Tensor | SparseFeatures | None, observed: Tensor) -> Tensor:
        return self.model.embed(self.rows(x, observed), _none_of(observed))

    def propagate(self, h: Tensor, hop: Hop, index: int) -> Tensor:
        return self.model.propagate(h, hop, index)

    def read_out(self, h: Tensor) -> Tensor:
        return self.model.read_out(h)

    def forward(
        self, x: Tensor | SparseFeatures | None, observed: Tensor, hops: Sequence[Hop]
    ) -> Tensor:
        logits: Tensor = self.model(self.rows(x, observed), _none_of(observed), hops)
        return logits

    def regularizer(
        self, x: Tensor | SparseFeatures | None, observed: Tensor, hops: Sequence[Hop]
    ) -> Tensor:
        return self.model.regularizer(self.rows(x, observed), observed, hops)


class EdgeModule(NodeModel):
    """A module of rows and an edge list, run as a whole on the first hop, which holds all edges."""

    takes_labels = False
    by_layer = False

    def __init__(self, module: nn.Module, classes: int, *, reach: int, edge_features: bool) -> None:
        super().__init__()
        self.module, self.classes = module, classes
        self.num_layers, self.takes_edge_features = reach, edge_features

    def embed(self, x: Tensor | SparseFeatures | None, observed: Tensor) -> Tensor:
        assert isinstance(x, Tensor)
        return x

    def propagate(self, h: Tensor, hop: Hop, index: int) -> Tensor:
        edge_index = torch.stack((hop.source, hop.target)).long()
        more: list[Any] = [hop.edge_attr] if self.takes_edge_features else []
        return self._logits(h, edge_index, *more)[: hop.num_targets]

    def read_out(self, h: Tensor) -> Tensor:
        return h if self.num_layers else self._logits(h)

    def forward(
        self, x: Tensor | SparseFeatures | None, observed: Tensor, hops: Sequence[Hop]
    ) -> Tensor:
        h = self.embed(x, observed)
        if hops:
            # The first hop has in-edges of every node that a later one has; the seeds come first.
            h = self.propagate(h, hops[0], 0)[: hops[-1].num_targets]
        return self.read_out(h)

    def _logits(self, h: Tensor, *edges: Any) -> Tensor:
        logits = self.module(h, *edges)
        wanted = (len(h), self.classes)
        if not isinstance(logits, Tensor) or logits.shape != wanted:
            found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise RecipeError(
                f"{type(self.module).__name__} gave {found} for {len(h)} nodes of width "
                f"{h.shape[1]}; it needs to give logits {wanted}: a row a node, a column a class"
            )
        return logits


def _refuse_unfit(model: NodeModel, inputs: Inputs, edge_features: bool) -> None:
    """A model of ours must leave labels to the wrapper, and look at edges if inputs say so."""
    name = type(model).__name__
    if model.takes_labels:
        raise RecipeError(
            f"{name} takes labels itself; train it as it is, or make it without: use_labels=False"
        )
    if ("A" in inputs) != (model.num_layers > 0):
        looks = "at edges; inputs must have A" if model.num_layers else "at no edges; inputs are X"
        raise RecipeError(f"inputs are {inputs}, but {name} looks {looks}")
    if edge_features and not model.takes_edge_features:
        raise RecipeError(f"edge_features is set, but {name} takes none")


def _refuse_other_width(model: NodeModel, width: int, shape: tuple[int, ...]) -> None:
    """A model of ours is made for rows of the wrapper, not for the task's features: try one row."""
    weight = next(model.parameters())
    trained = model.training
    observed = torch.full(shape, UNLABELED, device=weight.device)
    try:
        with torch.no_grad():
            model.eval().embed(weight.new_zeros(1, width), observed)
    except RuntimeError as error:
        raise RecipeError(
            f"{type(model).__name__} takes no rows of width {width}; make it for "
            f"sizes.with_width({width})"
        ) from error
    finally:
        model.train(trained)


def _none_of(observed: Tensor) -> Tensor:
    return torch.full_like(observed, UNLABELED)
