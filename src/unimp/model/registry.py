"""How each model of the table is built from options, for a task of some sizes.

To add a model, write its file beside this one, add a row to `MODELS` in `table.py`, and state here
how it is built.
"""

from __future__ import annotations

from collections.abc import Callable

from unimp.config.choices import Residual
from unimp.config.options import ModelOptions
from unimp.model.appnp import APPNP
from unimp.model.gcn_lpa import GCNLPA
from unimp.model.grand import GRAND
from unimp.model.label_propagation import LabelPropagation
from unimp.model.mlp import MLP
from unimp.model.node_model import NodeModel
from unimp.model.ridge import Ridge
from unimp.model.sign import HOPS, SIGN
from unimp.model.table import inputs_of, norm_of
from unimp.model.trees import Trees
from unimp.model.unimp import LayerKind, UniMP
from unimp.tasks.task import Sizes

NARROW = 16
"""Features with fewer columns are encoded, because the norm of the inputs would leave little of
them: of one column nothing, of two columns a sign."""


RESIDUALS: dict[LayerKind, Residual] = {"transformer": "gated", "sage": "simple"}
"""The residual of each kind of layer if the option is auto; none for the others."""

Build = Callable[[ModelOptions, Sizes], NodeModel]


def _unimp(layer: LayerKind) -> Build:
    """UniMP's frame around one kind of layer."""

    def build(options: ModelOptions, sizes: Sizes) -> NodeModel:
        residual = options.residual
        if residual == "auto":
            residual = RESIDUALS.get(layer, "none")
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
            norm=norm_of(options),
            input_norm=options.input_norm,
            head=options.head,
            feature_encoder=encodes_features(options, sizes),
            edge_encoder=options.edge_encoder,
            use_features="X" in options.inputs,
            use_labels="Y" in options.inputs,
            use_edge_features=options.edge_features,
            label_width=options.label_width,
            backend=options.backend,
            propagated_labels=options.propagated_labels and "Y" in options.inputs,
        )

    return build


def _hidden_layers(model: Callable[..., NodeModel], **more: str) -> Build:
    """A model with hidden layers of the width of all heads; `more` maps arguments to options."""

    def build(options: ModelOptions, sizes: Sizes) -> NodeModel:
        return model(
            sizes,
            layers=options.layers,
            width=options.heads * options.width,
            dropout=options.dropout,
            **{argument: getattr(options, option) for argument, option in more.items()},
        )

    return build


def _grand(options: ModelOptions, sizes: Sizes) -> NodeModel:
    return GRAND(
        sizes,
        width=options.heads * options.width,
        steps=options.propagation_steps,
        norm=norm_of(options),
        propagated_rows=options.propagated_rows,
        drop_node=options.drop_node,
        input_dropout=options.input_dropout,
        dropout=options.dropout,
    )


def _label_propagation(options: ModelOptions, sizes: Sizes) -> NodeModel:
    return LabelPropagation(
        sizes,
        normalization=options.normalization,
        steps=options.steps,
        restart=options.restart,
        clamp=options.clamp,
    )


def _ridge(options: ModelOptions, sizes: Sizes) -> NodeModel:
    return Ridge(
        sizes,
        hops=options.hops,
        hop_features=options.hop_features,
        strength=options.strength,
        use_labels="Y" in options.inputs,
    )


def _sign(options: ModelOptions, sizes: Sizes) -> NodeModel:
    return SIGN(
        sizes,
        hops=HOPS if options.hops == "auto" else options.hops,
        width=options.width,
        dropout=options.dropout,
        use_labels="Y" in options.inputs,
    )


def _trees(options: ModelOptions, sizes: Sizes) -> NodeModel:
    inputs = options.inputs
    return Trees(sizes, use_features="X" in inputs, use_labels="Y" in inputs)


BUILDERS: dict[str, Build] = {
    "unimp": _unimp("transformer"),
    "gcn": _unimp("gcn"),
    "gat": _unimp("gat"),
    "sage": _unimp("sage"),
    "appnp": _hidden_layers(APPNP, norm="norm", steps="propagation_steps", teleport="teleport"),
    "grand": _grand,
    "gcn-lpa": _hidden_layers(GCNLPA, norm="norm", lpa_weight="lpa_weight"),
    "mlp": _hidden_layers(MLP, norm="norm"),
    "ridge": _ridge,
    "sign": _sign,
    "trees": _trees,
    "label-propagation": _label_propagation,
}
"""How the model of each row of `table.MODELS` is built."""


def build_model(options: ModelOptions, sizes: Sizes) -> NodeModel:
    """The model that the options name, freshly initialized, for a task of these sizes."""
    options = options.model_copy(update={"inputs": inputs_of(options), "norm": norm_of(options)})
    return BUILDERS[options.name](options, sizes)


def encodes_features(options: ModelOptions, sizes: Sizes) -> bool:
    """Whether features are encoded before labels are added to them."""
    if options.feature_encoder != "auto":
        return options.feature_encoder
    return sizes.sparse or sizes.features < NARROW
