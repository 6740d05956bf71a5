"""Weights as a file: whole, of the right shapes, or refused with the reason."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from unimp.errors import RunError
from unimp.model.unimp import UniMP
from unimp.tasks.task import Sizes
from unimp.training.checkpoint import load_weights, save_weights

SIZES = Sizes(features=4, edge_features=2, classes=3, multilabel=False)


def some_model(seed: int = 0, **options: Any) -> UniMP:
    torch.manual_seed(seed)
    return UniMP(SIZES, **{"layers": 3, "width": 8, "heads": 2, **options})


@pytest.mark.parametrize("shared", [False, True])
def test_weights_are_restored_bit_for_bit(tmp_path: Path, shared: bool) -> None:
    options = {"edge_encoder": "shared", "head": "linear"} if shared else {}
    saved, loaded = some_model(0, **options), some_model(1, **options)
    save_weights(saved, tmp_path / "model.safetensors")
    load_weights(loaded, tmp_path / "model.safetensors")
    for name, value in saved.state_dict().items():
        assert torch.equal(value, loaded.state_dict()[name]), name


def test_a_shared_edge_encoder_is_stored_once_and_stays_shared(tmp_path: Path) -> None:
    model = some_model(edge_encoder="shared", head="linear")
    save_weights(model, tmp_path / "model.safetensors")
    stored = load_file(tmp_path / "model.safetensors")
    assert len([name for name in stored if "edge_encoder.weight" in name]) == 1
    other = some_model(1, edge_encoder="shared", head="linear")
    load_weights(other, tmp_path / "model.safetensors")
    assert other.edge_encoder is not None
    assert model.edge_encoder is not None
    assert torch.equal(other.layers[2].edge_encoder.weight, model.edge_encoder.weight)  # type: ignore
    assert other.layers[0].edge_encoder is other.layers[2].edge_encoder


def test_training_continues_with_loaded_weights(tmp_path: Path) -> None:
    save_weights(some_model(0), tmp_path / "model.safetensors")
    model = some_model(1)
    load_weights(model, tmp_path / "model.safetensors")
    assert all(p.requires_grad and p.is_leaf for p in model.parameters())


def test_weights_of_other_shapes_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_weights(some_model(width=8), path)
    model = some_model(width=4)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(
        RunError, match=r"layers\.0\.key\.bias has shape \(16,\).*needs \(8,\)"
    ) as e:
        load_weights(model, path)
    assert str(path) in str(e.value)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_missing_and_surplus_tensors_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_weights(some_model(), path)
    tensors = load_file(path)
    del tensors["layers.1.query.weight"]
    tensors["stranger"] = torch.zeros(2)
    save_file(tensors, path)
    with pytest.raises(RunError) as error:
        load_weights(some_model(), path)
    assert "layers.1.query.weight is missing" in str(error.value)
    assert "stranger is not part of the model" in str(error.value)


@pytest.mark.parametrize("kept", [0, 5, 200, -1])
def test_a_truncated_file_is_refused(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "model.safetensors"
    save_weights(some_model(), path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(RunError, match=r"cannot read the weights in .*model\.safetensors"):
        load_weights(some_model(), path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"nowhere\.safetensors"):
        load_weights(some_model(), tmp_path / "nowhere.safetensors")
