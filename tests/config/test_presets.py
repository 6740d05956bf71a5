"""Presets fill in options that are not set."""

from pathlib import Path

import pytest

from unimp.config.options import seconds_of
from unimp.config.presets import PRESETS, preset_help, recipe_with_preset
from unimp.config.recipe import Recipe, load_recipe
from unimp.errors import RecipeError
from unimp.runs.recipes import resolve_recipe


@pytest.mark.parametrize("name", ["synthetic", "debian"])
def test_a_preset_trains_its_ensemble_within_its_time_limit(name: str) -> None:
    limits = []
    for preset in PRESETS:
        recipe = recipe_with_preset(name, [], preset)
        assert recipe.ensemble.portfolio == preset
        assert recipe.model == load_recipe(name).model
        limits.append(recipe.train.time_limit)
        assert preset in preset_help()
    assert limits == sorted(limits)
    shorter = recipe_with_preset(name, ["train.time_limit=5", "train.device=cpu"], "best")
    assert shorter.ensemble.portfolio == "best"
    assert shorter.train.time_limit == 5


def test_a_preset_uses_the_precision_auto_cpu_unless_one_is_set() -> None:
    assert recipe_with_preset("synthetic", [], "good").train.precision == "auto-cpu"
    exact = recipe_with_preset("synthetic", ["train.precision=fp32"], "good")
    assert exact.train.precision == "fp32"
    assert exact.ensemble.portfolio == "good"
    assert recipe_with_preset("synthetic", ["model.width=8"], "good").train.precision == "fp32"


@pytest.mark.parametrize("setting", ["model.width=64", "mask.label_rate=0.5", "train.epochs=9"])
def test_options_of_one_model_select_that_model_alone(setting: str) -> None:
    recipe = recipe_with_preset("synthetic", [setting], "good")
    assert recipe.ensemble.portfolio == "none"
    assert recipe.train.patience == PRESETS["good"].alone["train.patience"]


def test_a_setting_overrides_the_preset_even_if_it_is_the_default() -> None:
    default = Recipe().train.epochs
    recipe = recipe_with_preset("synthetic", [f"train.epochs={default}"], "quick")
    assert recipe.train.epochs == default
    assert recipe.model.width == 64


