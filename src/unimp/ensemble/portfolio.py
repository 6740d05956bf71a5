"""The portfolio: the members of each preset, which start with the cheapest, and their recipes.

A member is a set of options that differ from the recipe of the ensemble. Members of one family are
alike; a later member of a family is left out if the family was weak before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from unimp.config.choices import Portfolio
from unimp.config.presets import OF_EVERY_MODEL
from unimp.config.recipe import Recipe
from unimp.errors import ModelError
from unimp.model.sign import MOST_COLUMNS
from unimp.model.table import find_model
from unimp.tasks.labels import is_known
from unimp.tasks.means import FEW_NODES
from unimp.tasks.task import Task
from unimp.training.masks import derived_seed

FEW_PER_CLASS = 60
"""The most train labels per class, on average, for which members with few_labels are trained."""


MOST_TREES, MOST_LABELS = 40, 450_000
"""The most binary tasks, and the most train nodes × classes, for which boosted trees are trained,
because each class needs separate trees."""


MOST_ENTRIES = 20_000_000
"""The most nodes × features for which features are propagated as dense rows in each step."""


MOST_HOP_ENTRIES = 100_000_000
"""The members sign and sign-features are left out if nodes × min(features, MOST_COLUMNS) is larger
than this."""


@dataclass(frozen=True)
class Member:
    """One model of the portfolio."""

    name: str
    family: str
    settings: Mapping[str, Any]
    presets: tuple[Portfolio, ...]
    cost: float = 1.0  # time relative to the other members
    few_labels: bool = False  # only for tasks with few train labels per class
    by_gradient: bool = True  # whether the training loop trains it, with the options of FRAME

    @property
    def model(self) -> str:
        return str(self.settings.get("model.name", "unimp"))

    def suits(self, task: Task) -> bool:
        """Whether the member can be trained on a task, and is worth it."""
        inputs = self.settings.get("model.inputs") or find_model(self.model).inputs[0]
        has_features = task.sizes.features or self.settings.get("task.structure")
        does_without = "Y" in inputs and "A,Y" in find_model(self.model).inputs
        if not (has_features or does_without):
            return False
        if self.model == "trees":
            labels = task.split.train.numel() * task.num_classes
            limit = MOST_TREES if task.is_multilabel else task.num_classes
            return labels <= MOST_LABELS and task.num_classes <= limit
        if self.model == "sign":
            return min(task.sizes.features, MOST_COLUMNS) * task.graph.num_nodes <= MOST_HOP_ENTRIES
        by_features = self.settings.get("model.propagated_rows") == "features"
        if by_features and task.sizes.features * task.graph.num_nodes > MOST_ENTRIES:
            return False
        few = task.split.train.numel() <= FEW_PER_CLASS * task.num_classes
        return few or not self.few_labels


FRAME: Mapping[str, Any] = {
    "model.width": 64,
    "model.layers": 3,
    "model.dropout": 0.4,
    "train.epochs": 500,
    "train.eval_every": 2,
    "train.eval_nodes": "val",  # on CPU, scoring all nodes takes almost as long as one epoch
    "train.patience": 40,
    "train.lr": 0.005,
}
"""Options of the members that the training loop trains; a member may change them."""
OF_ROC_AUC: Mapping[str, Any] = {"train.epochs": 1500, "train.patience": 200}
"""Further options if the metric is ROC-AUC. The validation ROC-AUC often stays the same for many
epochs before it improves."""
OF_FEW_VAL: Mapping[str, Any] = {"train.eval_from": 50}
"""Further options if there are fewer than FEW_NODES validation labels. An early epoch can have the
best score on so few labels by chance."""

KEPT = ("task", "tables", "batch", "inference")
"""Sections of the ensemble's recipe that its members keep."""
EVERY: tuple[Portfolio, ...] = ("quick", "good", "best")
LONG: tuple[Portfolio, ...] = ("good", "best")
BEST: tuple[Portfolio, ...] = ("best",)

HOMOPHILOUS = {"model.norm": "none", "model.input_norm": False, "train.weight_decay": 5e-4}
LINEAR = {"model.residual": "simple", "model.head": "linear"}
DEEP = {
    **LINEAR,
    "model.norm": "batch",
    "model.layers": 8,
    "model.dropout": 0.2,
    "model.input_dropout": 0.2,
}
HIGH_RATE = {"train.lr": 0.01}
GCN_DEEP = {
    **DEEP,
    **HIGH_RATE,
    "model.name": "gcn",
    "model.layers": 12,
    "model.width": 32,
}
WIDE = {"model.width": 256, "train.lr": 0.003}
SIGN = {"model.name": "sign", "model.width": 64, "model.dropout": 0.5}
GRAND = {
    "model.name": "grand",
    "model.width": 64,
    "train.lr": 0.01,
    "train.weight_decay": 5e-4,
    "train.select": "loss",
    "train.epochs": 1000,
    "train.patience": 150,
}

