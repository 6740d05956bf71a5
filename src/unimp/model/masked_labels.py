"""Masked label prediction for any PyTorch module that passes messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, get_args

import torch
from torch import Tensor, nn

from unimp.config.arguments import Range, Share, Size, checked
from unimp.config.choices import Inputs
from unimp.errors import ModelError
from unimp.graph.features import Features, split_features
from unimp.graph.graph import Graph
from unimp.graph.hop import Hop
from unimp.model.layers import FeatureEncoder, LabelEncoder, LabelTable
from unimp.model.node_model import NodeModel
from unimp.model.propagated_labels import LabelSums, PropagatedLabels
from unimp.ops.dropout import dropout
from unimp.tasks.labels import UNLABELED
from unimp.tasks.task import Sizes

Combine = Literal["add", "concat"]


class MaskedLabels(NodeModel):
    """Your own module, or a model of this package, with observed labels as additional input.

        h = x + embed(observed)        or, combine = concat:  h = [x | embed(observed)]
        logits = module(h, edge_index)        or module(h, edge_index, edge_attr), or module(h)

    The module receives rows h [N, width] and edge_index [2, E] (sources, targets), as layers of PyG
    do, and returns logits [N, classes]. It is called without edges if `inputs` is X, and with edge
    features if `edge_features` is set. This class decides what the module receives: hidden labels
    never reach it. With `propagated_labels`, observed labels that were propagated over the whole
    graph are added to h (see `PropagatedLabels`).

    A model of this package must not use labels itself and must be built for
    `sizes.with_width(width)`, for example APPNP(sizes.with_width(64)). It runs layer by layer on
    the graph that it prepares, and it determines its own edge features and reach.

    Dense features that already have the required width are used unchanged; all others are
    projected. With `add`, features and labels both have the full `width`. With `concat`, labels
    have the width that dense features leave free, or half of `width` if this is too narrow.

    The layers of your own module are not known, so predictions are computed on the whole graph at
    once. With sampled neighbors, the module runs on all sampled nodes, which are up to `reach` hops
    away.
    """

    @checked
    def __init__(
        self,
        module: nn.Module,
        sizes: Sizes,
        *,
        width: Size,
        inputs: Inputs = "X,A,Y",
        combine: Combine = "add",
        reach: Annotated[int, Range(0, 65_537)] = 3,
        edge_features: bool = False,
        input_norm: bool = False,
        input_dropout: Share = 0.0,
        propagated_labels: bool = False,
    ) -> None:
        super().__init__()
        for name, given, accepted in (
            ("inputs", inputs, get_args(Inputs)),
            ("combine", combine, get_args(Combine)),
        ):
            if given not in accepted:
                raise ModelError(
                    f"{name} {given!r} does not exist; choose one of {' | '.join(accepted)}"
                )
        self.takes_features, self.takes_labels = "X" in inputs, "Y" in inputs
        if self.takes_features and sizes.features == 0:
            raise ModelError(
                f"the inputs are {inputs}, but the task has no node features; use the inputs A,Y"
            )
        if propagated_labels and not self.takes_labels:
            raise ModelError(
                f"propagated_labels is set, but the inputs are {inputs}, without labels; leave it "
                "out, or use the inputs X,A,Y or A,Y"
            )
        if edge_features and sizes.edge_features == 0:
            raise ModelError(
                "edge_features is set, but the edges of the task have no features; leave it out"
            )
        both = self.takes_features and self.takes_labels and combine == "concat"
        if width < 1 + both:
            raise ModelError(
                f"the width is {width}, but the rows of the module need a width of at least "
                f"{1 + both}"
            )
        if isinstance(module, NodeModel):
            _check_inputs(module, inputs, edge_features)
            _check_width(module, width, (1, sizes.classes) if sizes.multilabel else (1,))
            self.model = module
        else:
            if reach < 1:
                raise ModelError(f"the reach of a module is at least 1 hop, not {reach}")
            hops = reach if "A" in inputs else 0
            self.model = EdgeModule(module, sizes.classes, reach=hops, edge_features=edge_features)
        self.takes_edge_features = self.model.takes_edge_features
        self.num_layers, self.by_layer = self.model.num_layers, self.model.by_layer
        self.mixes_rows = self.model.mixes_rows
        self.attends, self.weighs_by_degree = self.model.attends, self.model.weighs_by_degree
        self.adds_self_loops = self.model.adds_self_loops
        self.regularizer_weight = self.model.regularizer_weight
        self.combine, self.input_dropout = combine, input_dropout
        feature_width = label_width = width
        if both:
            # Labels need several columns: a norm would remove a label in a single column.
            least = min(sizes.classes, 8)
            unchanged = not sizes.sparse and sizes.features + least <= width
            feature_width = sizes.features if unchanged else width - width // 2
            label_width = width - feature_width
        unchanged = not sizes.sparse and sizes.features == feature_width
        self.feature_encoder = (
            FeatureEncoder(sizes.features, feature_width)
            if self.takes_features and not unchanged
            else None
        )
        embedding = LabelEncoder if sizes.multilabel else LabelTable
        self.label_embedding = embedding(sizes.classes, label_width) if self.takes_labels else None
        self.input_norm = nn.LayerNorm(width) if input_norm else None
        self.takes_propagated_labels = propagated_labels
        self.propagated_labels = PropagatedLabels(sizes, width) if propagated_labels else None

    @property
    def layers(self) -> nn.ModuleList | None:
        """The layers of a model of this package, which may have attention weights; else None."""
        return getattr(self.model, "layers", None)

    def prepare(self, graph: Graph) -> Graph:
        return self.model.prepare(graph)

    def propagated(self, graph: Graph, observed: Tensor, recent: LabelSums | None = None) -> Tensor:
        assert self.propagated_labels is not None
        return self.propagated_labels.of(graph, observed, recent)

    def rows(self, x: Features | None, observed: Tensor) -> Tensor:
        """Combine features and observed labels into the rows of the module: [N, width]."""
        x, propagated = split_features(x)
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
        if self.propagated_labels is not None:
            h = h + self.propagated_labels(propagated)
        if self.input_norm is not None:
            h = self.input_norm(h)
        return dropout(h, self.input_dropout, self.training)

    def embed(self, x: Features | None, observed: Tensor) -> Tensor:
        return self.model.embed(self.rows(x, observed), _hide_all(observed))

    def propagate(self, h: Tensor, hop: Hop, index: int) -> Tensor:
        return self.model.propagate(h, hop, index)

    def project(self, h: Tensor, index: int) -> Tensor | None:
        return self.model.project(h, index)

    def propagate_projected(self, rows: Tensor, targets: Tensor, hop: Hop, index: int) -> Tensor:
        return self.model.propagate_projected(rows, targets, hop, index)

    def read_out(self, h: Tensor) -> Tensor:
        return self.model.read_out(h)

    def forward(self, x: Features | None, observed: Tensor, hops: Sequence[Hop]) -> Tensor:
        logits: Tensor = self.model(self.rows(x, observed), _hide_all(observed), hops)
        return logits

    def regularizer(self, x: Features | None, observed: Tensor, hops: Sequence[Hop]) -> Tensor:
        return self.model.regularizer(self.rows(x, observed), observed, hops)


class EdgeModule(NodeModel):
    """A module that runs once on the edge list of the first hop, which contains all edges."""

    takes_labels = False
    by_layer = False

    def __init__(self, module: nn.Module, classes: int, *, reach: int, edge_features: bool) -> None:
        super().__init__()
        self.module, self.classes = module, classes
        self.num_layers, self.takes_edge_features = reach, edge_features

    def embed(self, x: Features | None, observed: Tensor) -> Tensor:
        assert isinstance(x, Tensor)
        return x

    def propagate(self, h: Tensor, hop: Hop, index: int) -> Tensor:
        edge_index = torch.stack((hop.source, hop.target)).long()
        more: list[Any] = [hop.edge_attr] if self.takes_edge_features else []
        return self._logits(h, edge_index, *more)[: hop.num_targets]

    def read_out(self, h: Tensor) -> Tensor:
        return h if self.num_layers else self._logits(h)

    def forward(self, x: Features | None, observed: Tensor, hops: Sequence[Hop]) -> Tensor:
        h = self.embed(x, observed)
        if hops:
            # The first hop contains the edges of all later hops, and the seeds come first.
            h = self.propagate(h, hops[0], 0)[: hops[-1].num_targets]
        return self.read_out(h)

    def _logits(self, h: Tensor, *edges: Any) -> Tensor:
        logits = self.module(h, *edges)
        wanted = (len(h), self.classes)
        if not isinstance(logits, Tensor) or logits.shape != wanted:
            found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise ModelError(
                f"{type(self.module).__name__} returned {found} for {len(h)} nodes of width "
                f"{h.shape[1]}; it must return logits of shape {wanted}: one row per node and one "
                "column per class"
            )
        return logits


def _check_inputs(model: NodeModel, inputs: Inputs, edge_features: bool) -> None:
    """Check that a model of this package uses no labels itself, and uses edges as `inputs` say."""
    name = type(model).__name__
    if model.takes_labels:
        raise ModelError(
            f"{name} uses labels itself; train it without MaskedLabels, or build it with "
            "use_labels=False"
        )
    if ("A" in inputs) != (model.num_layers > 0):
        fix = (
            "uses edges; the inputs must contain A"
            if model.num_layers
            else "uses no edges; the inputs must be X"
        )
        raise ModelError(f"the inputs are {inputs}, but {name} {fix}")
    if edge_features and not model.takes_edge_features:
        raise ModelError(f"edge_features is set, but {name} uses no edge features; leave it out")


def _check_width(model: NodeModel, width: int, shape: tuple[int, ...]) -> None:
    """Check with one row that a model of this package accepts rows of `width`."""
    weight = next(model.parameters())
    was_training = model.training
    observed = torch.full(shape, UNLABELED, device=weight.device)
    try:
        with torch.no_grad():
            model.eval().embed(weight.new_zeros(1, width), observed)
    except RuntimeError as error:
        raise ModelError(
            f"{type(model).__name__} does not accept rows of width {width}; build it for "
            f"sizes.with_width({width})"
        ) from error
    finally:
        model.train(was_training)


def _hide_all(observed: Tensor) -> Tensor:
    return torch.full_like(observed, UNLABELED)