def test_options_of_the_users_own_recipe_override_the_preset(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[task]\nname = "synthetic"\n[train]\nepochs = 7\n[model]\nlayers = 3\n')
    recipe = recipe_with_preset(path, ["model.heads=1"], "quick")
    assert recipe.train.epochs == 7
    assert recipe.model.layers == 3
    assert recipe.model.width == 64
    assert recipe.model.heads == 1


def test_a_preset_changes_only_the_length_of_training_of_a_bundled_model() -> None:
    plain, quick = load_recipe("debian"), recipe_with_preset("debian", ["train.lr=0.5"], "quick")
    assert quick.train.epochs == 60 != plain.train.epochs
    assert quick.model == plain.model
    assert quick.train.lr == 0.5
    kept = recipe_with_preset("debian", ["train.epochs=9"], "quick")
    assert kept.train.epochs == 9


def test_without_a_preset_a_bundled_recipe_stays_as_it_is() -> None:
    assert recipe_with_preset("debian") == load_recipe("debian")


def test_tables_without_a_preset_get_the_preset_good(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text('[tables]\nnodes = "customers.csv"\nedges = "calls.csv"\n')
    plain = recipe_with_preset(path)
    assert plain == recipe_with_preset(path, [], "good")
    assert plain.ensemble.portfolio == "good"
    assert recipe_with_preset(plain) == plain
    quick = recipe_with_preset(path, [], "quick")
    assert recipe_with_preset(quick) == quick  # as `unimp train` passes it to `run`
    assert recipe_with_preset(path, ["train.patience=0"]).train.patience == 0
    path.write_text(path.read_text() + "[train]\nepochs = 7\n")
    assert recipe_with_preset(path).train.epochs == 7


def test_an_unknown_preset_is_refused_with_the_presets_that_exist() -> None:
    with pytest.raises(RecipeError, match=r"'fast'.*quick, good, best"):
        recipe_with_preset("synthetic", preset="fast")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("10m", 600), ("1.5h", 5400), (" 2 m ", 120)]
)
def test_a_time_limit_is_given_in_seconds_minutes_or_hours(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds
    assert Recipe().with_settings([f"train.time_limit={text}"]).train.time_limit == seconds


@pytest.mark.parametrize("text", ["soon", "10 days", "-3m", "m"])
def test_a_text_that_is_not_a_time_is_refused(text: str) -> None:
    with pytest.raises(RecipeError, match=rf"train\.time_limit.*{text}"):
        Recipe().with_settings([f"train.time_limit={text}"])


def test_inputs_that_a_model_would_ignore_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"model\.inputs.* X,A,Y,.*appnp.* X,A;.*MaskedLabels"):
        resolve_recipe("debian", ["model.name=appnp", "model.inputs=X,A,Y"])
    with pytest.raises(RecipeError, match=r"model\.inputs.* X,A,.*mlp"):
        resolve_recipe("debian", ["model.inputs=X,A", "model.name=mlp"])
    with pytest.raises(RecipeError, match=r"model\.inputs.* A,Y,.*mlp"):
        resolve_recipe("debian", {"model.name": "mlp", "model.inputs": "A,Y"})
    with pytest.raises(RecipeError, match=r"model\.inputs.* X,.*unimp takes X,A,Y or X,A or A,Y"):
        resolve_recipe("debian", ["model.inputs=X"])


def test_inputs_in_a_recipe_file_that_its_model_does_not_take_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "labels.toml"
    path.write_text('[task]\nname = "synthetic"\n[model]\nname = "mlp"\ninputs = "A,Y"\n')
    with pytest.raises(RecipeError, match=r"model\.inputs.* A,Y,.*mlp takes X;"):
        resolve_recipe(str(path))


def test_inputs_of_a_recipe_do_not_apply_to_another_model_and_the_result_resolves_again() -> None:
    resolved = resolve_recipe("arxiv-labels", ["model.name=gcn-lpa"])
    assert resolve_recipe(resolved) == resolved


@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        ("arxiv-labels", ["model.name=gcn-lpa"]),  # the inputs that this recipe sets are UniMP's
        ("debian", ["model.name=label-propagation", "model.inputs=A,Y"]),
        ("debian", {"model.name": "mlp", "model.inputs": "X,A,Y"}),  # may list every option
        ("debian", ["model.name=gat", "model.inputs=A,Y"]),
    ],
)
def test_inputs_that_fit_the_model_or_were_not_typed_for_it_are_accepted(
    recipe: str, settings: list[str] | dict[str, str]
) -> None:
    wanted = dict(settings if isinstance(settings, dict) else (s.split("=") for s in settings))
    assert resolve_recipe(recipe, settings).model.name == wanted["model.name"]


def test_an_ensemble_uses_both_directions_of_edges_unless_the_user_states_otherwise(
    tmp_path: Path,
) -> None:
    assert recipe_with_preset("some-graph.npz", [], "good").task.symmetrize
    assert not recipe_with_preset(
        "some-graph.npz", ["task.symmetrize=false"], "good"
    ).task.symmetrize
    assert not recipe_with_preset("some-graph.npz", ["model.width=8"], "good").task.symmetrize
    path = tmp_path / "mine.toml"
    text = '[task]\nname = "tables"\n[tables]\nnodes = "n.csv"\nedges = "e.csv"\nlabel = "kind"\n'
    path.write_text(text)
    assert recipe_with_preset(path).task.symmetrize
    path.write_text(f"{text}directed = true\n")
    assert not recipe_with_preset(path).task.symmetrize
