"""The memory and time of a run before it starts, and the regime that follows from them."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from unimp.cli import app
from unimp.config.recipe import Recipe
from unimp.data import memory
from unimp.errors import RecipeError
from unimp.model.node_model import NodeModel
from unimp.model.registry import build_model
from unimp.runs import estimate as module
from unimp.runs import preparation
from unimp.runs.context import Experiment
from unimp.runs.estimate import Estimate, estimate
from unimp.runs.experiment import run
from unimp.runs.fitting import fit_recipe
from unimp.runs.folder.resume import differences
from unimp.runs.pace import pace_of_steps
from unimp.runs.preparation import task_of
from unimp.runs.run import Run
from unimp.runs.work import in_width, outward, work_of
from unimp.tasks.task import Sizes, Task
from unimp.training.ranks import Ranks

RECIPE = Recipe(name="small").with_settings(
    [
        "task.name=synthetic",
        "task.scale=0.05",
        "model.width=8",
        "train.epochs=3",
        "train.device=cpu",
    ]
)


@pytest.fixture(scope="module")
def task() -> Task:
    return task_of(RECIPE, 0)


def model_of(recipe: Recipe, task: Task) -> NodeModel:
    torch.manual_seed(0)
    return build_model(recipe.model, task.sizes)


def estimated(recipe: Recipe, task: Task, *, timed: bool = False) -> Estimate:
    return estimate(recipe, model_of(recipe, task), task, "cpu", timed=timed)


def test_the_full_batch_is_chosen_if_it_fits(task: Task) -> None:
    found = estimated(RECIPE, task)
    assert (found.regime, found.reason) == ("full", "which fits")
    assert 0 < found.memory < found.available


def test_neighbors_are_sampled_if_the_full_batch_does_not_fit(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "available_memory", lambda device: 0)
    found = estimated(RECIPE, task)
    assert found.regime == "neighbors"
    assert "full batch needs" in found.in_words()


@pytest.mark.parametrize("regime", ["full", "partition", "neighbors"])
def test_the_regime_of_the_recipe_is_used_even_if_it_does_not_fit(
    regime: str, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "available_memory", lambda device: 0)
    found = estimated(RECIPE.with_settings([f"batch.regime={regime}"]), task)
    assert (found.regime, found.reason) == (regime, "as the recipe states")


def test_a_run_stores_the_regime_that_was_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(RECIPE, out=tmp_path / "roomy")
    monkeypatch.setattr(module, "available_memory", lambda device: 0)
    done = run(RECIPE, out=tmp_path / "narrow")
    assert done.recipe.batch.regime == "neighbors"
    assert differences(done.recipe, RECIPE) == []
    # A run that was finished with more free memory is still the same run.
    assert run(RECIPE, out=tmp_path / "roomy").recipe.batch.regime == "full"


def test_more_width_heads_and_layers_take_more_memory(task: Task) -> None:
    def more(*settings: str) -> int:
        recipe = RECIPE.with_settings([*settings, "batch.prune=false"])
        model = model_of(recipe, task)
        work = work_of(recipe, model, task, "full", 10.0, on_gpu=False)
        return module.training_bytes(recipe, model, task, work)

    assert more() < more("model.width=16") < more("model.width=16", "model.layers=4")
    assert more() < more("model.heads=4")
    assert more() < more("train.samples=2")


def test_consistency_and_small_graphs_compute_all_rows_of_a_full_batch(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(RECIPE, task)
    graph = task.graph
    for most, targets in ((graph.num_nodes + graph.num_edges, graph.num_nodes), (0, 10.0)):
        monkeypatch.setattr(preparation, "SMALL_GRAPH", most)
        work = work_of(RECIPE, model, task, "full", 10.0, on_gpu=False)
        assert work.targets[-1] == targets
    consistent = RECIPE.with_settings(["train.consistency=1"])
    pruned, whole = (
        work_of(recipe, model, task, "full", 10.0, on_gpu=False) for recipe in (RECIPE, consistent)
    )
    assert pruned.targets[-1] == 10.0
    assert whole.targets[-1] == task.graph.num_nodes


def test_rows_outward_from_seeds_never_exceed_the_nodes(task: Task) -> None:
    work = outward(task.graph, 20.0, [-1, -1, 3], steps=2.0)
    assert work.targets[-1] == 20.0
    assert work.sources[0] > work.sources[1] > work.sources[2] > 20.0
    assert work.sources[0] <= task.graph.num_nodes
    assert work.edges[-1] <= 3 * 20.0


def test_measuring_the_pace_changes_neither_the_model_nor_the_random_state(task: Task) -> None:
    model = model_of(RECIPE, task)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    fixed, pace = pace_of_steps(RECIPE, model, task, "cpu")
    assert fixed >= 0
    assert pace > 0
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_watching_a_run_does_not_change_it(tmp_path: Path) -> None:
    run(RECIPE, out=tmp_path / "watched", progress=True)
    run(RECIPE, out=tmp_path / "alone", progress=False)
    name = "model.safetensors"
    assert (tmp_path / "watched" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()


def test_a_time_limit_bounds_the_estimate(task: Task) -> None:
    recipe = RECIPE.with_settings(["train.epochs=1000000", "train.time_limit=90s"])
    found = estimated(recipe, task, timed=True)
    assert found.seconds == 90.0
    assert "at most 2 min" in found.in_words()


@pytest.mark.parametrize("name", ["unimp", "gcn", "gat"])
@pytest.mark.parametrize(
    ("settings", "width"),
    [
        ([], 500),
        (["model.inputs=A,Y"], 128),
        (["model.inputs=A,Y", "model.label_width=64"], 64),
        (["model.feature_encoder=true"], 16),
        (["model.inputs=A,Y", "model.feature_encoder=true"], 16),
    ],
)
def test_the_width_of_the_inputs_is_the_width_that_the_model_has(
    name: str, settings: list[str], width: int
) -> None:
    recipe = RECIPE.with_settings([f"model.name={name}", *settings])
    sizes = Sizes(features=500, edge_features=0, classes=4, multilabel=False)
    model = build_model(recipe.model, sizes)
    assert in_width(recipe, model) == width
    first = model.embed(torch.zeros(3, 500), torch.tensor([0, -1, 2]))
    assert first.shape == (3, width)


def test_labels_as_the_only_inputs_take_less_memory_than_wide_features(task: Task) -> None:
    wide = replace(task, graph=task.graph.with_features(torch.zeros(task.graph.num_nodes, 500)))

    def needed(*settings: str) -> int:
        recipe = RECIPE.with_settings(["model.name=gcn", *settings])
        return module.scoring_bytes(recipe, model_of(recipe, wide), wide)

    assert needed("model.inputs=A,Y") < needed() / 2


def test_the_command_prints_memory_time_and_what_stops_training() -> None:
    settings = [f"--set={s}" for s in ("task.scale=0.02", "model.width=4", "train.device=cpu")]

    def printed(*more: str) -> str:
        result = CliRunner().invoke(app, ["estimate", "synthetic", *settings, *more])
        assert result.exit_code == 0, result.output
        return " ".join(result.output.split())

    assert re.search(r"full batch on cpu \(.*about [\d.]+ GiB of .* per epoch", printed())
    assert "500 epochs" in printed()
    good = printed("--preset", "good")
    assert "100" in good
    assert "preset good" in good
    assert "GiB" not in printed("--set=model.name=label-propagation")


def test_a_memory_limit_of_the_cgroup_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_free_of_cgroups", lambda: [123])
    assert memory.available_memory("cpu") == 123
    monkeypatch.setattr(memory, "_free_of_cgroups", list)
    assert memory.available_memory("cpu") > 2**20


def test_a_process_uses_at_most_its_peak_memory() -> None:
    assert 2**20 < memory.resident_memory() <= 1.05 * memory.peak_memory()


@pytest.mark.parametrize(
    ("placement", "message"),
    [("gpu", "runs on cpu"), ("pinned", "runs on cpu"), ("disk", "not a store")],
)
def test_a_placement_that_is_not_possible_is_refused(
    placement: str, message: str, task: Task
) -> None:
    settings = ["batch.regime=neighbors", f"batch.placement={placement}"]
    with pytest.raises(RecipeError, match=message):
        estimated(RECIPE.with_settings(settings), task)
    with pytest.raises(RecipeError, match=message):
        run(RECIPE.with_settings(settings), model=lambda sizes: build_model(RECIPE.model, sizes))


def test_a_process_that_adopts_a_regime_keeps_the_placement_of_the_recipe(task: Task) -> None:
    class SecondOfTwo(Ranks):
        def agreed(self, value: Any) -> Any:
            return "neighbors" if value == "full" else value

    recipe = RECIPE.with_settings(["batch.placement=memory"])
    experiment = Experiment(recipe, 0, "cpu", ranks=SecondOfTwo())
    found, _, fit = fit_recipe(experiment, task, "", unused)
    assert (found.recipe.batch.regime, found.placement) == ("neighbors", "memory")
    assert len(fit.history) == 3


def unused(experiment: Experiment) -> Run:
    raise AssertionError("no ensemble is trained")


def test_the_estimate_states_where_the_graph_is(task: Task) -> None:
    found = estimated(RECIPE.with_settings(["batch.regime=neighbors"]), task)
    assert found.placement == "memory"
    assert "in main memory" in found.in_words()
    assert estimated(RECIPE, task).placement is None


def test_sampled_neighbors_are_counted_in_a_batch_that_is_drawn(task: Task) -> None:
    recipe = RECIPE.with_settings(["batch.fanout=[3]", "batch.batch_size=5"])
    model = model_of(recipe, task)
    work = work_of(recipe, model, task, "neighbors", 19.0, on_gpu=False)
    assert work.targets[-1] == 5
    assert work.steps == 19 / 5
    assert work.edges[-1] <= 3 * 5
    assert list(work.sources) == sorted(work.sources, reverse=True)
