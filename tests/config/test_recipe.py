"""Recipes: each one parses and builds; what is misspelt or out of range is answered."""

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unimp.config.recipe import (
    SECTIONS,
    BatchOptions,
    Recipe,
    load_recipe,
    options,
    read_recipe,
    recipe_names,
)
from unimp.config.task_names import task_names
from unimp.data.catalog import known_sizes
from unimp.errors import RecipeError
from unimp.model.node_model import count_parameters
from unimp.model.registry import build_model
from unimp.runs.preparation import task_of
from unimp.tasks.task import Sizes

BESIDE = Path(__file__).parents[3] / "shared" / "data"
PUBLISHED = {
    "arxiv-paper": 473_489 + 256,  # the paper does not count the input norm
    "arxiv-eq4": 475_283,
    "products-paper": 1_578_005,
    "proteins-paper": 1_909_104,
}


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real data sets, where they are at hand."""
    if not os.environ.get("UNIMP_DATA"):
        monkeypatch.setenv("UNIMP_DATA", str(BESIDE))


def sizes_of(recipe: Recipe) -> Sizes:
    known = known_sizes(recipe.task.name)
    if known is not None:
        return known
    if recipe.task.name not in task_names():
        pytest.skip(f"{recipe.task.name}.npz is not at hand; set UNIMP_DATA to its folder")
    return task_of(recipe, 0).sizes


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_parses_and_says_what_it_is(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe.about
    assert recipe.task.name


LEARNED = [n for n in recipe_names() if load_recipe(n).model.name != "label-propagation"]


@pytest.mark.parametrize("name", LEARNED)
@pytest.mark.usefixtures("data")
def test_every_recipe_builds_its_model(name: str) -> None:
    recipe = load_recipe(name)
    model = build_model(recipe.model, sizes_of(recipe))
    assert count_parameters(model) == PUBLISHED.get(name, count_parameters(model))
    assert count_parameters(model) > 0


def test_there_is_a_recipe_for_each_published_row() -> None:
    wanted = {
        "arxiv-paper",
        "arxiv-eq4",
        "products-paper",
        "products-eq4",
        "proteins-paper",
        "proteins-eq4",
        "arxiv-labels",
        "arxiv-guesses",
        "debian",
        "debian-tags",
        "cora",
        "citeseer",
        "pubmed",
        "amazon-computers",
        "coauthor-physics",
        "minesweeper",
        "blogcatalog",
    }
    assert wanted <= set(recipe_names())


def test_recipe_names_are_unique() -> None:
    names = [load_recipe(name).name for name in recipe_names()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", ["", *recipe_names()])
def test_a_recipe_written_and_read_again_is_the_same(name: str) -> None:
    recipe = load_recipe(name) if name else Recipe(name="all-defaults")
    assert read_recipe(recipe.to_toml(), "another name") == recipe


def test_every_option_is_declared_once_with_its_help() -> None:
    declared = list(options())
    assert {section for section, _, _ in declared} == set(SECTIONS)
    assert len({(section, key) for section, key, _ in declared}) == len(declared)
    for section, key, field in declared:
        assert field.description, f"{section}.{key} has no help"
        assert len(field.description) > 5
        assert not field.is_required(), f"{section}.{key} has no default"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("[modle]\nlayers = 3", "no section [modle]; did you mean 'model'"),
        ("[model]\nlayer = 3", "no option 'model.layer'; did you mean 'model.layers'"),
        ("[train]\nweight_decy = 0.1", "did you mean 'train.weight_decay'"),
        ("[train]\nlable_rate = 0.1", "'mask.label_rate'"),
    ],
)
def test_a_misspelt_key_or_section_answers_with_its_nearest_neighbor(
    text: str, answer: str
) -> None:
    with pytest.raises(RecipeError, match=re.escape(answer)):
        read_recipe(text, "mine")


def test_a_misspelt_setting_or_name_answers_with_its_nearest_neighbor() -> None:
    with pytest.raises(RecipeError, match=r"no option 'model\.haeds'; did you mean 'model\.heads'"):
        Recipe().with_settings(["model.haeds=4"])
    with pytest.raises(RecipeError, match="no recipe or task 'debain'; did you mean 'debian'"):
        load_recipe("debain")
    with pytest.raises(RecipeError, match=r"no recipe file .*nowhere\.toml"):
        load_recipe("nowhere.toml")
    with pytest.raises(RecipeError, match=r"write section\.key=value"):
        Recipe().with_settings(["model.heads"])


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[model]\nlayers = 'three'", "model.layers"),
        ("[model]\nlayers = 2.5", "model.layers"),
        ("[model]\nlayers = 0", "model.layers"),
        ("[model]\ngate = 'some'", "model.gate"),
        ("[model]\ninput_norm = 'perhaps'", "model.input_norm"),
        ("[mask]\nlabel_rate = 1.0", "mask.label_rate"),
        ("[mask]\nlabel_rate = -0.1", "mask.label_rate"),
        ("[train]\nlr = 0", "train.lr"),
        ("[train]\nlr = nan", "train.lr"),
        ("[batch]\nfanout = 10", "batch.fanout"),
        ("[batch]\nfanout = ['ten']", "batch.fanout"),
        ("[task]\nsplit = 'third'", "task.split"),
        ("[task]\nname = 3", "task.name"),
        ("[task]\nmetric = 'random'", "task.metric"),
        ("[train]\nprecision = 'fp16'", "train.precision"),
    ],
)
def test_a_value_of_the_wrong_type_or_range_is_refused_with_its_place(
    text: str, place: str
) -> None:
    with pytest.raises(RecipeError) as error:
        read_recipe(text, "mine")
    given = text.split("= ")[1].strip("[]'")
    assert str(error.value).startswith(f"{place}: ")
    assert "given: " in str(error.value)
    assert given in str(error.value)


@pytest.mark.parametrize(
    ("setting", "answer"),
    [
        (
            "model.gate=lst",
            "model.gate: it takes none, last or all; did you mean 'last'? (given: 'lst')",
        ),
        ("model.gate=xyz", "model.gate: it takes none, last or all (given: 'xyz')"),
        ("task.split=sed", "it takes a whole number or seed; did you mean 'seed'?"),
        ("smooth.correct_scale=aut", "it takes a number or auto; did you mean 'auto'?"),
        ("train.epochs=abc", "train.epochs: it takes a whole number (given: 'abc')"),
        ("train.epochs=1.5", "train.epochs: it takes a whole number (given: 1.5)"),
        ("train.epochs=0", "train.epochs: it must be at least 1 (given: 0)"),
        ("train.lr=fast", "train.lr: it takes a number (given: 'fast')"),
        ("model.dropout=1", "model.dropout: it must be less than 1 (given: 1)"),
        ("batch.prune=1", "batch.prune: it takes true or false (given: 1)"),
        ("batch.fanout=[0]", "batch.fanout: a fanout is at least 1, or -1 for all in-neighbors"),
        ("task.split=1.5", "task.split: it takes a whole number or seed (given: 1.5)"),
        ("train.time_limit=soon", "train.time_limit: write seconds, or a number with s, m or h"),
        ("model.feature_encoder=atuo", "it takes true, false or auto; did you mean 'auto'?"),
    ],
)
def test_a_misspelt_word_answers_in_one_line_with_the_nearest_that_the_option_takes(
    setting: str, answer: str
) -> None:
    with pytest.raises(RecipeError, match=re.escape(answer)) as error:
        Recipe().with_settings([setting])
    assert "\n" not in str(error.value)


def test_a_table_or_a_folder_in_place_of_a_recipe_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"customers\.csv is a table: `unimp init NODES EDGES`"):
        load_recipe("customers.csv")
    with pytest.raises(RecipeError, match="is a folder; `unimp init NODES EDGES`"):
        load_recipe(tmp_path)
    (tmp_path / "recipe.toml").write_text("[train\n")
    with pytest.raises(RecipeError, match=r"is a folder; its recipe is .*recipe\.toml"):
        load_recipe(tmp_path)
    broken = re.escape(f"recipe {tmp_path / 'recipe.toml'} is not valid TOML")
    with pytest.raises(RecipeError, match=broken):
        load_recipe(tmp_path / "recipe.toml")


@pytest.mark.parametrize(
    ("file", "line", "name"),
    [("recipe", "", "customers"), ("mine", "", "mine"), ("recipe", "name = 'ours'\n", "ours")],
)
def test_a_recipe_of_tables_is_named_by_itself_its_file_or_its_nodes(
    tmp_path: Path, file: str, line: str, name: str
) -> None:
    path = tmp_path / f"{file}.toml"
    path.write_text(f'{line}[tables]\nnodes = "data/customers.csv.gz"\nedges = "calls.csv"\n')
    assert load_recipe(path).name == name


def test_settings_are_texts_or_a_dictionary() -> None:
    texts = ["train.epochs=5", "train.lr=0.01", "model.gate=all", "batch.fanout=[10, 5]"]
    given: dict[str, Any] = {
        "train.epochs": np.int64(5),  # as a search over numpy's ranges would hand it over
        "train.lr": np.float64(0.01),
        "model.gate": "all",
        "batch.fanout": (10, 5),
    }
    assert Recipe().with_settings(given) == Recipe().with_settings(texts)
    assert load_recipe("synthetic", {"train.epochs": 3}).train.epochs == 3
    assert load_recipe("synthetic", "train.epochs=3").train.epochs == 3


def test_a_value_in_a_dictionary_is_taken_as_it_is() -> None:
    with pytest.raises(RecipeError, match=r"train\.epochs.*given: '5'"):
        Recipe().with_settings({"train.epochs": "5"})
    with pytest.raises(RecipeError, match=r"did you mean 'train\.epochs'"):
        Recipe().with_settings({"train.epoch": 5})


@pytest.mark.parametrize("value", ["true", "'5'"])
def test_a_truth_or_a_text_is_no_number(value: str) -> None:
    with pytest.raises(RecipeError, match=r"train\.epochs"):
        read_recipe(f"[train]\nepochs = {value}", "mine")


@pytest.mark.parametrize("value", ["3", "'debian'"])
def test_a_section_that_is_no_table_is_refused_with_its_name(value: str) -> None:
    with pytest.raises(RecipeError, match=r"\btask\b(?!\.)"):
        read_recipe(f"task = {value}", "mine")


def test_a_fanout_under_minus_one_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"batch\.fanout"):
        Recipe().with_settings(["batch.fanout=[-2]"])


def test_text_that_is_not_toml_is_refused_with_its_name() -> None:
    with pytest.raises(RecipeError, match="recipe mine is not valid TOML"):
        read_recipe("[model\nlayers = 3", "mine")


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("train.epochs=7", 7),
        ("train.lr=1e-2", 0.01),
        ("train.weight_decay = 5e-4", 0.0005),
        ("batch.fanout=[10, 5]", [10, 5]),
        ("batch.prune=false", False),
        ("model.name=mlp", "mlp"),
        ("model.inputs=A,Y", "A,Y"),
        ("model.inputs='A,Y'", "A,Y"),
        ("task.name=some/folder/my=graph.npz", "some/folder/my=graph.npz"),
        ("task.metric=", ""),
        ("task.split=3", 3),
        ("task.split=seed", "seed"),
        ("train.precision=bf16", "bf16"),
    ],
)
def test_a_setting_is_read_as_a_number_a_list_a_truth_or_a_bare_word(
    setting: str, value: Any
) -> None:
    recipe = Recipe().with_settings([setting])
    section, key = setting.split("=")[0].strip().split(".")
    given = getattr(getattr(recipe, section), key)
    assert given == value
    assert type(given) is type(value)


def test_settings_are_laid_over_a_recipe_and_leave_it_as_it_was() -> None:
    recipe = read_recipe("name = 'n'\n[model]\nheads = 4\n[train]\nepochs = 9", "n")
    changed = recipe.with_settings(["model.heads=8", "model.heads=1"])
    assert changed.model.heads == 1
    assert changed.train.epochs == 9
    assert recipe.model.heads == 4


def test_a_task_alone_is_a_recipe_of_defaults(tmp_path: Path) -> None:
    recipe = load_recipe("synthetic", ["train.epochs=3"])
    assert recipe.task.name == recipe.name == "synthetic"
    assert recipe.train.epochs == 3
    assert recipe.batch == BatchOptions()
    path = tmp_path / "graph.npz"
    assert load_recipe(path).task.name == str(path)
    assert load_recipe(path).name == "graph"


def test_a_recipe_is_loaded_from_a_file_and_named_after_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[model]\nlayers = 2\n", encoding="utf-8")
    assert load_recipe(path) == read_recipe("[model]\nlayers = 2", "mine")
    assert load_recipe(str(path), ["model.layers=4"]).model.layers == 4


@pytest.mark.parametrize(
    ("settings", "rate"),
    [([], 0.625), (["model.inputs=X,A"], 0.0), (["model.name=mlp"], 0.0)],
)
def test_a_model_that_takes_no_labels_hides_them_all(settings: list[str], rate: float) -> None:
    assert Recipe().with_settings(settings).label_rate == rate


def test_label_propagation_has_no_model_to_build() -> None:
    sizes = Sizes(features=3, edge_features=0, classes=2, multilabel=False)
    with pytest.raises(RecipeError, match="no parameters"):
        Recipe().with_settings(["model.name=label-propagation"]).build_model(sizes)


@pytest.mark.parametrize(("columns", "encoded"), [(1, True), (15, True), (16, False), (128, False)])
def test_few_columns_are_encoded_as_the_norm_would_leave_little_of_them(
    columns: int, encoded: bool
) -> None:
    sizes = Sizes(features=columns, edge_features=0, classes=3, multilabel=False)
    assert Recipe().encodes_features(sizes) is encoded
    assert (
        getattr(build_model(Recipe().model, sizes), "feature_encoder", None) is not None
    ) is encoded
