"""Presets: they fill in what nobody has set."""

from pathlib import Path

import pytest

from unimp.config.options import seconds_of
from unimp.config.presets import PRESETS, preset_help, recipe_with_preset
from unimp.config.recipe import Recipe, load_recipe
from unimp.errors import RecipeError
from unimp.runs.experiment import run


def test_a_task_without_a_recipe_of_its_own_gets_all_of_a_preset() -> None:
    for name, preset in PRESETS.items():
        recipe = recipe_with_preset("synthetic", [], name)
        values = recipe.model_dump()
        for place, value in preset.options.items():
            section, _, key = place.partition(".")
            assert values[section][key] == value
        assert name in preset_help()


def test_what_is_set_by_hand_stays_even_where_it_is_the_default() -> None:
    default = Recipe().train.epochs
    recipe = recipe_with_preset("synthetic", [f"train.epochs={default}"], "quick")
    assert recipe.train.epochs == default
    assert recipe.model.width == 64


def test_what_a_recipe_of_ones_own_sets_stays(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[task]\nname = "synthetic"\n[train]\nepochs = 7\n[model]\nlayers = 3\n')
    recipe = recipe_with_preset(path, ["model.heads=1"], "quick")
    assert recipe.train.epochs == 7
    assert recipe.model.layers == 3
    assert recipe.model.width == 64
    assert recipe.model.heads == 1


def test_of_a_recipe_that_comes_with_the_package_only_the_length_changes() -> None:
    plain, quick = load_recipe("debian"), recipe_with_preset("debian", [], "quick")
    assert quick.train.epochs == 60 != plain.train.epochs
    assert quick.model == plain.model
    assert quick.train.lr == plain.train.lr
    kept = recipe_with_preset("debian", ["train.epochs=9"], "quick")
    assert kept.train.epochs == 9


def test_without_a_preset_nothing_changes() -> None:
    assert recipe_with_preset("debian") == load_recipe("debian")


def test_tables_without_a_preset_are_trained_as_long_as_they_get_better(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text('[tables]\nnodes = "customers.csv"\nedges = "calls.csv"\n')
    plain = recipe_with_preset(path)
    assert plain == recipe_with_preset(path, [], "good")
    assert plain.train.patience == PRESETS["good"].options["train.patience"] > 0
    assert recipe_with_preset(plain) == plain
    quick = recipe_with_preset(path, [], "quick")
    assert recipe_with_preset(quick) == quick  # as `unimp train` hands it to `run`
    assert recipe_with_preset(path, ["train.patience=0"]).train.patience == 0
    path.write_text(path.read_text() + "[train]\nepochs = 7\n")
    assert recipe_with_preset(path).train.epochs == 7


def test_a_preset_of_another_name_is_refused() -> None:
    with pytest.raises(RecipeError, match="no preset 'fast'; presets are quick, good, best"):
        run("synthetic", preset="fast")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("10m", 600), ("1.5h", 5400), (" 2 m ", 120)]
)
def test_a_time_is_told_in_seconds_minutes_or_hours(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds
    assert Recipe().with_settings([f"train.time_limit={text}"]).train.time_limit == seconds


@pytest.mark.parametrize("text", ["soon", "10 days", "-3m", "m"])
def test_a_time_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(RecipeError, match=r"train\.time_limit.*"):
        Recipe().with_settings([f"train.time_limit={text}"])


def test_inputs_that_a_model_would_pass_over_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"X,A,Y, but appnp always takes X,A; .*MaskedLabels"):
        recipe_with_preset("debian", ["model.name=appnp", "model.inputs=X,A,Y"])
    # What a recipe says of UniMP's inputs does not bind another model, and the same is no mistake.
    assert recipe_with_preset("arxiv-labels", ["model.name=gcn-lpa"]).model.name == "gcn-lpa"
    recipe_with_preset("debian", ["model.name=label-propagation", "model.inputs=A,Y"])
    recipe_with_preset("debian", {"model.name": "mlp", "model.inputs": "X,A,Y"})
