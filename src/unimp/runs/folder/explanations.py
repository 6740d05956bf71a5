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

from unimp.config.run_files import EXPLANATIONS
from unimp.data.files import read_regular
from unimp.errors import RunError
from unimp.report.evidence import Explanations, StoredExplanation
from unimp.runs.folder.files import read_run, refuse_special_files, with_digest, write_json
from unimp.runs.folder.schemas import FORMAT, ExplanationFile, plain

MOST_BYTES = 1 << 26


def run_state(folder: Path) -> str:
    """The digest of the manifest, which contains the hashes of all files; training changes it."""
    return str(read_run(folder)[2]["digest"])[:20]


def store_explanation(folder: Path, found: Mapping[str, Any], given: Mapping[str, str]) -> Path:
    """Write an explanation into the folder of its run; the same question replaces its answer.

    given: the files that were added after training, by option: {"labels": "more.csv"}.
    """
    refuse_special_files(folder)
    asked = [str(found["node"]), found["class"], sorted(given.items())]
    smoothed = [form] if (form := found.get("smooth", "none")) != "none" else []
    question = json.dumps(asked + smoothed)
    # A name may contain any letter, and some file systems ignore case.
    name = re.sub(r"[^\w.-]+", "_", str(found["node"]), flags=re.ASCII).strip("._-")[:60]
    mark = hashlib.sha256(question.encode()).hexdigest()[:10]
    path = folder / EXPLANATIONS / f"{name or 'node'}-{mark}.json"
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")
    values = {"format": FORMAT, "run": run_state(folder), "asked": now, "given": dict(given)}
    write_json(path, with_digest({**values, "explanation": found}))
    return path


def stored_explanations(folder: Path) -> Explanations:
    """The explanations stored in a run folder that belong to the run as it is now.

    Whether one can be drawn is not checked here: a page shows a few, a folder may contain many.
    """
    state, stored, stale, damaged = run_state(folder), [], 0, 0
    for path in sorted((folder / EXPLANATIONS).glob("[!.]*.json")):
        try:
            values = plain(ExplanationFile, read_regular(path, MOST_BYTES), path)
        except (OSError, RunError):
            damaged += 1
            continue
        if values["run"] != state:
            stale += 1
            continue
        stored.append(StoredExplanation(values["explanation"], values["asked"], values["given"]))
    stored.sort(key=lambda one: one.asked, reverse=True)
    return Explanations(stored, stale, damaged)
