"""Explanations stored in a run folder.

explanations/vim-nox-3f2a9c1d04.json   one answer: the state of the run, the date, the files that
                                       were added after training, and `Explanation.to_dict`

An explanation of an earlier state of the run, for example before it was trained again, is stale.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unimp.report.evidence import Explanations, StoredExplanation
from unimp.report.explanation import UNREADABLE
from unimp.runs.folder.files import write_json

FOLDER = "explanations"
FORMAT = 1
STATE = (
    "recipe.toml",
    "model.safetensors",
    "metrics.json",
    "predictions.parquet",
    "manifest.json",
)
"""The files that determine the answers of a run and their confidence."""


def run_state(folder: Path) -> str:
    """A hash of the files that determine the answers of a run; training again changes it."""
    found = hashlib.sha256()
    for name in STATE:
        path = folder / name
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found.update(f"{name} {content}\n".encode())
    return found.hexdigest()[:20]


def store_explanation(folder: Path, found: Mapping[str, Any], given: Mapping[str, str]) -> Path:
    """Write an explanation into the folder of its run; the same question replaces its answer.

    given: the files that were added after training, by option: {"labels": "more.csv"}.
    """
    asked = [str(found["node"]), found["class"], sorted(given.items())]
    smoothed = [form] if (form := found.get("smooth", "none")) != "none" else []
    question = json.dumps(asked + smoothed)
    # A name may contain any letter, and some file systems ignore case.
    name = re.sub(r"[^\w.-]+", "_", str(found["node"]), flags=re.ASCII).strip("._-")[:60]
    mark = hashlib.sha256(question.encode()).hexdigest()[:10]
    path = folder / FOLDER / f"{name or 'node'}-{mark}.json"
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")
    values = {"format": FORMAT, "run": run_state(folder), "asked": now, "given": dict(given)}
    write_json(path, {**values, "explanation": found})
    return path


def stored_explanations(folder: Path) -> Explanations:
    """The explanations stored in a run folder that belong to the run as it is now.

    Whether one can be drawn is not checked here: a page shows a few, a folder may contain many.
    """
    state, stored, stale, damaged = run_state(folder), [], 0, 0
    for path in sorted((folder / FOLDER).glob("[!.]*.json")):
        try:
            # Reading a pipe would wait forever; an empty text is not valid JSON.
            values = json.loads(path.read_bytes() if path.is_file() else b"")
            if values["format"] == FORMAT and values["run"] != state:
                stale += 1
                continue
            stored.append(
                StoredExplanation(
                    values["explanation"], str(values["asked"]), dict(values["given"])
                )
            )
        except UNREADABLE:
            damaged += 1
    stored.sort(key=lambda one: one.asked, reverse=True)
    return Explanations(stored, stale, damaged)
