"""Cells: a name follows from the recipe, so that studies share run folders."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from unimp.config.recipe import Recipe, load_recipe
from unimp.config.seeds import parse_seeds
from unimp.errors import UnimpError
from unimp.studies.cells import (
    Subject,
    quickened,
    recipe_for,
    refuse_overwritten_settings,
    subject_of,
)
from unimp.studies.reproduce import STUDIES
from unimp.tasks.task import Sizes

Maker = Callable[..., Subject]


@pytest.fixture
def subject_for() -> Maker:
    def make(recipe: Recipe, **sizes: int) -> Subject:
        given = Sizes(
            **{"features": 5, "edge_features": 0, "classes": 3, "multilabel": False} | sizes
        )
        return Subject("task", recipe, given, "accuracy", (0,), Path("out"), ())

    return make


def all_cells(subject: Subject) -> list[tuple[str, str]]:
    """Name and recipe of every cell of every study; shares of train labels are part of both."""
    return [
        (cell.name, f"{cell.recipe.model_dump(exclude={'name', 'about'})} {cell.train_share}")
        for study in STUDIES.values()
        for cell in study.cells(subject)
    ]


@pytest.mark.parametrize(
    ("name", "edge_features"),
    [("arxiv-paper", 0), ("proteins-paper", 8), ("debian", 16), ("products-eq4", 0)],
)
def test_cells_have_one_name_exactly_if_they_have_one_recipe(
    subject_for: Maker, name: str, edge_features: int
) -> None:
    cells = all_cells(subject_for(load_recipe(name), edge_features=edge_features))
    assert len({n for n, _ in cells}) == len({r for _, r in cells}) == len(set(cells))


def test_studies_share_the_cell_of_unimp(small_subject: Subject) -> None:
    own = small_subject.cell().name
    assert own == "unimp-xay"
    for name in ("inputs", "layer", "figure-a", "figure-b", "figure-c", "figure-d", "margin"):
        assert own in [cell.name for cell in STUDIES[name].cells(small_subject)], name


def test_edge_features_are_left_out_unless_asked_for(small_subject: Subject) -> None:
    assert not small_subject.cell().recipe.model.edge_features
    full = small_subject.cell(edge_features=True)
    assert full.recipe.model.edge_features
    assert full.name == "unimp-xay-edges"


def test_a_classical_gat_has_no_residual_whatever_the_recipe_says(subject_for: Maker) -> None:
    proteins = subject_for(load_recipe("proteins-paper"), edge_features=8)
    assert proteins.cell("gat", "X,A").recipe.model.residual == "none"
    gated = proteins.cell("unimp", "X,A", residual="gated").recipe.model
    assert (gated.residual, gated.gate) == ("gated", "all")


def test_a_task_without_features_has_no_cells_that_need_them(subject_for: Maker) -> None:
    bare = subject_for(load_recipe("arxiv-labels"), features=0)
    assert bare.inputs == "A,Y"
    assert bare.cell("unimp", "X,A").unfit
    assert bare.cell("mlp").unfit
    assert not bare.cell().unfit


def test_only_the_papers_data_is_compared_with_the_papers_numbers(subject_for: Maker) -> None:
    arxiv = subject_for(load_recipe("arxiv-paper"))
    assert arxiv.data_set == arxiv.compared("X,A") == "ogbn-arxiv"
    labels = subject_for(load_recipe("arxiv-guesses"))
    assert labels.data_set is None
    assert labels.compared("A,Y") == "ogbn-arxiv"  # the same graph, labels and split
    assert labels.compared("X,A") is None  # other features
    stand_in = subject_for(recipe_for("synthetic-arxiv"))
    assert stand_in.compared("A,Y") is None


@pytest.mark.parametrize(
    ("task", "recipe"),
    [
        ("ogbn-arxiv", "arxiv-paper"),
        ("ogbn-proteins", "proteins-paper"),
        ("debian", "debian"),
        ("arxiv-labels", "arxiv-labels"),
    ],
)
def test_a_task_starts_from_its_recipe(task: str, recipe: str) -> None:
    assert recipe_for(task) == load_recipe(recipe)


def test_a_synthetic_task_uses_the_papers_recipe() -> None:
    paper, found = load_recipe("products-paper"), recipe_for("synthetic-products")
    assert found.task.name == "synthetic-products"
    assert found.model_copy(update={"task": paper.task}) == paper


def test_quick_runs_have_few_epochs_and_their_own_folder(task_file: Path) -> None:
    recipe = quickened(load_recipe("proteins-paper"))
    assert recipe.train.eval_from <= recipe.train.epochs == 30
    subject = subject_of(str(task_file), seeds=(0,), out=Path("out"), quick=True)
    assert subject.place == Path("out/small-quick")
    short = load_recipe("debian", ["train.epochs=3"])
    assert quickened(short).train.epochs == 3


@pytest.mark.parametrize(
    ("study", "setting"),
    [
        ("results", "model.name=mlp"),
        ("results", "model.inputs=X,A"),
        ("information", "task.name=synthetic"),
        ("figure-a", "mask.label_rate=0.3"),
        ("layer", "model.residual=simple"),
        ("inputs", "model.edge_features=true"),
    ],
)
def test_a_setting_that_a_study_overwrites_is_refused_before_anything_is_trained(
    run_studies: Callable[..., list[str]], tmp_path: Path, study: str, setting: str
) -> None:
    key = setting.partition("=")[0]
    with pytest.raises(UnimpError, match=rf"{key} \(by "):
        run_studies(tmp_path, study, settings=[setting])
    assert not list(tmp_path.iterdir())


def test_settings_apply_to_every_cell(small_subject: Subject) -> None:
    subject = replace(small_subject, recipe=small_subject.recipe.with_settings(["train.lr=0.07"]))
    for study in STUDIES.values():
        assert {cell.recipe.train.lr for cell in study.cells(subject)} <= {0.07}


def test_a_setting_that_every_cell_keeps_is_taken(small_subject: Subject) -> None:
    cells = {"figure-c": STUDIES["figure-c"].cells(small_subject)}
    refuse_overwritten_settings(["mask.label_rate=0.5", "train.lr=0.07"], small_subject, cells)


@pytest.mark.parametrize(
    ("seeds", "text"),
    [([0], "0"), ([0, 1], "0-1"), ([0, 1, 2, 5, 7, 8], "0-2,5,7-8"), ([3, 2], "3,2")],
)
def test_seeds_are_written_as_they_are_read(seeds: list[int], text: str) -> None:
    subject = subject_of("synthetic", seeds=seeds, out=Path("out"))
    assert subject.options[2:] == ("--seeds", text)
    assert parse_seeds(text) == seeds
