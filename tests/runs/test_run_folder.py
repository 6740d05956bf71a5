"""The run folder: readable without this package, complete or absent, and refused if damaged."""

import json
import os
import shutil
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from safetensors.torch import load_file, save_file

from unimp.config.recipe import Recipe, read_recipe
from unimp.errors import RunError
from unimp.runs.experiment import run
from unimp.runs.folder.files import write_json
from unimp.runs.folder.schemas import FORMAT
from unimp.runs.loading import load_run
from unimp.runs.run import Run

FILES = {
    "recipe.toml",
    "model.safetensors",
    "metrics.json",
    "history.jsonl",
    "predictions.parquet",
    "manifest.json",
    "report.html",
    "evidence.parquet",
}
SETTINGS = [
    "task.name=synthetic",
    "task.scale=0.02",
    "model.width=8",
    "model.layers=2",
    "train.epochs=5",
    "train.eval_every=2",
    "train.lr=0.01",
    "train.device=cpu",
]
RECIPE = Recipe(name="small").with_settings(SETTINGS)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(RECIPE, seed=3, out=tmp_path_factory.mktemp("runs") / "one")


@pytest.fixture
def folder(made: Run, tmp_path: Path) -> Path:
    """A copy of the run's folder, to be damaged."""
    assert made.folder is not None
    return Path(shutil.copytree(made.folder, tmp_path / "copy"))


Sign = Callable[[Path], None]


def folder_of(done: Run) -> Path:
    assert done.folder is not None
    return done.folder


def test_a_run_folder_contains_every_file_and_nothing_else(made: Run) -> None:
    assert {path.name for path in folder_of(made).iterdir()} == FILES


def test_every_file_can_be_read_without_this_package(made: Run) -> None:
    folder = folder_of(made)
    recipe = tomllib.loads((folder / "recipe.toml").read_text(encoding="utf-8"))
    assert recipe["model"]["width"] == 8
    assert recipe == RECIPE.with_regime("full").model_dump()  # the regime that `auto` chose
    weights = load_file(folder / "model.safetensors")
    assert sum(w.numel() for w in weights.values()) == made.metrics["parameters"]
    assert json.loads((folder / "metrics.json").read_text()) == made.metrics
    table = pyarrow.parquet.read_table(folder / "predictions.parquet")
    assert table.schema == made.predictions().to_arrow().schema
    assert table.num_rows == 200
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert page.lstrip().lower().startswith("<!doctype html>")
    assert f"{100 * made.metrics['scores']['train']['test']:.2f}" in page


