"""What the leaderboard of an ensemble says about a graph, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unimp.config.choices import Metric
from unimp.tasks.means import FEW_NODES

WITH, WITHOUT = "unimp", "unimp-features"
"""The members of the portfolio that are the same UniMP with and without labels as inputs."""


def weights_in_words(summary: Mapping[str, Any], metric: Metric) -> str:
    """One sentence on how the weights of the members were chosen; empty for a single member."""
    weights = [row["weight"] for row in summary["members"]]
    if len(weights) < 2:
        return ""
    in_folds = summary.get("val_folds") is not None
    known, where = ("", "the held-out folds") if in_folds else ("validation ", "validation")
    if max(weights) - min(weights) < 1e-9:
        return (
            f"All weights are equal, because fewer than {FEW_NODES} {known}labels are known, "
            "which are too few to choose weights."
        )
    if metric == "rocauc":
        return (
            f"The weights were chosen on {where}, by ROC-AUC or by the log-loss, whichever has "
            "the higher ROC-AUC."
        )
    return f"The weights minimize the log-loss on {where}, so the score of a member may be higher."


def refit_in_words(summary: Mapping[str, Any]) -> list[str]:
    """Sentences on how the members were trained again after scoring; none if they were not."""
    if not summary["refitted"]:
        return []
    chosen = [row for row in summary["members"] if row["weight"] > 0]
    folds, left_out = summary.get("val_folds"), summary["not_refitted"]
    if folds is None:
        sentences = [
            f"After scoring, {len(chosen) - len(left_out)} of {len(chosen)} chosen members were "
            "refitted on train and validation labels."
        ]
    else:
        count = max(row["folds"] for row in chosen)
        sentences = [
            f"After scoring, the members were trained again on {count} folds of train and "
            "validation labels, because few validation labels are known. On the held-out folds, "
            f"the ensemble scores {100 * folds:.2f} %."
        ]
    return sentences + [f"{name} was not refitted: {why}." for name, why in left_out.items()]


def label_gain_in_words(rows: Sequence[Mapping[str, Any]]) -> str:
    """One sentence on whether label inputs helped UniMP; empty unless both were fully trained."""
    complete = (row for row in rows if row["val"] is not None and not row["cut_short"])
    scores = {row["name"]: row["val"] for row in complete}
    if not {WITH, WITHOUT} <= scores.keys():
        return ""
    given, without = (100 * scores[name] for name in (WITH, WITHOUT))
    return (
        f"On validation, UniMP scores {given:.2f} % with known labels as inputs and "
        f"{without:.2f} % without them ({given - without:+.2f} points)."
    )
