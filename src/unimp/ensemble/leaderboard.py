"""What the leaderboard of an ensemble says about a graph, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

WITH, WITHOUT = "unimp", "unimp-features"
"""The members of the portfolio that are the same UniMP with and without labels as inputs."""


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