PORTFOLIO: tuple[Member, ...] = (
    Member(
        "label-propagation",
        "labels",
        {"model.name": "label-propagation", "model.normalization": "sym"},
        EVERY,
        0.1,
        by_gradient=False,
    ),
    Member("sign", "hops", {**SIGN, "model.inputs": "X,A,Y"}, EVERY, 0.3, by_gradient=False),
    Member("ridge", "ridge", {"model.name": "ridge"}, EVERY, 0.3, by_gradient=False),
    Member(
        "ridge-hops",
        "ridge",
        {"model.name": "ridge", "model.hop_features": "concat"},
        LONG,
        0.3,
        by_gradient=False,
    ),
    Member("sign-features", "hops", {**SIGN, "model.inputs": "X,A"}, LONG, 0.5, by_gradient=False),
    Member("mlp", "features", {"model.name": "mlp", "model.dropout": 0.5}, LONG, 0.5),
    Member("trees", "trees", {"model.name": "trees"}, LONG, 0.7, by_gradient=False),
    Member(
        "gcn",
        "convolution",
        {"model.name": "gcn", "model.propagated_labels": True, "model.dropout": 0.5, **LINEAR},
        EVERY,
    ),
    Member(
        "grand-2",
        "consistency",
        {
            **GRAND,
            "model.propagation_steps": 2,
            "model.dropout": 0.2,
            "model.input_dropout": 0.0,
            "train.samples": 2,
            "train.consistency": 0.7,
            "train.sharpening": 0.3,
            "train.weight_decay": 1e-3,
        },
        LONG,
        few_labels=True,
    ),
    Member(
        "grand-8",
        "consistency",
        {
            **GRAND,
            "model.propagation_steps": 8,
            "model.dropout": 0.5,
            "model.input_dropout": 0.5,
            "train.samples": 4,
            "train.consistency": 1.0,
        },
        LONG,
        2.0,
        few_labels=True,
    ),
    Member("unimp", "attention", {"model.propagated_labels": True, **HIGH_RATE}, LONG, 2.0),
    Member(
        "appnp",
        "appnp",
        {"model.name": "appnp", "model.layers": 2, "model.dropout": 0.5, **HOMOPHILOUS},
        EVERY,
    ),
    Member("unimp-features", "attention", {"model.inputs": "X,A", **HIGH_RATE}, LONG, 2.0),
    Member(
        "grand-features",
        "consistency",
        {
            **GRAND,
            "model.propagated_rows": "features",
            "model.width": 32,
            "model.propagation_steps": 5,
            "model.norm": "batch",
            "model.dropout": 0.8,
            "model.input_dropout": 0.6,
            "train.samples": 4,
            "train.consistency": 1.0,
            "train.sharpening": 0.2,
            "train.lr": 0.2,
        },
        BEST,
        4.0,
        few_labels=True,
    ),
    Member(
        "mlp-structure",
        "features",
        {"model.name": "mlp", "model.width": 128, "model.dropout": 0.8, "task.structure": True},
        BEST,
        0.5,
    ),
    Member(
        "trees-structure",
        "trees",
        {"model.name": "trees", "task.structure": True},
        BEST,
        0.7,
        by_gradient=False,
    ),
    Member(
        "unimp-deep",
        "deep",
        {**DEEP, "model.layers": 6, "model.propagated_labels": True},
        BEST,
        3.0,
    ),
    Member(
        "unimp-wide",
        "attention",
        {"model.propagated_labels": True, **WIDE, "model.width": 128},
        BEST,
        4.0,
    ),
    Member(
        "unimp-deep-features",
        "deep",
        {**DEEP, "model.layers": 6, "model.inputs": "X,A"},
        BEST,
        3.0,
    ),
    Member(
        "gcn-deep-labels",
        "deep",
        {**GCN_DEEP, "model.propagated_labels": True},
        LONG,
        3.0,
    ),
    Member("gcn-deep", "deep", {**GCN_DEEP, "model.inputs": "X,A"}, LONG, 3.0),
    Member(
        "sage-structure",
        "sage",
        {
            "model.name": "sage",
            "model.propagated_labels": True,
            "model.dropout": 0.5,
            "task.structure": True,
            **LINEAR,
        },
        BEST,
    ),
    Member(
        "gcn-wide",
        "convolution",
        {"model.name": "gcn", "model.inputs": "X,A", "model.dropout": 0.5, **WIDE, **LINEAR},
        BEST,
        2.5,
    ),
    Member(
        "gcn-wide-labels",
        "convolution",
        {
            "model.name": "gcn",
            "model.propagated_labels": True,
            "model.dropout": 0.5,
            **WIDE,
            **LINEAR,
        },
        BEST,
        2.5,
    ),
    Member(
        "gat",
        "attention",
        {"model.name": "gat", "model.inputs": "X,A", "model.dropout": 0.5, **LINEAR},
        BEST,
        1.5,
    ),
    Member("sage-deep", "deep", {"model.name": "sage", "model.inputs": "X,A", **DEEP}, BEST, 2.0),
)


