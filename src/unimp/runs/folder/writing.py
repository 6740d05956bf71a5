"""Writing the files of a run; `files.py` describes them."""

from __future__ import annotations

import datetime
import json
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from unimp import __version__
from unimp.analysis.predictions import MAX_ENTRIES_IN_RUN, predictions_table
from unimp.config.run_files import (
    CHECKPOINT,
    HISTORY,
    MANIFEST,
    METRICS,
    PARTS,
    PREDICTIONS,
    RECIPE,
    TASK,
    TRANSFORMS,
    WEIGHTS,
)
from unimp.data.files import write_atomically
from unimp.data.npz import npz_of
from unimp.data.tables.writing import write_table
from unimp.ops.attention import backend_in_words
from unimp.runs.folder.files import as_json, file_entry, stored_task, with_digest, write_json
from unimp.runs.folder.paths import paths_outside, with_relative_paths
from unimp.runs.folder.schemas import FORMAT
from unimp.tasks.task import Task
from unimp.tracking.origin import code_origin
from unimp.training.checkpoint import save_weights
from unimp.training.loop import Epoch, Fit

if TYPE_CHECKING:
    from unimp.runs.run import Run


def write_task(folder: Path, task: Task) -> None:
    """Store a task that has no name to load it by, and how its tables were read."""
    write_atomically(folder / TASK, npz_of(task))
    if task.tables is not None:
        task.tables.save(folder / TRANSFORMS)


def write_history(folder: Path, history: Sequence[Epoch]) -> None:
    """Write one line per epoch; also called during training, so that a killed run has a history."""
    lines = "".join(json.dumps(as_json(epoch.as_line())) + "\n" for epoch in history)
    write_atomically(folder / HISTORY, lines.encode())


def write_run(run: Run, fit: Fit, probabilities: Tensor, data_hash: str, own_model: bool) -> None:
    """Write all files of a run, the manifest last, and remove the checkpoint.

    probabilities: of all nodes, with train labels as inputs.
    """
    folder, task = run.folder, run.task
    assert folder is not None
    recipe = with_relative_paths(run.recipe, folder)
    write_history(folder, fit.history)
    write_atomically(folder / RECIPE, recipe.to_toml().encode())
    save_weights(run.model, folder / WEIGHTS)
    write_json(folder / METRICS, run.metrics)
    observed = run.observed_labels(reveal="train")
    # A student of a refitted ensemble learns from these probabilities, from before the refit.
    few = probabilities.numel() <= MAX_ENTRIES_IN_RUN
    every_class = True if task.is_multilabel or few else None if run.is_refitted else False
    table = predictions_table(task, probabilities, observed, every_class=every_class)
    write_table(folder / PREDICTIONS, table.to_arrow())
    write_json(folder / MANIFEST, with_digest(_manifest(run, data_hash, own_model)))
    (folder / CHECKPOINT).unlink(missing_ok=True)


def _manifest(run: Run, data_hash: str, own_model: bool) -> dict[str, Any]:
    """Where a run comes from: code, data, machine and command."""
    assert run.folder is not None
    reveals = "train+val" in run.metrics["scores"]
    parts = [*(run.folder / name for name in PARTS), *stored_task(run.recipe)]
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
        "paths": paths_outside(run.recipe, run.folder),
        "files": {path.name: file_entry(path) for path in parts},
    }


def _device_name(device: str) -> str:
    if device.startswith("cuda"):
        return f"{device}: {torch.cuda.get_device_name(device)}"
    return f"{device}: {platform.processor() or platform.machine()}"
