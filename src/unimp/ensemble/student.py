"""A student compared with its teacher: scores, and how much of the teacher's gain it keeps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

NAMES = {"unimp": "UniMP without a teacher", "student": "student", "teacher": "teacher"}
"""What a student is compared with, in words, by the key in metrics.json."""


def compared_in(section: Mapping[str, Any]) -> dict[str, str]:
    """The rows of a comparison, as in `NAMES`, without UniMP if the teacher contains none."""
    known = any(row["unimp"] is not None for row in section["scores"].values())
    return {key: name for key, name in NAMES.items() if known or key != "unimp"}


def share_of_gain(student: float, teacher: float, alone: float | None) -> float | None:
    """(student − alone) / (teacher − alone): the part of a teacher's gain that a student keeps.

    alone: the score of the student's model without a teacher. None: the teacher is
    not better than that, so it has no gain, or a score is not known.
    """
    if alone is None or not math.isfinite(student + teacher + alone) or teacher <= alone:
        return None
    return (student - alone) / (teacher - alone)


def student_section(teacher: Mapping[str, Any], scores: Mapping[str, float]) -> dict[str, Any]:
    """The comparison that metrics.json stores, from `teacher_summary` and the student's scores."""
    sets = {}
    for name, student in scores.items():
        given, alone = teacher["scores"].get(name), teacher["unimp"].get(name)
        given = math.nan if given is None else given
        share = share_of_gain(student, given, alone)
        sets[name] = {"student": student, "teacher": given, "unimp": alone, "share_of_gain": share}
    return {"teacher": teacher["name"], "teacher_sha256": teacher["sha256"], "scores": sets}


def best_unimp(metrics: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The row of the UniMP with the best validation score in the leaderboard of a teacher."""
    rows = (metrics.get("ensemble") or {}).get("members", ())
    found = [
        row
        for row in rows
        if row["settings"].get("model.name", "unimp") == "unimp" and row["val"] is not None
    ]
    return max(found, key=lambda row: row["val"], default=None)


def teacher_summary(name: str, sha256: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """A teacher's scores with train labels as inputs, and those of the best UniMP among its
    members, which has the options of the student."""
    unimp = best_unimp(metrics) or {}
    return {
        "name": name,
        "sha256": sha256,
        "scores": dict(metrics["scores"]["train"]),
        "unimp": {key: unimp[key] for key in ("val", "test") if unimp.get(key) is not None},
    }


def gain_in_words(section: Mapping[str, Any]) -> str:
    """One sentence per set on how much of the teacher's gain the student keeps."""
    sentences = []
    for name, words in (("val", "validation"), ("test", "test")):
        row = section["scores"].get(name)
        if row is None or row["unimp"] is None or row["teacher"] is None:
            continue
        share, gain = row["share_of_gain"], 100 * (row["teacher"] - row["unimp"])
        if share is None:
            kept = "the teacher is not better than UniMP without a teacher"
        elif share <= 0:
            kept = "the student is not better than UniMP without a teacher"
        elif share >= 1:
            kept = f"the student keeps the whole gain of its teacher, {gain:.2f} points"
        else:
            kept = f"the student keeps {100 * share:.0f} % of its teacher's gain, {gain:.2f} points"
        sentences.append(f"On {words}, {kept}.")
    return (
        " ".join(sentences)
        or "The share of the gain is unknown: the teacher contains no UniMP with scores."
    )
