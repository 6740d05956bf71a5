"""The graphs of the benchmark of ensembles, what `best` should reach on them, and its levers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from unimp.ensemble.portfolio import COPY, OWN, PORTFOLIO, is_copy
from unimp.model.table import find_model

OF_LABELS = "labels as inputs"


def original(name: str) -> str:
    """The name of the member of which this one may be a copy."""
    return name.partition(COPY)[0]


# The members that one lever added to `best`. The ensemble without them shows what the lever gains.
LEVERS: dict[str, Callable[[dict[str, Any]], bool]] = {
    OF_LABELS: lambda member: member["takes_labels"],
    "ridge regression": lambda member: member["name"].startswith("ridge"),
    "an MLP on all hops (SIGN)": lambda member: member["name"].startswith("sign"),
    "boosted trees": lambda member: member["name"].startswith("trees"),
    "consistency (GRAND)": lambda member: member["name"].startswith("grand"),
    "structural columns": lambda member: original(member["name"]).endswith("-structure"),
    "deep models": lambda member: "-deep" in member["name"],
    "wide models": lambda member: "-wide" in member["name"],
    "labels in deep and wide GCNs": lambda member: original(member["name"])
    in ("gcn-deep-labels", "gcn-wide-labels"),
    "copies of members": lambda member: is_copy(member["name"]),
    "UniMP": lambda member: member["name"].startswith(("unimp", "recipe")),
}
ENSEMBLE = "the ensemble, over its best member by validation"


class Set(NamedTuple):
    """A task, its splits, and the test scores in % that `best` should reach on average."""

    seeds: tuple[int, ...]  # they number the splits if there are several
    target: float | None = None
    without_labels: float | None = None  # the target without labels as inputs
    shown: float | None = None  # the target with validation labels as further inputs
    confirm: bool = False  # whether levers are confirmed on it, and were not chosen on it


TEN, ELEVEN = tuple(range(10)), tuple(range(11))
SETS = {
    "cora": Set(TEN, 85.4),
    "citeseer": Set(TEN, 75.4),
    "pubmed": Set(TEN, 82.9),
    "amazon-computers": Set(TEN, 94.1),
    "coauthor-physics": Set(TEN, 97.5),
    "minesweeper": Set((0, 1, 2), 99.2, without_labels=97.5),  # of the best published score
    "actor": Set(TEN, 37.5),
    "chameleon-filtered": Set(TEN, 45.0),
    "blogcatalog": Set((0, 1, 2), 74.0),
    "dblp": Set((0, 1, 2)),
    "lastfm-asia": Set((0, 1, 2)),
    "eukloc": Set((0, 1, 2, 3, 4)),
    "california": Set(TEN, 73.0),
    "debian": Set(TEN, 79.5),
    "debian by package": Set(TEN, 88.0),
    "debian-tags": Set((0,)),
    "arxiv-labels": Set(TEN, 71.5),
    "arxiv-guesses": Set(TEN, 76.5),
    # The targets of the random splits are those of split 0.
    "cora-random": Set(ELEVEN, 85.1, confirm=True),
    "citeseer-random": Set(ELEVEN, 73.2, confirm=True),
    "pubmed-random": Set(ELEVEN, 81.2, confirm=True),
    "ogbn-arxiv-20k": Set(TEN, 70.5, without_labels=69.5, shown=71.5, confirm=True),
}


def members_without_labels() -> list[str]:
    """The names of the members of `best` that have no labels as inputs."""
    inputs = {
        m.name: m.settings.get("model.inputs", find_model(m.model).inputs[0]) for m in PORTFOLIO
    }
    return [name for name, of_member in inputs.items() if "Y" not in of_member]


def members_of(preset: str) -> list[str]:
    """The names of the members that belong to `quick` or `good`."""
    names = [member.name for member in PORTFOLIO if preset in member.presets]
    if preset == "good":
        names.append(OWN)
        names += [f"{name}{COPY}2" for name in names]
    return names
