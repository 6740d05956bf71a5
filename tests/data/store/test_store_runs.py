"""Training, scoring and predicting on a store gives what the tables in memory give."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from small_tables import small_tables, write_parts
from typer.testing import CliRunner

import unimp
from unimp.cli import app
from unimp.config.recipe import Recipe
from unimp.data import memory
from unimp.data.store.build import BuildOptions, build_store
from unimp.errors import RecipeError
from unimp.graph.graph import Graph
from unimp.model.registry import build_model
from unimp.runs import estimate as estimates
from unimp.runs.estimate import Estimate, estimate
from unimp.runs.preparation import task_of

SETTINGS = {
    "batch.batch_size": 32,
    "batch.fanout": [4, 4],
    "model.layers": 2,
    "model.width": 8,
    "model.heads": 2,
    "train.epochs": 2,
    "tables.features": {"embedding": "vector", "color": "categorical"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    tables = small_tables()
    recipe = write_parts(folder, tables).with_settings(SETTINGS)
    for name, table in zip(("nodes", "edges"), tables, strict=True):
        pyarrow.parquet.write_table(table, folder / f"{name}.parquet")
    (folder / "recipe.toml").write_text(recipe.to_toml(), encoding="utf-8")
    arguments = ["data", "build", str(folder / "recipe.toml"), "--out", str(folder / "small.graph")]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "300 nodes" in done.output
    return folder


def recipes(folder: Path, regime: str) -> tuple[Recipe, Recipe]:
    """The recipe on the tables, and the same one on the store."""
    recipe = unimp.load_recipe(folder / "recipe.toml", {"batch.regime": regime})
    files = {f"tables.{name}": str(folder / f"{name}.parquet") for name in ("nodes", "edges")}
    return recipe.with_settings(files), recipe.with_settings(
        {"task.name": str(folder / "small.graph")}
    )


@pytest.mark.parametrize("regime", ["neighbors", "partition", "full"])
def test_training_on_a_store_equals_training_on_the_tables(folder: Path, regime: str) -> None:
    on_tables, on_store = (unimp.run(recipe, seed=1) for recipe in recipes(folder, regime))
    weights = zip(on_tables.model.parameters(), on_store.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in weights)
    assert torch.equal(on_tables.predict(), on_store.predict())
    assert on_tables.evaluate() == on_store.evaluate()


@pytest.mark.parametrize("regime", ["neighbors", "full"])
def test_a_store_of_16_bit_features_is_trained(folder: Path, tmp_path: Path, regime: str) -> None:
    recipe = recipes(folder, regime)[1]
    settings = {"inference.chunk_edges": 500, "tables.edge_features": {}}
    tables = recipe.with_settings({"task.name": "tables"} | settings)
    build_store(tables, tmp_path / "small.graph", BuildOptions(precision="f16"))
    on_store = recipe.with_settings({"task.name": str(tmp_path / "small.graph")} | settings)
    found = unimp.run(on_store)
    assert found.predict().isfinite().all()


def test_a_run_on_a_store_is_scored_and_predicts_in_parts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unimp.run(recipes(folder, "neighbors")[1], out=folder / "run")
    monkeypatch.setattr("unimp.analysis.predictions.NODES_PER_PART", 70)
    invoke = CliRunner().invoke
    done = invoke(app, ["evaluate", str(folder / "run")])
    assert done.exit_code == 0, done.output
    done = invoke(app, ["predict", str(folder / "run"), "--out", str(folder / "parts")])
    assert done.exit_code == 0, done.output
    assert len(list((folder / "parts").iterdir())) == 5
    parts = pyarrow.parquet.read_table(folder / "parts")
    whole = unimp.load_run(folder / "run").predictions().to_arrow()
    assert parts.equals(whole)
    monkeypatch.setattr("unimp.analysis.predictions.NODES_PER_PART", 1000)
    assert unimp.load_run(folder / "run").predictions().to_arrow().equals(whole)
    names = pyarrow.parquet.read_table(folder / "nodes.parquet")["id"]
    assert whole["node"].to_pylist() == names.to_pylist()
    again = invoke(app, ["predict", str(folder / "run"), "--out", str(folder / "parts")])
    assert again.exit_code != 0


@pytest.mark.parametrize(
    "settings",
    [{}, {"model.propagated_labels": True}, {"model.name": "sage"}, {"model.head": "linear"}],
)
def test_predictions_within_a_small_memory_limit_are_the_same(
    folder: Path, tmp_path: Path, settings: dict[str, object]
) -> None:
    # Edge features of these tables are so large that any order of sums changes the result.
    chunks = {"inference.chunk_edges": 90, "model.edge_features": False, **settings}
    expected = unimp.run(
        recipes(folder, "neighbors")[1].with_settings(chunks), out=tmp_path / "run"
    )
    predict = ["predict", str(tmp_path / "run"), "--out", str(tmp_path / "parts")]
    done = CliRunner().invoke(app, [*predict, "--memory", "40K", "--probabilities"])
    assert done.exit_code == 0, done.output
    found = pyarrow.parquet.read_table(tmp_path / "parts")
    whole = expected.predictions(probabilities=True).to_arrow()
    assert found["prediction"] == whole["prediction"]
    for name in whole.column_names:
        if name.startswith("p_"):
            one, other = (torch.tensor(table[name].to_pylist()) for table in (found, whole))
            torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
    scored = CliRunner().invoke(app, ["evaluate", str(tmp_path / "run"), "--memory", "40K"])
    assert scored.exit_code == 0, scored.output


@pytest.mark.skipif(os.name == "nt", reason="gloo over files needs a POSIX system")
@pytest.mark.parametrize("memory", ["40K", "1G"])
def test_two_processes_predict_and_score_a_store_together(
    folder: Path, tmp_path: Path, memory: str
) -> None:
    settings = {"model.edge_features": False, "model.propagated_labels": True}
    recipe = recipes(folder, "neighbors")[1].with_settings(settings)
    expected = unimp.run(recipe, out=tmp_path / "run")

    def output_of(*arguments: str) -> str:
        command = [sys.executable, "-m", "unimp", arguments[0], str(tmp_path / "run")]
        options = [*arguments[1:], "--devices", "2", "--memory", memory]
        done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    output_of("predict", "--out", str(tmp_path / "parts"), "--probabilities")
    found = pyarrow.parquet.read_table(tmp_path / "parts")
    whole = expected.predictions(probabilities=True).to_arrow()
    for name in (name for name in whole.column_names if name.startswith("p_")):
        one, other = (torch.tensor(table[name].to_pylist()) for table in (found, whole))
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
    scored = CliRunner().invoke(app, ["evaluate", str(tmp_path / "run")])
    assert output_of("evaluate") == scored.stdout


@pytest.mark.parametrize("model", ["label-propagation", "gcn"])
def test_a_model_that_copies_all_edges_is_refused_if_they_do_not_fit(
    folder: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipes(folder, "neighbors")[1].with_settings({"model.name": model})
    inputs = {"model.inputs": "A,Y"} if model == "label-propagation" else {}
    monkeypatch.setattr("unimp.runs.preparation.shortage", lambda needed: "it needs 9 GiB")
    with pytest.raises(unimp.UnimpError, match="9 GiB"):
        unimp.run(recipe.with_settings(inputs))


def test_a_run_refuses_a_store_with_other_content(folder: Path, tmp_path: Path) -> None:
    recipe = write_parts(tmp_path, small_tables(seed=5)).with_settings(SETTINGS)
    (tmp_path / "recipe.toml").write_text(recipe.to_toml(), encoding="utf-8")
    build = ["data", "build", str(tmp_path / "recipe.toml"), "--out"]
    assert CliRunner().invoke(app, [*build, str(tmp_path / "s.graph")]).exit_code == 0
    on_store = recipe.with_settings(
        {"task.name": str(tmp_path / "s.graph"), "batch.regime": "neighbors"}
    )
    unimp.run(on_store, out=tmp_path / "run")
    (tmp_path / "s.graph").rename(tmp_path / "old.graph")
    assert unimp.load_recipe(tmp_path / "old.graph").task.name.endswith("old.graph")
    (folder / "small.graph").rename(tmp_path / "s.graph")
    try:
        with pytest.raises(unimp.UnimpError, match="other data"):
            unimp.load_run(tmp_path / "run")
    finally:
        (tmp_path / "s.graph").rename(folder / "small.graph")


def test_a_store_is_verified(folder: Path) -> None:
    verify = ["data", "verify", str(folder / "small.graph")]
    assert CliRunner().invoke(app, verify).exit_code == 0
    path = folder / "small.graph" / "source.npy"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    try:
        assert CliRunner().invoke(app, verify).exit_code != 0
    finally:
        path.write_bytes(data)


@pytest.mark.parametrize("memory", ["much", "10M", "-1G"])
def test_a_memory_limit_that_is_too_small_is_refused(folder: Path, memory: str) -> None:
    build = ["data", "build", str(folder / "recipe.toml"), "--out", str(folder / "other.graph")]
    assert CliRunner().invoke(app, [*build, "--memory", memory]).exit_code != 0
    assert not (folder / "other.graph").exists()


def test_predictions_of_a_store_with_integer_ids_have_integers(tmp_path: Path) -> None:
    recipe = write_parts(tmp_path, small_tables(text=False)).with_settings(SETTINGS)
    build_store(recipe, tmp_path / "s.graph")
    found = unimp.run(recipe.with_settings({"task.name": str(tmp_path / "s.graph")}))
    assert found.predictions().to_arrow()["node"].type == pa.int64()


def test_results_do_not_depend_on_the_place_of_the_store(folder: Path) -> None:
    recipe = recipes(folder, "neighbors")[1]
    places = [
        {"batch.placement": "disk"},
        {"batch.placement": "memory", "batch.prefetch": False, "batch.workers": 0},
    ]
    one, other = (unimp.run(recipe.with_settings(place), seed=1) for place in places)
    weights = zip(one.model.parameters(), other.model.parameters(), strict=True)
    assert all(torch.equal(first, second) for first, second in weights)


def estimated(recipe: Recipe, device: str) -> Estimate:
    task = task_of(recipe, 0)
    return estimate(recipe, build_model(recipe.model, task.sizes), task, device, timed=False)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_copy_of_a_store_takes_main_memory_alone(
    folder: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimates, "available_memory", lambda device: 2**30)
    monkeypatch.setattr(estimates, "anonymous_memory", lambda: 0)
    monkeypatch.setattr(estimates, "backend_in_words", lambda backend, device: backend)
    recipe = recipes(folder, "neighbors")[1]
    on_disk, in_memory = (
        estimated(recipe.with_settings({"batch.placement": place}), device).memory
        for place in ("disk", "memory")
    )
    copy = 0 if device == "cuda" else task_of(recipe, 0).graph.nbytes
    assert in_memory == on_disk + copy


@pytest.mark.parametrize("placement", ["memory", "pinned"])
def test_a_copy_that_does_not_fit_into_main_memory_is_refused(
    folder: Path, placement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimates, "available_memory", lambda device: 2**30)
    monkeypatch.setattr(estimates, "backend_in_words", lambda backend, device: backend)
    recipe = recipes(folder, "neighbors")[1].with_settings({"batch.placement": placement})
    assert estimated(recipe, "cuda").placement == placement
    graph = task_of(recipe, 0).graph
    assert graph.x is not None
    size = graph.nbytes if placement == "memory" else graph.x.nbytes
    monkeypatch.setattr(memory, "available_memory", lambda device: size - 1)
    with pytest.raises(RecipeError, match=f"placement is '{placement}', but .* memory"):
        estimated(recipe, "cuda")


def test_a_store_is_copied_to_memory_for_training_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[Graph] = []
    copied = Graph.copied
    monkeypatch.setattr(Graph, "copied", lambda graph: copies.append(graph) or copied(graph))
    recipe = recipes(folder, "neighbors")[1].with_settings({"batch.placement": "memory"})
    found = unimp.run(recipe, progress=True)  # measures the time of an epoch first
    assert len(copies) == 1
    found.predict()
    found.live()
    assert len(copies) == 1
