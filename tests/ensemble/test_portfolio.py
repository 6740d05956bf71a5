"""The portfolio names its members once, and each is documented and can be trained."""

from dataclasses import replace
from pathlib import Path

import pytest

from unimp.config.recipe import Recipe
from unimp.data.catalog import load_task
from unimp.ensemble.portfolio import OWN, PORTFOLIO, member_recipe, members_for, settings_of
from unimp.errors import RecipeError
from unimp.runs.preparation import member_task, model_of
from unimp.runs.recipes import resolve_recipe
from unimp.tasks.task import Split

DOCS = Path(__file__).parents[2] / "docs" / "strength.md"


def test_every_member_is_listed_in_the_documentation() -> None:
    text = DOCS.read_text(encoding="utf-8")
    assert all(f"`{member.name}`" in text for member in PORTFOLIO)
    assert len({member.name for member in PORTFOLIO}) == len(PORTFOLIO)


@pytest.mark.parametrize("member", PORTFOLIO, ids=lambda member: member.name)
@pytest.mark.parametrize("name", ["synthetic", "synthetic-proteins"])
def test_every_member_that_suits_a_task_can_be_built_for_it(name: str, member: object) -> None:
    task = load_task(name, scale=0.05 if name == "synthetic" else 0.002)
    recipe = Recipe(name=name).with_settings({"ensemble.portfolio": "best"})
    for chosen in members_for(recipe, task):
        if chosen is member:
            own = member_recipe(recipe, chosen.name, settings_of(chosen, task))
            assert own.ensemble.portfolio == "none"
            assert model_of(own, member_task(recipe, own, task)) is not None


@pytest.mark.parametrize(("nodes", "first"), [(29, 50), (30, 1)])
def test_early_epochs_are_not_scored_on_few_validation_labels(nodes: int, first: int) -> None:
    task = load_task("synthetic", scale=0.05)
    split = Split(task.split.train, task.split.val[:nodes], task.split.test)
    gcn, ridge = (next(m for m in PORTFOLIO if m.name == name) for name in ("gcn", "ridge"))
    few = replace(task, split=split)
    recipes = [member_recipe(Recipe(), m.name, settings_of(m, few)) for m in (gcn, ridge)]
    assert [recipe.train.eval_from for recipe in recipes] == [first, 1]


def test_the_model_of_a_recipe_is_a_member() -> None:
    recipe = resolve_recipe("california", preset="best")
    members = {m.name: m for m in members_for(recipe, load_task("california"))}
    own = member_recipe(recipe, OWN, members[OWN].settings)
    assert own.model == recipe.model


def test_members_without_a_portfolio_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"ensemble\.members.*ensemble\.portfolio"):
        resolve_recipe("synthetic", ['ensemble.members=["ridge"]'])


@pytest.mark.parametrize("setting", ["model.backend=reference", "train.device=cpu"])
def test_options_that_all_members_keep_do_not_select_one_model(setting: str) -> None:
    recipe = resolve_recipe("synthetic", [setting], "good")
    assert recipe.ensemble.portfolio == "good"
    section, _, key = setting.partition("=")[0].partition(".")
    own = member_recipe(recipe, "unimp", {})
    assert getattr(getattr(own, section), key) == setting.partition("=")[2]
