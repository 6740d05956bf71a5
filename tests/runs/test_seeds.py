"""Several seeds of one recipe: their folders, their summary, and when nothing is trained."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import unimp
from unimp.config.recipe import Recipe
from unimp.errors import RunError, UnimpError
from unimp.runs.experiment import run
from unimp.runs.loading import load_run
from unimp.runs.run import Run
from unimp.runs.seeds import Runs

RECIPE = Recipe(name="small").with_settings(
    [
        "task.name=synthetic",
        "task.scale=0.02",
        "model.width=8",
        "model.layers=2",
        "train.epochs=3",
        "train.lr=0.01",
        "train.device=cpu",
    ]
)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return run(RECIPE, seeds=range(3), out=tmp_path_factory.mktemp("runs") / "three", report=False)


def folder_of(runs: Runs) -> Path:
    assert runs.folder is not None
    return runs.folder


def test_several_seeds_return_their_runs_in_order(three: Runs) -> None:
    assert isinstance(three, Runs)
    assert len(three) == 3
    assert [done.seed for done in three] == [0, 1, 2]
    assert three[1].seed == 1
    assert [done.seed for done in three[1:]] == [1, 2]
    assert all(isinstance(done, Run) for done in three)


def test_each_seed_is_the_run_of_that_seed_alone(three: Runs) -> None:
    alone = run(RECIPE, seed=2)
    assert torch.equal(three[2].predict(), alone.predict())
    assert three[2].metrics["scores"] == alone.metrics["scores"]
    assert not torch.equal(three[1].predict(), three[2].predict())


def test_each_seed_has_a_folder_that_can_be_loaded(three: Runs) -> None:
    names = {path.name for path in folder_of(three).iterdir()}
    assert names == {"seed-0", "seed-1", "seed-2", "summary.json"}
    loaded = load_run(folder_of(three) / "seed-1", device="cpu")
    assert torch.equal(loaded.predict(), three[1].predict())


def test_the_summary_is_a_table_of_means_and_deviations(three: Runs) -> None:
    table = three.summary
    assert table.column_names == ["labels_as_inputs", "set", "mean", "std", "values"]
    rows = {(row["labels_as_inputs"], row["set"]): row for row in table.to_pylist()}
    assert set(rows) == {("train", "val"), ("train", "test"), ("train+val", "test")}
    values = torch.tensor([done.metrics["scores"]["train"]["test"] for done in three]).double()
    row = rows["train", "test"]
    assert row["values"] == pytest.approx(values.tolist())
    assert row["mean"] == pytest.approx(values.mean().item())
    assert row["std"] == pytest.approx(values.std().item())


def test_the_summary_file_contains_the_same_scores(three: Runs) -> None:
    stored = json.loads((folder_of(three) / "summary.json").read_text())
    assert stored["recipe"] == "small"
    assert stored["metric"] == "accuracy"
    assert stored["seeds"] == [0, 1, 2]
    assert stored["scores"] == three.scores
    assert stored["parameters"] == three[0].metrics["parameters"]


def test_the_runs_show_mean_and_deviation_per_protocol(three: Runs) -> None:
    text = repr(three)
    assert "small" in text
    assert "3 seeds" in text
    assert f"{100 * three.scores['train']['test']['mean']:.2f}" in text
    assert str(three.folder) in text


def test_several_seeds_without_a_folder_have_a_summary_too() -> None:
    runs = run(RECIPE, seeds=[4, 1, 4])
    assert [done.seed for done in runs] == [4, 1]
    assert runs.folder is None
    assert len(runs.summary) == 3


def test_one_seed_in_a_list_is_stored_like_several(tmp_path: Path) -> None:
    runs = run(RECIPE, seeds=[5], out=tmp_path / "one", report=False)
    assert isinstance(runs, Runs)
    assert load_run(tmp_path / "one" / "seed-5").seed == 5
    assert json.loads((tmp_path / "one" / "summary.json").read_text())["seeds"] == [5]
    assert runs.summary["values"].to_pylist() == [[x] for x in runs.summary["mean"].to_pylist()]


@pytest.mark.parametrize("seeds", [[], [-1], [0, -3], 3, [0.5], "012", [True], [2**70], None])
def test_what_is_not_a_list_of_seeds_is_refused(seeds: Any) -> None:
    wrong: dict[str, Any] = {"seeds": seeds} if seeds is not None else {"seed": 0.5}
    with pytest.raises(UnimpError, match="seed"):
        run(RECIPE, **wrong)


def test_a_folder_with_another_run_is_refused_before_any_seed_is_trained(tmp_path: Path) -> None:
    run(RECIPE, seed=7, out=tmp_path / "runs" / "seed-2", report=False)
    trained: list[Any] = []
    with pytest.raises(RunError, match="seed is 7 there and 2 here"):
        run(RECIPE, seeds=range(3), out=tmp_path / "runs", on_epoch=trained.append)
    assert trained == []
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["seed-2"]


def test_a_link_is_refused_as_the_folder_of_a_seed(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "runs"
    outside.mkdir()
    folder.mkdir()
    (folder / "seed-1").symlink_to(outside)
    with pytest.raises(RunError, match="seed-1 is a link"):
        run(RECIPE, seeds=range(2), out=folder, report=False)
    assert list(outside.iterdir()) == []
    assert [path.name for path in folder.iterdir()] == ["seed-1"]


def test_finished_seeds_are_loaded_and_further_seeds_are_trained(tmp_path: Path) -> None:
    first = run(RECIPE, seeds=[0, 1], out=tmp_path / "runs", report=False)
    epochs: list[int] = []
    more = run(
        RECIPE,
        seeds=range(3),
        out=tmp_path / "runs",
        report=False,
        on_epoch=lambda epoch: epochs.append(epoch.epoch),
    )
    assert epochs == [1, 2, 3]  # of seed 2 alone
    assert torch.equal(more[0].predict(), first[0].predict())
    assert json.loads((tmp_path / "runs" / "summary.json").read_text())["seeds"] == [0, 1, 2]


def test_every_run_is_passed_on_as_soon_as_it_is_finished() -> None:
    seen: list[tuple[str, int]] = []
    run(
        RECIPE,
        seeds=[0, 1],
        on_epoch=lambda epoch: seen.append(("epoch", epoch.epoch)),
        on_run=lambda done: seen.append(("run", done.seed)),
    )
    epochs = [("epoch", number) for number in (1, 2, 3)]
    assert seen == [*epochs, ("run", 0), *epochs, ("run", 1)]


def test_the_time_limit_and_the_seconds_count_for_each_seed_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A clock that advances by 1000 s after the first seed."""
    clock, waited = time.perf_counter, 0.0
    monkeypatch.setattr("time.perf_counter", lambda: clock() + waited)

    def wait(done: Run) -> None:
        nonlocal waited
        waited += 1000

    recipe = RECIPE.with_settings(["train.time_limit=500"])
    first, second = run(recipe, seeds=[0, 1], on_run=wait)
    assert second.metrics["epochs"] == first.metrics["epochs"] == 3
    assert "time limit" not in second.metrics["stopped"]
    assert second.metrics["seconds"] < 1000


def test_the_package_exports_several_seeds_as_well() -> None:
    assert isinstance(unimp.run(RECIPE, seeds=[0]), Runs)
