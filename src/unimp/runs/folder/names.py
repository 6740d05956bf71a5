"""The names of all files in a run folder, each written once."""

from pathlib import Path

from unimp.tracking.trackers import IDS_FILE

RECIPE = "recipe.toml"
WEIGHTS = "model.safetensors"
METRICS = "metrics.json"
HISTORY = "history.jsonl"
PREDICTIONS = "predictions.parquet"
REPORT = "report.html"
MANIFEST = "manifest.json"
TASK = "task.npz"
TRANSFORMS = "transforms.json"
TRACKERS = IDS_FILE
CHECKPOINT = "checkpoint.safetensors"
LOCK = ".lock"
EXPLANATIONS = "explanations"
SUMMARY = "summary.json"

WRITTEN = (
    RECIPE,
    WEIGHTS,
    METRICS,
    HISTORY,
    PREDICTIONS,
    REPORT,
    MANIFEST,
    TASK,
    TRANSFORMS,
    TRACKERS,
    CHECKPOINT,
)
"""The files that a run writes."""

STARTED = {CHECKPOINT, TRACKERS, HISTORY, MANIFEST}
"""A folder with a started run contains at least one of these files."""

PARTIAL = tuple(f".{name}." for name in WRITTEN)
"""Prefixes of temporary files: a file is written under such a name and then renamed."""


def is_finished(folder: Path) -> bool:
    """Whether a folder contains a finished run: the manifest is written last."""
    return (folder / MANIFEST).exists()


def is_started(folder: Path) -> bool:
    """Whether a folder contains a checkpoint to resume from."""
    return (folder / CHECKPOINT).exists()


def seed_folders(folder: Path, seeds: list[int]) -> dict[int, Path]:
    """The folder of each seed: the folder itself for one seed, `seed-N` in it for several."""
    return {seed: folder / f"seed-{seed}" if len(seeds) > 1 else folder for seed in seeds}