OWN = "recipe"
"""The name of the member that is the model of the recipe itself, if the recipe describes one."""


def members_for(recipe: Recipe, task: Task) -> list[Member]:
    """The members of a recipe's portfolio that suit a task, the cheapest first."""
    portfolio, wanted = recipe.ensemble.portfolio, set(recipe.ensemble.members)
    members = (*PORTFOLIO, *_own_member(recipe))
    if unknown := wanted - {member.name for member in members}:
        known = ", ".join(member.name for member in members)
        raise ModelError(f"unknown member {', '.join(sorted(unknown))}. Choose from: {known}")
    found = [
        member
        for member in members
        if (member.name in wanted if wanted else portfolio in member.presets) and member.suits(task)
    ]
    if not found:
        raise ModelError(
            "no member of the portfolio suits this task. Name other members in ensemble.members, "
            "or set ensemble.portfolio to none"
        )
    return found


def _own_member(recipe: Recipe) -> list[Member]:
    """The model that the recipe describes, as a member; none if it describes no model."""
    defaults = Recipe().settings()
    settings = {
        option: value
        for option, value in recipe.settings().items()
        if option.startswith(("model.", "mask.", "train."))
        and option not in (*OF_EVERY_MODEL, "train.time_limit")
        and value != defaults[option]
    }
    if not any(option.startswith("model.") for option in settings):
        return []
    settings.setdefault("train.patience", 2 * FRAME["train.patience"])
    model = find_model(str(settings.get("model.name", "unimp")))
    by_gradient = model.learns and not model.solved
    return [Member(OWN, OWN, settings, LONG, 4.0, by_gradient=by_gradient)]


COPY = "."
"""A copy of a member is a further training with other random draws, named `NAME.2`, `NAME.3`, …"""


def copy_of(member: Member, number: int) -> Member:
    return replace(member, name=f"{member.name}{COPY}{number}")


def is_copy(name: str) -> bool:
    return COPY in name


def seed_of(name: str, seed: int) -> int:
    """The seed of a member of an ensemble with a seed: the same, except for copies."""
    _, found, number = name.partition(COPY)
    return derived_seed(seed, "copy", int(number)) % 2**32 if found else seed


def settings_of(member: Member, task: Task) -> dict[str, Any]:
    """The options of a member that differ from the defaults, for a task."""
    if member.family == OWN:
        return dict(member.settings)
    more = OF_ROC_AUC if task.metric == "rocauc" else {}
    frame = {**FRAME, **more, **of_few_val(task)} if member.by_gradient else {}
    settings = {**frame, **member.settings}
    if not (task.sizes.features or settings.get("task.structure")):
        settings["model.inputs"] = "A,Y"  # `suits` left out the members that need features
    return settings


def of_few_val(task: Task) -> Mapping[str, Any]:
    """Further options of members that are trained by gradient if few labels choose the epoch."""
    few = int(is_known(task.labels[task.split.val]).sum()) < FEW_NODES
    return OF_FEW_VAL if few else {}


def member_recipe(recipe: Recipe, name: str, settings: Mapping[str, Any]) -> Recipe:
    """The recipe of one member: the task and the batches of the ensemble's recipe, its own model.

    A setting of the member takes precedence. `settings` are those of `settings_of`.
    """
    kept = {section: getattr(recipe, section).model_dump() for section in KEPT}
    given = {
        option: value for option, value in recipe.settings().items() if option in OF_EVERY_MODEL
    }
    base = Recipe.model_validate({"name": f"{recipe.name} {name}", **kept})
    return base.with_settings({**given, **settings})
