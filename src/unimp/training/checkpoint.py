"""A model's weights as a file: safetensors, no pickle."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from unimp.errors import RunError
from unimp.graph.files import write_atomically
from unimp.model.node_model import NodeModel


def save_weights(model: NodeModel, path: Path) -> None:
    """Write the weights, each tensor once; layers may share an edge encoder."""
    write_atomically(path, save(_distinct(model)))


def load_weights(model: NodeModel, path: Path) -> None:
    """Read weights into a model of the same shape, or say how the two differ."""
    try:
        tensors = load(path.read_bytes())
    except (OSError, SafetensorError) as error:
        raise RunError(f"cannot read the weights in {path}: {error}") from error
    expected = _distinct(model)
    problems = [f"{name} is missing" for name in expected.keys() - tensors.keys()]
    problems += [f"{name} is not part of the model" for name in tensors.keys() - expected.keys()]
    problems += [
        f"{name} has shape {tuple(tensors[name].shape)}, the model needs {tuple(value.shape)}"
        for name, value in expected.items()
        if name in tensors and tensors[name].shape != value.shape
    ]
    problems += [
        f"{name} is {tensors[name].dtype}, the model needs {value.dtype}"
        for name, value in expected.items()
        if name in tensors and tensors[name].dtype != value.dtype
    ]
    if problems:
        raise RunError(
            f"the weights in {path} do not fit their recipe: {'; '.join(sorted(problems))}"
        )
    for name, value in expected.items():
        value.copy_(tensors[name])


def _distinct(model: NodeModel) -> dict[str, Tensor]:
    """The state by name, a tensor that stands under several names under its first alone."""
    seen: set[int] = set()
    distinct = {}
    for name, value in model.state_dict().items():
        if value.data_ptr() not in seen:
            distinct[name] = value.contiguous()
            seen.add(value.data_ptr())
    return distinct
