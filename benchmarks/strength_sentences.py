"""Sentences about the benchmark of ensembles, with figures from results/strength.json."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import mean, median, stdev

from strength_gains import (
    WORTH,
    Gain,
    Row,
    Rows,
    best_simple,
    between_presets,
    gain_of_shown,
    kept_by_students,
    labels_of_ensemble,
    lever_gains,
    over_earlier,
    over_simple,
)
from strength_sets import ENSEMBLE, OF_LABELS
from unimp.tasks.means import mean_text

SHOWN = {
    "label-propagation": "label propagation",
    "ridge": "ridge",
    "mlp": "MLP",
    "gcn": "GCN",
    "gat": "GAT",
    "appnp": "APPNP",
    "unimp": "UniMP",
    "recipe": "UniMP of the recipe",
}
"""The members of the table of single models, and their names there."""
PRESETS = ("quick", "good", "best")


def named(names: Iterable[str]) -> str:
    """Names as code in a sentence: `a`, `b` and `c`."""
    *first, last = (f"`{name}`" for name in names)
    return f"{', '.join(first)} and {last}" if first else last


def clearly(gains: dict[str, Gain], *, below: bool = False) -> list[str]:
    """The sets with a clear gain, or with a clear loss."""
    return [name for name, gain in gains.items() if gain.is_clear and (gain.points < 0) == below]


def mean_points(gains: dict[str, Gain]) -> float:
    return mean(gain.points for gain in gains.values())


def of_ensemble(rows: Rows) -> str:
    gains = lever_gains(rows, ENSEMBLE)
    simple = {name: over_simple(of_set, "best") for name, of_set in rows.items()}
    lost = clearly(simple, below=True)
    return (
        f"**One model or an ensemble.** `best` is above the member with the best validation score "
        f"on {sum(g.points > 0 for g in gains.values())} of {len(gains)} sets, by "
        f"{mean_points(gains):.2f} points on average. It is above the best simple baseline on "
        f"{sum(g.points > 0 for g in simple.values())} sets, by {mean_points(simple):.2f} points "
        f"on average, and clearly below it on {named(lost) if lost else 'none'}."
    )


def of_promise(rows: Rows) -> str:
    """The line about ensembles on the first screen of the README."""
    simple = {name: over_simple(of_set, "best") for name, of_set in rows.items()}
    return (
        f"**`--preset best` has a higher score than the best simple baseline on "
        f"{sum(g.points > 0 for g in simple.values())} of {len(simple)} tasks**. The mean "
        f"difference is {mean_points(simple):.2f} points, and it is clear on "
        f"{len(clearly(simple))} tasks. The preset trains several models and combines them. The "
        "baselines are label propagation, ridge regression, MLP, GCN, GAT and APPNP (`python "
        "benchmarks/strength.py`, mostly on one NVIDIA H200; "
        '[scores, and what "clear" means](docs/strength.md#what-to-expect)).'
    )


def of_earlier(rows: Rows) -> str:
    gains = over_earlier(rows)
    least, most = (pick(gains, key=lambda n: gains[n].points) for pick in (min, max))
    return (
        f"**Before and now.** On the {len(gains)} sets with stored scores of the earlier UniMP, "
        f"`best` is {mean_points(gains):.1f} points above it on average, between "
        f"{gains[least].points:+.1f} points (`{least}`) and {gains[most].points:+.1f} points "
        f"(`{most}`)."
    )


def of_presets(develop: Rows) -> str:
    words = []
    for better, worse in (("good", "quick"), ("best", "good")):
        gains = between_presets(develop, better, worse)
        points = [gain.points for gain in gains.values()]
        negative = [name for name, gain in gains.items() if round(gain.points, 2) < 0]
        below = ", ".join(f"`{name}` ({gains[name].points:+.2f})" for name in negative)
        words.append(
            f"`{better}` is {mean(points):.2f} ± {stdev(points) / math.sqrt(len(points)):.2f} "
            f"points (mean ± standard error over sets) above `{worse}`; it is lower on "
            f"{below or 'no set'}"
        )
    return (
        f"**Presets.** On average over the {len(develop)} sets that were used for development, "
        f"{'; '.join(words)}."
    )


def of_baselines(rows: Rows) -> str:
    gains = {p: {name: over_simple(rows[name], p) for name in rows} for p in PRESETS}
    average = ", ".join(f"{mean_points(gains[p]):+.2f} points for `{p}`" for p in PRESETS)
    below = []
    for preset, of_preset in gains.items():
        lost = [
            f"`{name}` ({simple_of(rows[name])}, {gain.points:+.2f} ± {gain.error:.2f})"
            for name, gain in of_preset.items()
            if gain.pairs > 1 and gain.points < -2 * gain.error
        ]
        below.append(f"`{preset}`: {', '.join(lost) or 'none'}")
    return (
        f"**The best simple baseline.** The mean difference of a preset to it is {average}. These "
        f"presets are more than two standard errors below it: {'; '.join(below)}."
    )


def simple_of(of_set: list[Row]) -> str:
    return SHOWN[best_simple(of_set)]


def of_labels(rows: Rows) -> str:
    gains = labels_of_ensemble(rows)
    helped, hurt = clearly(gains), clearly(gains, below=True)
    return (
        f"**Labels as inputs.** On the {len(gains)} sets with features, they clearly raise the "
        f"score of `best` on {len(helped)}: {named(helped)}. They clearly lower it on "
        f"{named(hurt) if hurt else 'none'}. On graphs without features, answers without labels "
        "are not useful."
    )


def of_shown(rows: Rows) -> str:
    gains = {name: gain for name, of_set in rows.items() if (gain := gain_of_shown(of_set))}
    most = sorted(clearly(gains), key=lambda name: -gains[name].points)
    listed = ", ".join(f"`{name}` ({gains[name].points:+.2f})" for name in most)
    hurt = clearly(gains, below=True)
    return (
        f"**Labels that arrive later.** Validation labels as further inputs, without training, "
        f"clearly help on {len(most)} of {len(gains)} sets: {listed}. They clearly lower the score "
        f"on {named(hurt) if hurt else 'none'}. On the other sets, the effect is not clear."
    )


def of_refit(rows: Rows) -> str:
    gains = {
        name: 100 * (r["refit"] - r["best"]["test"])
        for name, of_set in rows.items()
        for r in of_set
        if "refit" in r
    }
    least, most = (pick(gains, key=lambda n: gains[n]) for pick in (min, max))
    return (
        f"**A refit on train and validation labels** changes the score of `best` by "
        f"{mean(gains.values()):+.1f} points on average over {len(gains)} sets, between "
        f"{gains[least]:+.1f} (`{least}`) and {gains[most]:+.1f} (`{most}`). One split of each set "
        f"was refitted."
    )


def of_students(rows: Rows) -> str:
    kept = kept_by_students(rows)
    least, most = (pick(kept, key=lambda n: kept[n]) for pick in (min, max))
    return (
        f"**A student** keeps {100 * median(kept.values()):.0f} % of the gain of `best` over the "
        f"member `unimp` (median of {len(kept)} sets on which this gain is at least "
        f"{100 * WORTH:g} points, one split each; between {100 * kept[least]:.0f} % on `{least}` "
        f"and {100 * kept[most]:.0f} % on `{most}`)."
    )


def of_optimism(rows: Rows) -> str:
    every = [row["optimism"] for of_set in rows.values() for row in of_set]
    return (
        f"**Optimism.** The validation score of `best` is {100 * mean(every):.2f} points too high "
        f"on average, because the weights were chosen on the same labels."
    )


def chain(name: str, of_set: list[Row]) -> str:
    """Scores without labels, with them, and with validation labels, on the same splits."""
    whole = [r for r in of_set if r["without"].get(OF_LABELS) and r["shown"] is not None]
    without = [r["without"][OF_LABELS]["test"] for r in whole]
    best, shown = [r["best"]["test"] for r in whole], [r["shown"] for r in whole]
    first = Gain.of([b - a for a, b in zip(without, best, strict=True)])
    second = Gain.of([b - a for a, b in zip(best, shown, strict=True)])
    return (
        f"On `{name}`, `best` scores {mean_text(without)} without labels as inputs, "
        f"{mean_text(best)} with train labels as inputs ({first}), and {mean_text(shown)} with "
        f"validation labels as further inputs ({second})."
    )


EXPECTED = ("debian by package", "arxiv-labels", "arxiv-guesses", "ogbn-arxiv-20k")
"""The sets on which validation labels without training were expected to help."""


def of_expected(rows: Rows) -> str:
    gains = {n: gain for n in EXPECTED if n in rows and (gain := gain_of_shown(rows[n]))}
    *first, last = (f"{gain} on `{name}`" for name, gain in gains.items())
    return f"Validation labels as further inputs gain {', '.join(first)} and {last}."
