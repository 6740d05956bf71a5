"""What the leaderboard of an ensemble says about a graph, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unimp.config.choices import Metric
from unimp.tasks.means import FEW_NODES

WITH, WITHOUT = "unimp", "unimp-features"
"""The members of the portfolio that are the same UniMP with and without labels as inputs."""


def weights_in_words(rows: Sequence[Mapping[str, Any]], metric: Metric) -> str:
    """One sentence on how the weights of the members were chosen; empty for a single member."""
    weights = [row["weight"] for row in rows]
    if len(weights) < 2:
        return ""
    if max(weights) - min(weights) < 1e-9:
        return (
            f"All weights are equal, because fewer than {FEW_NODES} validation labels are known, "
            "which are too few to choose weights."
        )
    if metric == "rocauc":
        return (
            "The weights were chosen on validation, by ROC-AUC or by the log-loss, whichever has "
            "the higher ROC-AUC."
        )
    return (
        "The weights minimize the log-loss on validation, so the score of a member may be higher."
    )


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
