"""The ids and classes of a run, stored beside it.

After a restart, the front accepts labels at once: it does not wait for the engine, which loads the
model first. The file contains the hash of the run's data, and is ignored if that differs.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unimp.config.run_files import LABELS_NAMES, MANIFEST
from unimp.data.files import write_atomically
from unimp.serving.requests import Vocabulary


@dataclass(frozen=True)
class RunNames:
    """The names that a run knows."""

    ids: frozenset[str]
    classes: frozenset[str]
    several: bool

    def vocabulary(self) -> Vocabulary:
        return Vocabulary(self.ids, self.classes, self.several)


def _hash(folder: Path) -> str:
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    return str(manifest["data_hash"])


def read_names(folder: Path) -> RunNames | None:
    """The stored names; None if there are none, or if they belong to other data."""
    try:
        stored = json.loads((folder / LABELS_NAMES).read_text(encoding="utf-8"))
        if stored["data_hash"] != _hash(folder):
            return None
        return RunNames(
            frozenset(stored["ids"]), frozenset(stored["classes"]), bool(stored["several"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_names(folder: Path, ids: Sequence[str], classes: Sequence[str], several: bool) -> None:
    """Store the names; a failure only makes the next start slower."""
    known = {"ids": list(ids), "classes": list(classes), "several": several}
    try:
        stored = {"data_hash": _hash(folder), **known}
        text = json.dumps(stored, ensure_ascii=False).encode()
        path = folder / LABELS_NAMES
        if not path.exists() or path.read_bytes() != text:
            write_atomically(path, text)
    except (OSError, ValueError, KeyError) as error:
        logging.getLogger("unimp.serving").warning("%s was not written: %s", LABELS_NAMES, error)
