"""The names of all files in a run folder, each written once."""

import re
from pathlib import Path

RECIPE = "recipe.toml"
WEIGHTS = "model.safetensors"
METRICS = "metrics.json"
HISTORY = "history.jsonl"
PREDICTIONS = "predictions.parquet"
REPORT = "report.html"
EVIDENCE = "evidence.parquet"
MANIFEST = "manifest.json"
TASK = "task.npz"
TRANSFORMS = "transforms.json"
TRACKERS = "trackers.json"
CHECKPOINT = "checkpoint.safetensors"
LOCK = ".lock"
EXPLANATIONS = "explanations"
SUMMARY = "summary.json"
MEMBERS, REFIT = "members", "refit"
"""Folders with the runs of the members of an ensemble, before and after the refit."""
GUESSED = "tables.toml"
"""The recipe that `unimp train NODES EDGES` guessed, for the user to edit."""
LABELED = "predictions.csv"
"""The predictions that `unimp train NODES EDGES` writes; all known labels are inputs."""

LABELS = "labels.db"
"""The labels and changes that the label service received: an SQLite database, which has two more
files while it is open."""
LABELS_LOCK = ".labels.lock"
GENERATIONS = "generations"
"""A folder with the models that `unimp serve` trained on new labels, by their numbers."""
GATE = "gate.json"
"""In the folder of such a model: whether it may replace the one before it."""
JOB, PLAN = "job.json", "plan.json"
"""Beside the folder of such a model, after its number and a dot: the state of its training, and the
version and the labels that it is based on."""
LABELS_NAMES = "labels.names.json"
"""The ids and classes of the run, so that the service accepts labels before the model is loaded."""

PARTS = (RECIPE, WEIGHTS, METRICS, HISTORY, PREDICTIONS)
"""The files that every finished run consists of, other than its manifest."""

WRITTEN = (*PARTS, REPORT, EVIDENCE, MANIFEST, TASK, TRANSFORMS, TRACKERS, CHECKPOINT)
"""The files that a run writes."""

STARTED = {CHECKPOINT, TRACKERS, HISTORY, MANIFEST}
"""A folder with a started run contains at least one of these files."""

_OURS = (*WRITTEN, GUESSED, LABELED)
_PARTIAL = re.compile(rf"\.({'|'.join(map(re.escape, _OURS))})\.[a-z0-9_]{{8}}")


def is_partial(name: str) -> bool:
    """Whether a name is temporary: a file is written under such a name and then renamed."""
    return _PARTIAL.fullmatch(name) is not None


def is_finished(folder: Path) -> bool:
    """Whether a folder contains a finished run: the manifest is written last."""
    return _exists(folder / MANIFEST)


def is_started(folder: Path) -> bool:
    """Whether a folder contains a checkpoint to resume from."""
    return _exists(folder / CHECKPOINT)


def is_run_file(path: Path) -> bool:
    """Whether a path is one of the files that a run writes, in a run folder."""
    folder, name = path.parent.resolve(), path.name.casefold()
    if folder.name == EXPLANATIONS and _is_run_folder(folder.parent):
        return True
    if name == SUMMARY:  # beside the folders of several seeds
        return any(_is_run_folder(seed) for seed in folder.glob("seed-*"))
    if name in (LABELS, f"{LABELS}-wal", f"{LABELS}-shm", LABELS_LOCK, LABELS_NAMES):
        return _exists(folder / LABELS) or _is_run_folder(folder)
    return name in (*WRITTEN, LOCK) and _is_run_folder(folder)


def _is_run_folder(folder: Path) -> bool:
    return any(_exists(folder / name) for name in (*STARTED, LOCK))


def _exists(path: Path) -> bool:
    """Whether there is anything at a path; a broken link counts too."""
    return path.exists() or path.is_symlink()


def seed_folder(seed: int) -> str:
    """The name of the folder of one of several seeds."""
    return f"seed-{seed}"


def seed_folders(folder: Path, seeds: list[int]) -> dict[int, Path]:
    """The folder of each seed: the folder itself for one seed, `seed-N` in it for several."""
    return {seed: folder / seed_folder(seed) if len(seeds) > 1 else folder for seed in seeds}
