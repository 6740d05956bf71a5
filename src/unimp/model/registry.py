"""The table of models: a name, how the model is built, and what it accepts.

To add a model, write its file beside this one and add a row to `MODELS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from unimp.config.choices import Inputs
from unimp.config.options import ModelOptions
from unimp.errors import ModelError, nearest_names
from unimp.model.appnp import APPNP
from unimp.model.gcn_lpa import GCNLPA
from unimp.model.label_propagation import LabelPropagation
from unimp.model.mlp import MLP
from unimp.model.node_model import NodeModel
from unimp.model.unimp import LayerKind, UniMP
from unimp.tasks.task import Sizes

NARROW = 16
"""Features with fewer columns are encoded, because the norm of the inputs would leave little of
them: of one column nothing, of two columns a sign."""


@dataclass(frozen=True)
class ModelEntry:
    """One row of the table."""

    name: str
    build: Callable[[ModelOptions, Sizes], NodeModel]
    inputs: tuple[Inputs, ...]  # that `model.inputs` may be; one: the model always takes these
    learns: bool = True  # whether training changes it
    attends: bool = False  # whether it computes attention, and so has a backend


def _unimp(layer: LayerKind) -> Callable[[ModelOptions, Sizes], NodeModel]:
    """UniMP's frame around one kind of layer."""

    def build(options: ModelOptions, sizes: Sizes) -> NodeModel:
        residual = options.residual
        if residual == "auto":
            residual = "gated" if layer == "transformer" else "none"
        return UniMP(
            sizes,
            layer=layer,
            layers=options.layers,
            width=options.width,
            heads=options.heads,
            dropout=options.dropout,
            input_dropout=options.input_dropout,
            attention_dropout=options.attention_dropout,
            residual=residual,
            gate=options.gate,
            gate_bias=options.gate_bias,
            input_norm=options.input_norm,
            head=options.head,
            feature_encoder=encodes_features(options, sizes),
            edge_encoder=options.edge_encoder,
            use_features="X" in options.inputs,
            use_labels="Y" in options.inputs,
            use_edge_features=options.edge_features,
            label_width=options.label_width,
            backend=options.backend,
        )

    return build


def _mlp(options: ModelOptions, sizes: Sizes) -> NodeModel:
    return MLP(
        sizes,
        layers=options.layers,
        width=options.heads * options.width,
        dropout=options.dropout,
    )


def _appnp(options: ModelOptions, sizes: Sizes) -> NodeModel:
    return APPNP(
        sizes,
        layers=options.layers,
        width=options.heads * options.width,
        dropout=options.dropout,
        steps=options.propagation_steps,
        teleport=options.teleport,
    )


def _gcn_lpa(options: ModelOptions, sizes: Sizes) -> NodeModel:
    return GCNLPA(
        sizes,
        layers=options.layers,
        width=options.heads * options.width,
        dropout=options.dropout,
        lpa_weight=options.lpa_weight,
    )


def _label_propagation(options: ModelOptions, sizes: Sizes) -> NodeModel:
    return LabelPropagation(
        sizes,
        normalization=options.normalization,
        steps=options.steps,
        restart=options.restart,
        clamp=options.clamp,
    )


ANY: tuple[Inputs, ...] = ("X,A,Y", "X,A", "A,Y")

MODELS: dict[str, ModelEntry] = {
    entry.name: entry
    for entry in (
        ModelEntry("unimp", _unimp("transformer"), ANY, attends=True),
        ModelEntry("gcn", _unimp("gcn"), ANY),
        ModelEntry("gat", _unimp("gat"), ANY),
        ModelEntry("appnp", _appnp, ("X,A",)),
        ModelEntry("gcn-lpa", _gcn_lpa, ("X,A",)),
        ModelEntry("mlp", _mlp, ("X",)),
        ModelEntry("label-propagation", _label_propagation, ("A,Y",), learns=False),
    )
}


def find_model(name: str) -> ModelEntry:
    """The row of a name; an unknown name is refused with the nearest ones."""
    if name not in MODELS:
        raise ModelError(f"no model is named {name!r}; {nearest_names(name, MODELS)}")
    return MODELS[name]


def build_model(options: ModelOptions, sizes: Sizes) -> NodeModel:
    """The model that the options name, freshly initialized, for a task of these sizes."""
    return find_model(options.name).build(options, sizes)


def encodes_features(options: ModelOptions, sizes: Sizes) -> bool:
    """Whether features are encoded before labels are added to them."""
    if options.feature_encoder != "auto":
        return options.feature_encoder
    return sizes.sparse or sizes.features < NARROW
