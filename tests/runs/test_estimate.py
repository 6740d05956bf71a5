"""What a run is about to take, and the regime that follows."""

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from unimp.cli import app
from unimp.config.recipe import Recipe, differences
from unimp.model.node_model import NodeModel
from unimp.model.registry import build_model
from unimp.ops import memory
from unimp.runs import estimate as module
from unimp.runs.estimate import Estimate, estimate, outward, pace_of_steps, work_of
from unimp.runs.experiment import run
from unimp.runs.preparation import task_of
from unimp.tasks.task import Task

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


def said(recipe: Recipe, task: Task, *, timed: bool = False) -> Estimate:
    return estimate(recipe, model_of(recipe, task), task, "cpu", timed=timed)


def test_the_full_batch_is_chosen_where_it_fits(task: Task) -> None:
    found = said(RECIPE, task)
    assert (found.regime, found.reason) == ("full", "which fits")
    assert 0 < found.memory < found.available


def test_neighbors_are_sampled_where_the_full_batch_does_not_fit(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "available_memory", lambda device: 0)
    found = said(RECIPE, task)
    assert found.regime == "neighbors"
    assert "as the full batch needs about " in found.in_words()


@pytest.mark.parametrize("regime", ["full", "partition", "neighbors"])
def test_a_regime_that_is_asked_for_is_taken(
    regime: str, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "available_memory", lambda device: 0)
    found = said(RECIPE.with_settings([f"batch.regime={regime}"]), task)
    assert (found.regime, found.reason) == (regime, "as the recipe says")


def test_a_run_keeps_the_regime_that_was_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(RECIPE, out=tmp_path / "roomy")
    monkeypatch.setattr(module, "available_memory", lambda device: 0)
    done = run(RECIPE, out=tmp_path / "narrow")
    assert done.recipe.batch.regime == "neighbors"
    assert differences(done.recipe, RECIPE) == []
    # What was begun, or finished, with more memory free is still the same run.
    assert run(RECIPE, out=tmp_path / "roomy").recipe.batch.regime == "full"


def test_more_nodes_width_and_layers_take_more(task: Task) -> None:
    def more(*settings: str) -> int:
        recipe = RECIPE.with_settings([*settings, "batch.prune=false"])
        model = model_of(recipe, task)
        work = work_of(recipe, model, task, "full", 10.0, on_gpu=False)
        return module.training_bytes(recipe, model, task, work)

    assert more() < more("model.width=16") < more("model.width=16", "model.layers=4")
    assert more() < more("model.heads=4")


def test_rows_outward_from_seeds_never_exceed_the_nodes(task: Task) -> None:
    work = outward(task.graph, 20.0, [-1, -1, 3], steps=2.0)
    assert work.targets[-1] == 20.0
    assert work.sources[0] > work.sources[1] > work.sources[2] > 20.0
    assert work.sources[0] <= task.graph.num_nodes
    assert work.edges[-1] <= 3 * 20.0


def test_measuring_the_pace_leaves_model_and_random_state_as_they_were(task: Task) -> None:
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


def test_a_time_limit_bounds_what_is_said(task: Task) -> None:
    recipe = RECIPE.with_settings(["train.epochs=1000000", "train.time_limit=90s"])
    found = said(recipe, task, timed=True)
    assert found.seconds == 90.0
    assert "at most 2 min in all" in found.in_words()


def test_the_command_says_it_in_a_line() -> None:
    settings = [f"--set={s}" for s in ("task.scale=0.02", "model.width=4", "train.device=cpu")]
    result = CliRunner().invoke(app, ["estimate", "synthetic", *settings])
    assert result.exit_code == 0, result.output
    assert result.output.startswith("estimate: full batch on cpu (")
    assert "trains up to " in result.output
    good = CliRunner().invoke(app, ["estimate", "synthetic", *settings, "--preset", "good"])
    assert "100 without as good a score end it (preset good)" in good.output
    assert "which fits; about " in result.output
    assert " an epoch, " in result.output
    settings.append("--set=model.name=label-propagation")
    assert (
        "nothing to train" in CliRunner().invoke(app, ["estimate", "synthetic", *settings]).output
    )


def test_a_limit_of_the_cgroup_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_free_of_cgroups", lambda: [123])
    assert memory.available_memory("cpu") == 123
    monkeypatch.setattr(memory, "_free_of_cgroups", list)
    assert memory.available_memory("cpu") > 2**20


def test_a_process_has_no_more_now_than_at_its_peak() -> None:
    assert 2**20 < memory.resident_memory() <= 1.05 * memory.peak_memory()
