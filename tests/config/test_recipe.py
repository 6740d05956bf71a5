"""Recipes: each one parses and builds a model; wrong names and values are refused by name."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unimp.config.options import BatchOptions
from unimp.config.recipe import (
    SECTIONS,
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
from unimp.model.registry import build_model, encodes_features
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
    """The real data sets, if they are on this machine."""
    if not os.environ.get("UNIMP_DATA"):
        monkeypatch.setenv("UNIMP_DATA", str(BESIDE))


def sizes_of(recipe: Recipe) -> Sizes:
    known = known_sizes(recipe.task.name)
    if known is not None:
        return known
    if recipe.task.name not in task_names():
        pytest.skip(f"{recipe.task.name}.npz is not here; set UNIMP_DATA to its folder")
    return task_of(recipe, 0).sizes


@pytest.mark.parametrize("name", recipe_names())
def test_every_bundled_recipe_parses_and_describes_itself(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe.about
    assert recipe.task.name


@pytest.mark.parametrize("name", recipe_names())
@pytest.mark.usefixtures("data")
def test_every_bundled_recipe_builds_its_model(name: str) -> None:
    recipe = load_recipe(name)
    model = build_model(recipe.model, sizes_of(recipe))
    assert count_parameters(model) == PUBLISHED.get(name, count_parameters(model))
    assert (count_parameters(model) > 0) == model.learns


def test_the_recipes_of_all_published_results_are_bundled() -> None:
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


def test_the_names_of_bundled_recipes_are_unique() -> None:
    names = [load_recipe(name).name for name in recipe_names()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", ["", *recipe_names()])
def test_a_recipe_stays_the_same_when_it_is_written_and_read(name: str) -> None:
    recipe = load_recipe(name) if name else Recipe(name="all-defaults")
    assert read_recipe(recipe.to_toml(), "another name") == recipe


def test_every_option_is_declared_once_with_a_default_and_a_help_text() -> None:
    declared = list(options())
    assert {section for section, _, _ in declared} == set(SECTIONS)
    assert len({(section, key) for section, key, _ in declared}) == len(declared)
    for section, key, field in declared:
        assert field.description, f"{section}.{key} has no help"
        assert len(field.description) > 5
        assert not field.is_required(), f"{section}.{key} has no default"


@pytest.mark.parametrize(
    ("text", "given", "nearest"),
    [
        ("[modle]\nlayers = 3", "[modle]", "'model'"),
        ("[model]\nlayer = 3", "'model.layer'", "'model.layers'"),
        ("[train]\nweight_decy = 0.1", "'train.weight_decy'", "'train.weight_decay'"),
        ("[train]\nlable_rate = 0.1", "'train.lable_rate'", "'mask.label_rate'"),
    ],
)
def test_a_misspelled_section_or_option_of_a_file_is_refused_with_the_nearest_name(
    text: str, given: str, nearest: str
) -> None:
    with pytest.raises(RecipeError, match=re.escape(given)) as error:
        read_recipe(text, "mine")
    assert nearest in str(error.value)


def test_all_wrong_names_of_a_file_are_reported_at_once() -> None:
    with pytest.raises(RecipeError) as error:
        read_recipe("[modle]\nlayers = 3\n[train]\nepoch = 3\n[model]\nhead = 'last'", "mine")
    assert "[modle]" in str(error.value)
    assert "train.epoch" in str(error.value)
    with pytest.raises(RecipeError) as error:
        read_recipe("[model]\nlayers = 0\n[train]\nlr = 'fast'", "mine")
    assert "model.layers" in str(error.value)
    assert "train.lr" in str(error.value)


@pytest.mark.parametrize("settings", [["model.haeds=4"], {"model.haeds": 4}])
def test_a_misspelled_setting_is_refused_with_the_nearest_name(settings: Any) -> None:
    with pytest.raises(RecipeError, match=r"'model\.haeds'.*'model\.heads'"):
        Recipe().with_settings(settings)


def test_a_setting_without_a_value_is_refused_with_the_form_to_write() -> None:
    with pytest.raises(RecipeError, match=r"'model\.heads'.*section\.key=value"):
        Recipe().with_settings(["model.heads"])


def test_an_unknown_recipe_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(RecipeError, match=r"'debain'.*'debian'"):
        load_recipe("debain")
    with pytest.raises(RecipeError, match=r"nowhere\.toml.*unimp init"):
        load_recipe("nowhere.toml")


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
def test_a_value_of_the_wrong_type_or_range_is_refused_with_its_option(
    text: str, place: str
) -> None:
    with pytest.raises(RecipeError) as error:
        read_recipe(text, "mine")
    given = text.split("= ")[1].strip("[]'")
    assert str(error.value).startswith(f"{place}: ")
    assert "given: " in str(error.value)
    assert given in str(error.value)


@pytest.mark.parametrize(
    ("setting", "accepted"),
    [
        ("model.gate=lst", ["none", "last", "all", "did you mean 'last'"]),
        ("model.gate=xyz", ["none", "last", "all"]),
        ("task.split=sed", ["a whole number", "did you mean 'seed'"]),
        ("smooth.correct_scale=aut", ["a number", "did you mean 'auto'"]),
        ("train.epochs=abc", ["a whole number"]),
        ("train.epochs=1.5", ["a whole number"]),
        ("train.epochs=0", ["at least 1"]),
        ("train.lr=fast", ["a number"]),
        ("model.dropout=1", ["less than 1"]),
        ("batch.prune=1", ["true", "false"]),
        ("batch.fanout=[0]", ["at least 1", "-1"]),
        ("task.split=1.5", ["a whole number", "seed"]),
        ("train.time_limit=soon", ["s, m or h"]),
        ("model.feature_encoder=atuo", ["true", "false", "did you mean 'auto'"]),
    ],
)
def test_a_wrong_value_is_refused_in_one_line_with_what_the_option_accepts(
    setting: str, accepted: list[str]
) -> None:
    option, value = setting.split("=")
    with pytest.raises(RecipeError) as error:
        Recipe().with_settings([setting])
    message = str(error.value)
    assert "\n" not in message
    assert message.startswith(f"{option}: ")
    assert value.strip("[]") in message.partition("given: ")[2]
    for words in accepted:
        assert words in message
    assert ("did you mean" in message) == any("did you mean" in words for words in accepted)


@pytest.mark.parametrize("name", ["customers.csv", "customers.csv.gz", "customers.PARQUET"])
def test_a_table_in_place_of_a_recipe_is_refused_with_the_command_that_reads_tables(
    name: str,
) -> None:
    with pytest.raises(RecipeError, match=rf"{re.escape(name)}.*unimp init NODES EDGES"):
        load_recipe(name)


def test_a_folder_in_place_of_a_recipe_is_refused_with_the_recipe_in_it(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"is a folder.*unimp init"):
        load_recipe(tmp_path)
    (tmp_path / "recipe.toml").write_text("[train]\n")
    with pytest.raises(RecipeError, match=re.escape(str(tmp_path / "recipe.toml"))):
        load_recipe(tmp_path)


def test_a_file_that_is_not_toml_is_refused_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[train\n")
    with pytest.raises(RecipeError, match=rf"{re.escape(str(path))}.*TOML"):
        load_recipe(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(RecipeError, match=rf"{re.escape(str(path))}.*UTF-8"):
        load_recipe(path)


@pytest.mark.parametrize(
    ("file", "line", "name"),
    [("recipe", "", "customers"), ("mine", "", "mine"), ("recipe", "name = 'ours'\n", "ours")],
)
def test_a_recipe_of_tables_is_named_after_its_own_name_its_file_or_its_nodes(
    tmp_path: Path, file: str, line: str, name: str
) -> None:
    path = tmp_path / f"{file}.toml"
    path.write_text(f'{line}[tables]\nnodes = "data/customers.csv.gz"\nedges = "calls.csv"\n')
    assert load_recipe(path).name == name


def test_settings_are_texts_or_a_dictionary_with_the_same_effect() -> None:
    texts = ["train.epochs=5", "train.lr=0.01", "model.gate=all", "batch.fanout=[10, 5]"]
    given: dict[str, Any] = {
        "train.epochs": np.int64(5),  # as a search over numpy's ranges passes it
        "train.lr": np.float64(0.01),
        "model.gate": "all",
        "batch.fanout": (np.int64(10), 5),
    }
    assert Recipe().with_settings(given) == Recipe().with_settings(texts)
    assert load_recipe("synthetic", {"train.epochs": 3}).train.epochs == 3
    assert load_recipe("synthetic", "train.epochs=3").train.epochs == 3


def test_a_value_in_a_dictionary_is_not_parsed() -> None:
    with pytest.raises(RecipeError, match=r"train\.epochs.*given: '5'"):
        Recipe().with_settings({"train.epochs": "5"})
    with pytest.raises(RecipeError, match=r"did you mean 'train\.epochs'"):
        Recipe().with_settings({"train.epoch": 5})


@pytest.mark.parametrize("value", ["true", "'5'"])
def test_a_boolean_or_a_text_is_not_accepted_as_a_number(value: str) -> None:
    with pytest.raises(RecipeError, match=r"train\.epochs"):
        read_recipe(f"[train]\nepochs = {value}", "mine")


@pytest.mark.parametrize("value", ["3", "'debian'"])
def test_a_section_that_has_a_value_is_refused_with_its_name(value: str) -> None:
    with pytest.raises(RecipeError, match=r"\btask\b(?!\.)"):
        read_recipe(f"task = {value}", "mine")


def test_a_fanout_below_minus_one_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"batch\.fanout"):
        Recipe().with_settings(["batch.fanout=[-2]"])


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
def test_a_setting_is_parsed_as_a_number_a_list_a_boolean_or_a_bare_word(
    setting: str, value: Any
) -> None:
    recipe = Recipe().with_settings([setting])
    section, key = setting.split("=")[0].strip().split(".")
    given = getattr(getattr(recipe, section), key)
    assert given == value
    assert type(given) is type(value)


def test_the_last_setting_counts_and_the_recipe_itself_stays_the_same() -> None:
    recipe = read_recipe("name = 'n'\n[model]\nheads = 4\n[train]\nepochs = 9", "n")
    changed = recipe.with_settings(["model.heads=8", "model.heads=1"])
    assert changed.model.heads == 1
    assert changed.train.epochs == 9
    assert recipe.model.heads == 4


def test_the_name_of_a_task_loads_a_recipe_with_defaults(tmp_path: Path) -> None:
    recipe = load_recipe("synthetic", ["train.epochs=3"])
    assert recipe.task.name == recipe.name == "synthetic"
    assert recipe.train.epochs == 3
    assert recipe.batch == BatchOptions()
    path = tmp_path / "graph.npz"
    assert load_recipe(path).task.name == str(path)
    assert load_recipe(path).name == "graph"


def test_a_recipe_file_without_a_name_is_named_after_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    text = "[task]\nname = 'synthetic'\n[model]\nlayers = 2\n"
    path.write_text(text, encoding="utf-8")
    assert load_recipe(path) == read_recipe(text, "mine")
    assert load_recipe(str(path), ["model.layers=4"]).model.layers == 4


def test_a_task_beside_tables_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "both.toml"
    path.write_text('[task]\nname = "debian"\n[tables]\nnodes = "n.csv"\nedges = "e.csv"\n')
    with pytest.raises(RecipeError, match=r"task\.name.*'debian'.*\[tables\]"):
        load_recipe(path)


@pytest.mark.parametrize(
    ("name", "own"),
    [("tables", True), ("some/graph.npz", True), ("debian", False), ("synthetic", False)],
)
def test_tables_and_files_are_own_data_and_tasks_with_a_name_are_not(name: str, own: bool) -> None:
    assert Recipe().with_settings({"task.name": name}).is_of_own_data is own


def test_paths_become_absolute_relative_to_the_recipe_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / "mine.toml"
    path.write_text('[tables]\nnodes = "nodes.csv"\nedges = "../edges.csv"\n')
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe("data/mine.toml").with_absolute_paths()
    assert Path(recipe.tables.nodes) == tmp_path / "data" / "nodes.csv"
    assert Path(recipe.tables.edges).resolve() == tmp_path / "edges.csv"
    assert load_recipe("graph.npz").with_absolute_paths().task.name == str(tmp_path / "graph.npz")
    assert load_recipe("debian").with_absolute_paths() == load_recipe("debian")


@pytest.mark.parametrize(("columns", "encoded"), [(1, True), (15, True), (16, False), (128, False)])
def test_features_with_few_columns_are_encoded(columns: int, encoded: bool) -> None:
    sizes = Sizes(features=columns, edge_features=0, classes=3, multilabel=False)
    assert encodes_features(Recipe().model, sizes) is encoded
    model = build_model(Recipe().model, sizes)
    assert (getattr(model, "feature_encoder", None) is not None) is encoded


def test_reading_a_recipe_does_not_import_torch(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('[task]\nname = "synthetic"\n[train]\nepochs = 7\n')
    program = """
import sys
for name in ("torch", "numpy", "scipy", "pyarrow"):
    sys.modules[name] = None  # importing it now fails
import importlib, pkgutil
import unimp.config
for module in pkgutil.walk_packages(unimp.config.__path__, "unimp.config."):
    importlib.import_module(module.name)
from unimp.config.presets import recipe_with_preset
recipe = recipe_with_preset("mine.toml", ["model.heads=3"], "quick")
print(recipe.train.epochs, recipe.model.heads, recipe.model.width)
print(unimp.load_recipe("debian").task.name, *unimp.load_recipe("mine.toml").to_toml().split()[:2])
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[:4] == ["7", "3", "64", "debian"]


@pytest.mark.parametrize(
    ("nodes", "name"),
    [
        ("people.csv", "people"),
        ("nodes/*.parquet", "nodes"),
        ("parts/year=*/*.csv", "parts"),
        ("*.csv", "recipe"),
    ],
)
def test_a_recipe_of_tables_is_named_after_them_and_never_by_a_pattern(
    nodes: str, name: str
) -> None:
    text = f'[tables]\nnodes = "{nodes}"\nid = "id"\nlabel = "kind"\n'
    assert read_recipe(text, "recipe").name == name
