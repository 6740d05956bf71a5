"""The portfolio: the members of each preset, the cheapest first, and the recipes they train by.

A member is a set of options that differ from the recipe of the ensemble. Members of one family are
alike; a later member of a family is left out if the family was weak before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from unimp.config.choices import Portfolio
from unimp.config.recipe import Recipe
from unimp.errors import ModelError
from unimp.model.registry import find_model
from unimp.tasks.task import Task

FEW_PER_CLASS = 60
"""Consistency training is for tasks with at most so many train labels per class, on average."""


@dataclass(frozen=True)
class Member:
    """One model of the portfolio."""

    name: str
    family: str
    settings: Mapping[str, Any]
    presets: tuple[Portfolio, ...]
    cost: float = 1.0  # time relative to the other members
    only_few_labels: bool = field(default=False, kw_only=True)

    def suits(self, task: Task) -> bool:
        """Whether the member can be trained on a task."""
        inputs = self.settings.get("model.inputs") or find_model(self.model).inputs[0]
        if "X" in inputs and task.sizes.features == 0:
            return False
        few = task.split.train.numel() <= FEW_PER_CLASS * task.num_classes
        return few or not self.only_few_labels

    @property
    def model(self) -> str:
        return str(self.settings.get("model.name", "unimp"))


FRAME: Mapping[str, Any] = {
    "train.epochs": 500,
    "train.eval_every": 1,
    "train.patience": 40,
    "train.lr": 0.005,
}
"""Options of all members that are trained by gradient descent."""

KEPT = ("task", "tables", "batch", "inference")
"""Sections of the ensemble's recipe that its members keep."""
KEPT_OPTIONS = (
    "mask.unit",
    "model.backend",
    "model.edge_features",
    "train.device",
    "train.precision",
    "train.replay",
    "train.checkpoint_every",
)
"""Options of other sections that members keep."""

ALL_PRESETS: tuple[Portfolio, ...] = ("quick", "good", "best")
LONGER: tuple[Portfolio, ...] = ("good", "best")

PORTFOLIO: tuple[Member, ...] = (
    Member(
        "label-propagation",
        "labels",
        {"model.name": "label-propagation", "model.inputs": "A,Y"},
        ALL_PRESETS,
        0.1,
    ),
    Member(
        "gcn",
        "convolution",
        {"model.name": "gcn", "model.inputs": "X,A", "model.width": 64, "model.layers": 2},
        ALL_PRESETS,
    ),
    Member("mlp", "features", {"model.name": "mlp", "model.inputs": "X"}, LONGER),
    Member("unimp-xa", "attention", {"model.inputs": "X,A"}, LONGER, 3.0),
    Member("unimp", "attention", {}, LONGER, 3.0),
)


def members_for(portfolio: Portfolio, task: Task, names: Iterable[str] = ()) -> list[Member]:
    """The members of a portfolio that suit a task, the cheapest first; `names` limits them."""
    wanted = set(names)
    if unknown := wanted - {member.name for member in PORTFOLIO}:
        known = ", ".join(member.name for member in PORTFOLIO)
        raise ModelError(f"there is no member {', '.join(sorted(unknown))}; members are {known}")
    found = [
        member
        for member in PORTFOLIO
        if (member.name in wanted if wanted else portfolio in member.presets) and member.suits(task)
    ]
    if not found:
        raise ModelError("no member of the portfolio suits this task; name others, or none")
    return found


def settings_of(member: Member) -> dict[str, Any]:
    """The options of a member that differ from the defaults."""
    return {**FRAME, **member.settings}


def member_recipe(recipe: Recipe, name: str, settings: Mapping[str, Any]) -> Recipe:
    """The recipe of one member: the task and the batches of the ensemble's recipe, its own model.

    A setting of the member takes precedence. `settings` are those of `settings_of`.
    """
    kept = {section: getattr(recipe, section).model_dump() for section in KEPT}
    given = {option: value for option, value in recipe.settings().items() if option in KEPT_OPTIONS}
    base = Recipe.model_validate({"name": f"{recipe.name} {name}", **kept})
    return base.with_settings({**given, **settings})
