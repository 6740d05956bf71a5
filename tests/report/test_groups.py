"""Which runs form one row of the results."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from unimp.config.recipe import load_recipe
from unimp.report.groups import Group, compare, differing, telling
from unimp.runs.evidence import find_runs, gather
from unimp.runs.experiment import run
from unimp.tasks.means import mean_text
from unimp.tasks.task import Task


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([0], "0"),
        ([2, 0, 1], "0–2"),
        ([0, 1, 3, 5, 6, 7], "0–1, 3, 5–7"),
        ([4, 4, 5], "4–5 (3 runs)"),
    ],
)
def test_seeds_are_written_as_ranges(numbers: list[int], words: str) -> None:
    runs = tuple(SimpleNamespace(manifest={"seed": number}) for number in numbers)
    assert Group("recipe", runs).seeds == words  # type: ignore[arg-type]


def test_seeds_of_a_recipe_are_one_group_and_recipes_have_different_names(several: Path) -> None:
    (one,) = compare([gather(place) for place in find_runs([several])])
    sizes = {group.name: len(group.runs) for group in one.groups}
    assert sizes == {
        "synthetic": 2,
        "synthetic, model.inputs=X,A": 2,
        "synthetic, model.name=label-propagation": 1,
    }
    assert differing([group.recipe for group in one.groups]) == ["model.name", "model.inputs"]


def test_the_deviation_over_seeds_is_the_unbiased_one(several: Path) -> None:
    (one,) = compare([gather(place) for place in find_runs([several])])
    (group,) = [group for group in one.groups if group.name == "synthetic"]
    values = group.scores("test")
    mean, std = 100 * statistics.mean(values), 100 * statistics.stdev(values)
    assert mean_text(values) == f"{mean:.2f} ± {std:.2f}"
    assert mean_text(values[:1]) == f"{100 * values[0]:.2f}"
    assert mean_text([]) == "–"


def test_each_task_has_its_own_comparison(several: Path, binary: Path) -> None:
    both = compare([gather(several / "seed-0"), gather(binary)])
    assert [(one.task, one.metric) for one in both] == [
        ("synthetic", "accuracy"),
        ("binary", "rocauc"),
    ]
    assert not math.isnan(both[0].groups[0].mean("test"))


def trained(task: Task, seed: int, place: Path) -> Path:
    run(task, seed=seed, out=place, settings=["train.epochs=1", "model.width=4"])
    return place


@pytest.mark.parametrize("smaller", [10, 18])
def test_tasks_stored_in_run_folders_are_distinguished_by_their_train_sets(
    smaller: int, own_task: Task, tmp_path: Path
) -> None:
    for seed in (0, 1):
        for size in (smaller, 20):
            # As in Figure (b): each seed has its own share of the train labels.
            order = torch.randperm(20, generator=torch.Generator().manual_seed(seed))
            train = own_task.split.train[order[:size]].sort().values
            task = replace(own_task, split=replace(own_task.split, train=train))
            trained(task, seed, tmp_path / f"share-{size}" / f"seed-{seed}")
    (one,) = compare([gather(place) for place in find_runs([tmp_path])])
    found = {group.name.split(", ")[-1]: group.seeds for group in one.groups}
    assert found == {f"{smaller} train nodes": "0–1", "20 train nodes": "0–1"}


def test_one_seed_on_other_data_is_not_another_seed(own_task: Task, tmp_path: Path) -> None:
    other = replace(own_task, labels=1 - own_task.labels)
    places = [trained(own_task, 0, tmp_path / "a"), trained(other, 0, tmp_path / "b")]
    (one,) = compare([gather(place) for place in places])
    assert [len(group.runs) for group in one.groups] == [1, 1]
    assert len({group.name for group in one.groups}) == 2
    assert all(", data " in group.name for group in one.groups)


def test_a_custom_model_is_not_grouped_with_the_model_of_the_recipe(several: Path) -> None:
    plain = [gather(several / f"seed-{seed}") for seed in (0, 1)]
    own = replace(plain[1], manifest={**plain[1].manifest, "model": "Mine"})
    (one,) = compare([plain[0], own])
    assert [group.name for group in one.groups] == ["synthetic", "synthetic, Mine"]


def test_seeds_with_their_own_train_sets_are_one_group(own_task: Task, tmp_path: Path) -> None:
    for seed, size in ((0, 20), (1, 18), (2, 19)):
        train = own_task.split.train[:size]
        task = replace(own_task, split=replace(own_task.split, train=train))
        trained(task, seed, tmp_path / f"seed-{seed}")
    (one,) = compare([gather(place) for place in find_runs([tmp_path])])
    assert [group.seeds for group in one.groups] == ["0–2"]


def test_the_name_of_an_untrained_model_contains_no_options_of_training(several: Path) -> None:
    trained, propagated = gather(several / "seed-0"), gather(several / "propagation")
    longer = trained.recipe.with_settings(["train.epochs=5"])
    longest = trained.recipe.with_settings(["train.epochs=6", "model.name=gcn"])
    (one,) = compare(
        [replace(trained, recipe=longer), replace(trained, recipe=longest), propagated]
    )
    assert [group.name for group in one.groups] == [
        "synthetic, train.epochs=5",
        "synthetic, model.name=gcn, train.epochs=6",
        "synthetic, model.name=label-propagation",
    ]
    epochs = {group.recipe.train.epochs for group in one.groups}
    assert len(epochs) == 3  # without the rule, all three names would contain it


def test_a_task_stored_in_a_run_folder_is_not_distinguished_by_its_scale() -> None:
    drawn = load_recipe("synthetic", ["task.scale=0.05"])
    kept = load_recipe("synthetic").with_task(Path("run/task.npz"))
    assert telling([drawn, kept]) == [[], []]
    other = load_recipe("synthetic", ["task.scale=0.5"])
    assert telling([drawn, other, kept]) == [["task.scale"], ["task.scale"], []]
