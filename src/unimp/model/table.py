"""The table of models: a name, which inputs the model takes, and what it needs.

This module does not import torch. A row repeats attributes of its class (see `NodeModel`), so that
they are known without building the model.
"""

from __future__ import annotations

from typing import NamedTuple

from unimp.config.choices import Inputs, Norm
from unimp.config.options import ModelOptions
from unimp.errors import ModelError, nearest_names

ANY: tuple[Inputs, ...] = ("X,A,Y", "X,A", "A,Y")


class ModelEntry(NamedTuple):
    """One row of the table."""

    name: str
    inputs: tuple[Inputs, ...]  # the values that `model.inputs` accepts; the first is the default
    learns: bool = True  # whether it has parameters that training changes
    solved: bool = False  # whether it computes its weights outside of the training loop
    attends: bool = False  # whether it uses `graph_attention`
    norm: Norm = "layer"  # the norm of hidden layers if the option is auto


MODELS: dict[str, ModelEntry] = {
    entry.name: entry
    for entry in (
        ModelEntry("unimp", ANY, attends=True),
        ModelEntry("gcn", ANY),
        ModelEntry("gat", ANY),
        ModelEntry("sage", ANY),
        ModelEntry("appnp", ("X,A",)),
        ModelEntry("grand", ("X,A",), norm="none"),
        ModelEntry("gcn-lpa", ("X,A",)),
        ModelEntry("mlp", ("X",)),
        ModelEntry("ridge", ("X,A,Y", "X,A"), solved=True),
        ModelEntry("sign", ("X,A,Y", "X,A"), solved=True),
        ModelEntry("trees", ANY, solved=True),
        ModelEntry("label-propagation", ("A,Y",), learns=False),
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


def most_parameters(
    options: ModelOptions, *, features: int, classes: int, edge_features: int = 0
) -> int:
    """An upper bound of the number of parameters of any model, without building it."""
    width = options.heads * max(options.width, classes)
    rows = width + options.label_width + features + classes + edge_features
    hops = 0 if options.hops == "auto" else options.hops
    return 8 * (options.layers + hops + 2) * width * rows
