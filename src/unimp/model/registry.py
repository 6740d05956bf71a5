"""The table of models: a name, how the model is built, and which inputs it takes.

To add a model, write its file beside this one and add a row to `MODELS`. A row repeats two
attributes of its class (see `NodeModel`), so that they are known without building the model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from unimp.config.choices import Inputs, Norm, Residual
from unimp.config.options import ModelOptions
from unimp.errors import ModelError, nearest_names
from unimp.model.appnp import APPNP
from unimp.model.gcn_lpa import GCNLPA
from unimp.model.grand import GRAND
from unimp.model.label_propagation import LabelPropagation
from unimp.model.mlp import MLP
from unimp.model.node_model import NodeModel
from unimp.model.ridge import Ridge
from unimp.model.trees import Trees
from unimp.model.unimp import LayerKind, UniMP
from unimp.tasks.task import Sizes

NARROW = 16
"""Features with fewer columns are encoded, because the norm of the inputs would leave little of
them: of one column nothing, of two columns a sign."""


RESIDUALS: dict[LayerKind, Residual] = {"transformer": "gated", "sage": "simple"}
"""The residual of each kind of layer if the option is auto; none for the others."""

Build = Callable[[ModelOptions, Sizes], NodeModel]


class ModelEntry(NamedTuple):
    """One row of the table."""

    name: str
    build: Build
    inputs: tuple[Inputs, ...]  # the values that `model.inputs` accepts; the first is the default
    learns: bool = True  # whether it has parameters that training changes
    attends: bool = False  # whether it uses `graph_attention`
    norm: Norm = "layer"  # the norm of hidden layers if the option is auto


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


def _trees(options: ModelOptions, sizes: Sizes) -> NodeModel:
    inputs = options.inputs
    return Trees(sizes, use_features="X" in inputs, use_labels="Y" in inputs)


ANY: tuple[Inputs, ...] = ("X,A,Y", "X,A", "A,Y")

MODELS: dict[str, ModelEntry] = {
    entry.name: entry
    for entry in (
        ModelEntry("unimp", _unimp("transformer"), ANY, attends=True),
        ModelEntry("gcn", _unimp("gcn"), ANY),
        ModelEntry("gat", _unimp("gat"), ANY),
        ModelEntry("sage", _unimp("sage"), ANY),
        ModelEntry(
            "appnp",
            _hidden_layers(APPNP, norm="norm", steps="propagation_steps", teleport="teleport"),
            ("X,A",),
        ),
        ModelEntry("grand", _grand, ("X,A",), norm="none"),
        ModelEntry(
            "gcn-lpa", _hidden_layers(GCNLPA, norm="norm", lpa_weight="lpa_weight"), ("X,A",)
        ),
        ModelEntry("mlp", _hidden_layers(MLP, norm="norm"), ("X",)),
        ModelEntry("ridge", _ridge, ("X,A,Y", "X,A")),
        ModelEntry("trees", _trees, ANY),
        ModelEntry("label-propagation", _label_propagation, ("A,Y",), learns=False),
    )
}


def find_model(name: str) -> ModelEntry:
    """The row of a name; an unknown name is refused with the nearest ones."""
    if name not in MODELS:
        raise ModelError(f"no model is named {name!r}; {nearest_names(name, MODELS)}")
    return MODELS[name]


def inputs_of(options: ModelOptions, *, asked: bool = False) -> Inputs:
    """The inputs that the model takes; inputs that are not in its row are refused.

    If the option has its default value and the row does not list it, the first inputs of the row
    are used. asked: the user set the option, so its default value is refused too.
    """
    row = find_model(options.name).inputs
    if options.inputs in row:
        return options.inputs
    if not asked and options.inputs == ModelOptions.model_fields["inputs"].default:
        return row[0]
    others = [entry.name for entry in MODELS.values() if options.inputs in entry.inputs]
    other = f", or choose one of {', '.join(others)}" if others else ""
    raise ModelError(
        f"the inputs are {options.inputs}, but {options.name} takes {' or '.join(row)}; leave them "
        f"out{other} (in Python, MaskedLabels gives labels to other models)"
    )


def norm_of(options: ModelOptions) -> Norm:
    """The norm of hidden layers; auto is that of the model's row."""
    return find_model(options.name).norm if options.norm == "auto" else options.norm


def build_model(options: ModelOptions, sizes: Sizes) -> NodeModel:
    """The model that the options name, freshly initialized, for a task of these sizes."""
    options = options.model_copy(update={"inputs": inputs_of(options), "norm": norm_of(options)})
    return find_model(options.name).build(options, sizes)


def encodes_features(options: ModelOptions, sizes: Sizes) -> bool:
    """Whether features are encoded before labels are added to them."""
    if options.feature_encoder != "auto":
        return options.feature_encoder
    return sizes.sparse or sizes.features < NARROW
