"""What the leaderboard of an ensemble says about a graph, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from unimp.config.choices import Metric
from unimp.tasks.means import FEW_NODES

WITH, WITHOUT = "unimp", "unimp-features"
"""The members of the portfolio that are the same UniMP with and without labels as inputs."""


def weights_in_words(summary: Mapping[str, Any], metric: Metric) -> str:
    """One sentence on how the weights of the members were chosen; empty for a single member."""
    in_folds = summary.get("folds")
    left_out = summary["not_refitted"] if in_folds else {}
    weights = [row["weight"] for row in summary["members"] if row["name"] not in left_out]
    if len(weights) < 2:
        return ""
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
        why = "; ".join(f"{name}: {why}" for name, why in summary["not_refitted"].items())
        text = f"No member was trained again on validation labels ({why.rstrip('.')})."
        return [text] if why else []
    chosen = [row for row in summary["members"] if row["weight"] > 0]
    folds, left_out = summary.get("folds"), summary["not_refitted"]
    then = "was left out of the ensemble" if folds else "was not refitted"
    if not folds:
        sentences = [
            f"After scoring, {len(chosen) - len(left_out)} of {len(chosen)} chosen members were "
            "refitted on train and validation labels."
        ]
    else:
        sentences = [
            f"After scoring, members were trained again on {folds} folds of train and validation "
            "labels, because few validation labels are known."
        ]
        if summary["val_folds"] is not None and math.isfinite(summary["val_folds"]):
            sentences.append(
                "The score of the ensemble on the held-out folds is "
                f"{100 * summary['val_folds']:.2f} %. It tends to be too high, because the best "
                "epochs and the weights were chosen on the same labels."
            )
    sentences.append(
        "The scores of members were measured before that; their weights are the final ones."
    )
    return sentences + [f"{name} {then}: {why.rstrip('.')}." for name, why in left_out.items()]


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