def test_files_have_the_permissions_of_any_new_file(made: Run, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.touch()
    for path in folder_of(made).iterdir():
        assert path.stat().st_mode == plain.stat().st_mode


def test_the_history_has_one_line_per_epoch(made: Run) -> None:
    text = (folder_of(made) / "history.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3, 4, 5]
    assert [line["epoch"] for line in lines if "val" in line] == [1, 3, 5]
    assert all(line["loss"] > 0 and line["seconds"] > 0 for line in lines)


def test_the_manifest_states_where_the_run_comes_from(made: Run) -> None:
    manifest = json.loads((folder_of(made) / "manifest.json").read_text())
    assert manifest["seed"] == 3
    assert manifest["threads"] == torch.get_num_threads()
    assert manifest["data_hash"] == made.task.data_hash()
    assert manifest["command"] == sys.argv
    assert manifest["versions"].keys() >= {"unimp", "torch", "numpy", "python"}
    assert manifest["versions"]["torch"] == torch.__version__
    assert manifest["task"] == "synthetic"
    assert manifest["device"].startswith("cpu")
    assert "train labels" in manifest["protocol"]
    assert manifest["format"] == FORMAT


def test_the_manifest_states_that_a_model_takes_no_labels(tmp_path: Path) -> None:
    settings = ["task.scale=0.02", "model.name=mlp", "model.width=4", "train.epochs=1"]
    run("synthetic", out=tmp_path / "run", settings=settings)
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert "no labels" in manifest["protocol"]


def test_a_loaded_run_predicts_bitwise_the_same(made: Run) -> None:
    loaded = load_run(folder_of(made), device="cpu")
    assert torch.equal(loaded.predict(), made.predict())
    assert torch.equal(loaded.predict({0: 1, 5: 2}), made.predict({0: 1, 5: 2}))
    assert loaded.recipe == made.recipe
    assert loaded.seed == 3
    assert loaded.metrics == made.metrics
    assert loaded.evaluate("train+val") == made.metrics["scores"]["train+val"]


@pytest.mark.parametrize(
    "settings",
    [
        ["model.name=label-propagation"],
        ["model.name=label-propagation", "model.clamp=labels", "model.normalization=sym"],
        ["model.name=mlp"],
        ["model.name=gcn", "model.inputs=A,Y"],
        ["model.name=gat"],
        ["model.name=appnp"],
        ["model.name=gcn-lpa"],
        ["smooth.form=correct-and-smooth"],
        ["batch.regime=neighbors", "inference.chunk_edges=100"],
        ["inference.regime=partition", "inference.passes=2"],
        [
            "model.head=linear",
            "model.edge_encoder=shared",
            "model.feature_encoder=true",
            "task.name=synthetic-proteins",
            "task.scale=0.0005",
            "batch.regime=partition",
        ],
    ],
)
def test_loaded_runs_of_every_kind_predict_bitwise_the_same(
    settings: list[str], tmp_path: Path
) -> None:
    made = run(RECIPE.with_settings(settings), seed=1, out=tmp_path / "run", report=False)
    loaded = load_run(tmp_path / "run", device="cpu")
    assert type(loaded.model) is type(made.model)
    assert torch.equal(loaded.predict(), made.predict())
    assert torch.equal(loaded.predict(reveal="known"), made.predict(reveal="known"))
    assert loaded.evaluate() == made.metrics["scores"]["train"]
    assert {path.name for path in (tmp_path / "run").iterdir()} == FILES - {
        "report.html",
        "evidence.parquet",
    }


def test_the_report_is_written_unless_it_is_switched_off(tmp_path: Path) -> None:
    done = run(RECIPE, out=tmp_path / "run", report=False)
    page = tmp_path / "run" / "report.html"
    assert not page.exists()
    run(RECIPE, out=tmp_path / "run", report=False)
    assert not page.exists()
    run(RECIPE, out=tmp_path / "run")  # the finished run is loaded, and its report is written
    written = page.read_text(encoding="utf-8")
    page.unlink()
    assert done.report() == page
    assert page.read_text(encoding="utf-8") == written
    with pytest.raises(RunError, match="out="):
        run(RECIPE).report()


def test_a_run_of_other_data_is_refused(folder: Path, sign_run: Sign) -> None:
    path = folder / "recipe.toml"
    recipe = read_recipe(path.read_text(), "x").with_settings(["task.scale=0.021"])
    path.write_text(recipe.to_toml())
    sign_run(folder)
    with pytest.raises(RunError, match=r"other data.*'synthetic'") as error:
        load_run(folder)
    assert str(folder) in str(error.value)


def test_weights_of_another_recipe_are_refused(folder: Path, sign_run: Sign) -> None:
    path = folder / "recipe.toml"
    path.write_text(read_recipe(path.read_text(), "x").with_settings(["model.width=4"]).to_toml())
    sign_run(folder)
    with pytest.raises(RunError, match=r"model\.safetensors.*shape"):
        load_run(folder)


def test_weights_with_a_tensor_missing_are_refused(folder: Path, sign_run: Sign) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors.pop("layers.0.key.weight")
    save_file(tensors, path)
    sign_run(folder)
    with pytest.raises(RunError, match=r"model\.safetensors .* layers\.0\.key\.weight is missing"):
        load_run(folder)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


@pytest.mark.parametrize("name", ["model.safetensors", "metrics.json", "manifest.json"])
@pytest.mark.parametrize(
    "damage",
    [truncate, lambda path: path.write_bytes(b""), lambda path: path.write_bytes(b"\xff\x00" * 9)],
    ids=["truncated", "empty", "noise"],
)
def test_a_damaged_file_is_refused_with_its_path(
    folder: Path, name: str, damage: Callable[[Path], None]
) -> None:
    damage(folder / name)
    with pytest.raises(RunError) as error:
        load_run(folder)
    assert str(folder / name) in str(error.value)


@pytest.mark.parametrize(
    "name", ["manifest.json", "metrics.json", "model.safetensors", "recipe.toml"]
)
def test_a_missing_file_is_refused_with_its_name(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(RunError, match=name) as error:
        load_run(folder)
    assert str(folder) in str(error.value)


@pytest.mark.parametrize("content", [b"[model\n", b"\xff\xfe", b"[modle]\nlayers = 3\n"])
def test_a_damaged_recipe_is_refused_with_its_name(folder: Path, content: bytes) -> None:
    (folder / "recipe.toml").write_bytes(content)
    with pytest.raises(RunError, match=r"recipe\.toml"):
        load_run(folder)


@pytest.mark.parametrize("key", ["seed", "data_hash"])
def test_a_manifest_without_a_required_key_is_refused_with_the_key(folder: Path, key: str) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest[key]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(RunError, match=rf"manifest\.json.*{key}"):
        load_run(folder)


@pytest.mark.parametrize("content", ["[]", "3", "null"])
def test_a_manifest_that_is_not_a_json_object_is_refused(folder: Path, content: str) -> None:
    (folder / "manifest.json").write_text(content)
    with pytest.raises(RunError, match=r"manifest\.json.*object"):
        load_run(folder)


def test_a_run_of_another_format_is_refused(folder: Path) -> None:
    write_json(folder / "manifest.json", {"format": 99})
    with pytest.raises(RunError, match=r"format 99.*format 1"):
        load_run(folder)


def test_a_folder_of_several_runs_is_refused_with_one_of_them(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    folder.rename(tmp_path / "runs" / "seed-3")
    with pytest.raises(RunError, match=r"several runs.*seed-3"):
        load_run(tmp_path / "runs")


def test_a_finished_run_is_not_overwritten(folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(RunError, match=r"a finished run.*seed is 3 there and 4 here"):
        run(RECIPE, seed=4, out=folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_folder_without_a_manifest_is_trained_again(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    run(RECIPE, seed=4, out=folder)
    assert load_run(folder).seed == 4


@pytest.mark.parametrize("where", ["fsync", "replace"])
def test_no_partial_file_is_left_if_writing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def fail(*args: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(*((os, "fsync", fail) if where == "fsync" else (Path, "replace", fail)))
    with pytest.raises(OSError, match="no space left"):
        run(RECIPE, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_failure_halfway_leaves_complete_files_and_no_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really, written = Path.replace, []

    def fail_at_the_weights(self: Path, target: Path) -> Path:
        if target.name == "model.safetensors":
            raise OSError("no space left on device")
        written.append(target.name)
        return really(self, target)

    monkeypatch.setattr(Path, "replace", fail_at_the_weights)
    with pytest.raises(OSError, match="no space left"):
        run(RECIPE, out=tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == sorted(set(written))
    with pytest.raises(RunError, match="not a finished run"):
        load_run(tmp_path / "run")


def test_the_old_file_stays_if_its_replacement_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metrics.json"
    write_json(path, {"first": 1})
    monkeypatch.setattr(os, "fsync", lambda descriptor: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_json(path, {"second": 2})
    assert json.loads(path.read_text()) == {"first": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["metrics.json"]
