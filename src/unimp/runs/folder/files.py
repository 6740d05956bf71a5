"""Writing and reading a run folder: files that can be read without this package.

recipe.toml            every option
model.safetensors      the weights
metrics.json           scores per label protocol, calibration, epochs, time
history.jsonl          one line per epoch
predictions.parquet    one row per node (see analysis/predictions.py)
report.html            what people look at
explanations/          stored answers of `unimp explain`
task.npz               the task, if it was given as an object or read from tables
transforms.json        how columns of the tables became features
trackers.json          the ids of the run in W&B and MLflow
manifest.json          versions, seed, threads, data hash, command; it is written last, so that its
                       presence shows that the run is complete

Every file is complete or absent. `names.py` lists the names; `resume.py` describes the checkpoint
and the lock of a run that is still training.
"""

from __future__ import annotations

import datetime
import json
import math
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from unimp import __version__
from unimp.analysis.predictions import MAX_ENTRIES_IN_RUN, predictions_table
from unimp.config.recipe import Recipe, read_recipe
from unimp.data.files import write_atomically
from unimp.data.npz import save_npz
from unimp.data.tables.transforms import load_transforms
from unimp.errors import RecipeError, RunError, TaskError, nearest_names
from unimp.ops.attention import backend_in_words
from unimp.runs.folder.names import (
    HISTORY,
    MANIFEST,
    METRICS,
    PREDICTIONS,
    RECIPE,
    TASK,
    TRANSFORMS,
    WEIGHTS,
    is_finished,
)
from unimp.tasks.task import Task
from unimp.tracking.origin import code_origin
from unimp.training.checkpoint import save_weights
from unimp.training.loop import Epoch, Fit

if TYPE_CHECKING:
    from unimp.runs.run import Run

FORMAT = 1
"""The version of the folder's layout; a later version reads it or refuses it by this number."""


def write_task(folder: Path, task: Task) -> None:
    """Store a task that has no name to load it by, and how its tables were read."""
    save_npz(task, folder / TASK)
    if task.tables is not None:
        task.tables.save(folder / TRANSFORMS)


def with_transforms(task: Task, folder: Path) -> Task:
    """The task of a run with the transforms that the folder contains, if any."""
    path = folder / TRANSFORMS
    if not path.is_file():
        return task
    try:
        return replace(task, tables=load_transforms(path))
    except TaskError as error:
        raise RunError(str(error)) from error


def write_history(folder: Path, history: Sequence[Epoch]) -> None:
    """Write one line per epoch; also called during training, so that a killed run has one."""
    lines = "".join(json.dumps(_plain(epoch.as_line())) + "\n" for epoch in history)
    write_atomically(folder / HISTORY, lines.encode())


def write_run(
    run: Run, fit: Fit, probabilities: Tensor, data_hash: str, *, own_model: bool
) -> None:
    """Write all files of a run, the manifest last.

    probabilities: of all nodes, with train labels as inputs.
    """
    folder, recipe, task = run.folder, run.recipe, run.task
    assert folder is not None
    # A task that is stored in the folder is named without the folder, so that it can be moved.
    if recipe.task.name == str((folder / TASK).resolve()):
        stored = recipe.task.model_copy(update={"name": TASK})
        recipe = recipe.model_copy(update={"task": stored})
    write_atomically(folder / RECIPE, recipe.to_toml().encode())
    save_weights(run.model, folder / WEIGHTS)
    write_json(folder / METRICS, run.metrics)
    write_history(folder, fit.history)
    observed = run.observed_labels(reveal="train")
    every_class = task.is_multilabel or probabilities.numel() <= MAX_ENTRIES_IN_RUN
    table = predictions_table(task, probabilities, observed, every_class=every_class)
    table.write(folder / PREDICTIONS)
    write_json(folder / MANIFEST, _manifest(run, data_hash, own_model))


def _manifest(run: Run, data_hash: str, own_model: bool) -> dict[str, Any]:
    """Where a run comes from: code, data, machine and command."""
    reveals = "train+val" in run.metrics["scores"]
    return {
        "format": FORMAT,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": list(sys.argv),
        "seed": run.seed,
        "protocol": "scores use train labels as inputs; the protocol train+val adds validation's"
        if reveals
        else "no labels are inputs, because the model takes none",
        "task": run.task.name,
        "data_hash": data_hash,
        "device": _device_name(run.device),
        "threads": torch.get_num_threads(),
        "backend": backend_in_words(run.recipe.model.backend, run.device)
        if run.model.attends
        else "torch",
        # The class of a user's own model; the recipe's model is named in the recipe.
        "model": type(run.model).__name__ if own_model else None,
        "code": code_origin(),
        "versions": {
            "unimp": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "platform": platform.platform(),
    }


def read_run(folder: Path) -> tuple[Recipe, dict[str, Any], dict[str, Any]]:
    """The recipe, metrics and manifest of a finished run."""
    if not is_finished(folder):
        raise RunError(_not_finished(folder))
    manifest = _read_json(folder / MANIFEST)
    if manifest.get("format") != FORMAT:
        raise RunError(
            f"{folder} has format {manifest.get('format')}; this version reads format {FORMAT}"
        )
    missing = [key for key in ("seed", "data_hash") if key not in manifest]
    if missing:
        raise RunError(
            f"{folder / MANIFEST} lacks {' and '.join(missing)}; it is damaged, copy it again"
        )
    path = folder / RECIPE
    try:
        recipe = read_recipe(path.read_text(encoding="utf-8"), folder.name)
    except (OSError, UnicodeDecodeError, RecipeError) as error:
        raise RunError(f"cannot read {path}: {error}") from error
    if Path(recipe.task.name).name == TASK and (folder / TASK).is_file():
        recipe = recipe.with_task(folder / TASK)
    return recipe, _read_json(folder / METRICS), manifest


def _not_finished(folder: Path) -> str:
    """Why a folder is not a finished run, and what to do."""
    if not folder.exists():
        near = (path.name for path in folder.parent.glob("*") if path.is_dir())
        meant = nearest_names(folder.name, near)
        hint = f"; {meant}" if meant.startswith("did you mean") else ""
        return f"there is no folder {folder}{hint}"
    hint = ""
    if seeds := sorted(folder.glob(f"seed-*/{MANIFEST}")):
        hint = f"; it contains several runs: choose one, such as {seeds[0].parent}"
    if (folder / HISTORY).is_file():
        hint = "; if it was interrupted, run the command that started it again to resume it"
    return f"{folder} is not a finished run: it has no {MANIFEST}{hint}"


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    write_atomically(path, (json.dumps(_plain(values), indent=2) + "\n").encode())


def _plain(value: Any) -> Any:
    """Values that JSON can represent: an undefined score becomes null instead of NaN."""
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {path}: {error}") from error
    if not isinstance(values, dict):
        raise RunError(f"{path} does not contain a JSON object")
    return values


def _device_name(device: str) -> str:
    if device.startswith("cuda"):
        return f"{device}: {torch.cuda.get_device_name(device)}"
    return f"{device}: {platform.processor() or platform.machine()}"
