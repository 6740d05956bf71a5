"""What a run leaves behind: files that can be read without this package, each whole or absent.

recipe.toml            every option
model.safetensors      weights
metrics.json           scores by protocol, calibration
history.jsonl          one line an epoch
predictions.parquet    one row a node (see predictions.py)
report.html            what people look at, made from the others and the task (see report/)
explanations/          what `unimp explain` was asked, once it was (see report/kept.py)
task.npz               the task, where it was your own or made from tables …
transforms.json        … and how columns of tables became features
sinks.json             which run it is in W&B and MLflow, where it was told there (see sinks.py)
manifest.json          versions, seed, threads, data hash, command; written last: its presence
                       says that the run is whole

While it trains there is a checkpoint too, and a lock: see unfinished.py.
"""

from __future__ import annotations

import datetime
import json
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unimp import __version__
from unimp.analysis.predictions import MOST_IN_RUN, predictions_table
from unimp.config.recipe import Recipe, read_recipe
from unimp.data.files import write_atomically
from unimp.data.npz import save_npz
from unimp.data.tables.transforms import load_transforms
from unimp.data.tables.writing import write_table
from unimp.errors import RecipeError, RunError, TaskError, nearest_names
from unimp.model.node_model import NodeModel
from unimp.ops.attention import backend_in_words
from unimp.tasks.task import Task
from unimp.training.checkpoint import save_weights
from unimp.training.loop import Epoch

FORMAT = 1
TASK, TRANSFORMS = "task.npz", "transforms.json"


def is_finished(folder: Path) -> bool:
    return (folder / "manifest.json").exists()


def write_task(folder: Path, task: Task) -> None:
    """Keep a task that has no name to load it by, and how its tables were read."""
    save_npz(task, folder / TASK)
    if task.tables is not None:
        task.tables.save(folder / TRANSFORMS)


def with_transforms(task: Task, folder: Path) -> Task:
    """Attach the transforms in a run folder to its task, if there are any."""
    path = folder / TRANSFORMS
    if not path.is_file():
        return task
    try:
        return replace(task, tables=load_transforms(path))
    except TaskError as error:
        raise RunError(str(error)) from error


def write_history(folder: Path, history: Sequence[Epoch]) -> None:
    """One line an epoch; written while training goes on, so that a run that is killed leaves it."""
    lines = "".join(json.dumps(_plain(epoch.as_line())) + "\n" for epoch in history)
    write_atomically(folder / "history.jsonl", lines.encode())


def write_run(
    folder: Path,
    *,
    recipe: Recipe,
    task: Task,
    model: NodeModel | None,
    own_model: str | None,
    metrics: Mapping[str, Any],
    history: Sequence[Epoch],
    probabilities: Tensor,
    observed: Tensor,
    seed: int,
    device: str,
    command: Sequence[str],
    data_hash: str,
) -> None:
    """Write all files of a run, the manifest last."""
    # A task that lies in the folder is named without it, so that the folder can be moved.
    kept = recipe.model_copy(update={"task": recipe.task.model_copy(update={"name": TASK})})
    own = recipe.task.name == str((folder / TASK).resolve())
    write_atomically(folder / "recipe.toml", (kept if own else recipe).to_toml().encode())
    if model is not None:
        save_weights(model, folder / "model.safetensors")
    write_json(folder / "metrics.json", metrics)
    write_history(folder, history)
    every_class = task.is_multilabel or probabilities.numel() <= MOST_IN_RUN
    table = predictions_table(task, probabilities, observed, every_class=every_class)
    write_table(folder / "predictions.parquet", table)
    manifest = {
        "format": FORMAT,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": list(command),
        "seed": seed,
        "protocol": "train labels are inputs when scoring; a line train+val adds validation's"
        if "train+val" in metrics["scores"]
        else "no labels are inputs: the model takes none",
        "task": task.name,
        "data_hash": data_hash,
        "device": _device_name(device),
        "threads": torch.get_num_threads(),
        # What computes attention, and a model that the recipe does not tell of.
        "backend": backend_in_words(recipe.model.backend, device)
        if model is not None and model.attends
        else "torch",
        "model": own_model,
        "versions": {
            "unimp": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "platform": platform.platform(),
    }
    write_json(folder / "manifest.json", manifest)


def read_run(folder: Path) -> tuple[Recipe, dict[str, Any], dict[str, Any]]:
    """The recipe, metrics and manifest of a whole run."""
    if not (folder / "manifest.json").is_file():
        if not folder.exists():
            near = (path.name for path in folder.parent.glob("*") if path.is_dir())
            meant = nearest_names(folder.name, near)
            hint = f"; {meant}" if meant.startswith("did you mean") else ""
            raise RunError(f"there is no folder {folder}{hint}")
        seeds = sorted(folder.glob("seed-*/manifest.json"))
        hint = f"; it holds several: name one, such as {seeds[0].parent}" if seeds else ""
        if (folder / "history.jsonl").is_file():
            hint = "; if it was interrupted, the command that began it goes on with it"
        raise RunError(f"{folder} is not a finished run: it has no manifest.json{hint}")
    manifest = _read_json(folder / "manifest.json")
    if manifest.get("format") != FORMAT:
        raise RunError(
            f"{folder} has format {manifest.get('format')}; this version reads format {FORMAT}"
        )
    missing = [key for key in ("seed", "data_hash") if key not in manifest]
    if missing:
        raise RunError(f"{folder / 'manifest.json'} lacks {' and '.join(missing)}; it is damaged")
    path = folder / "recipe.toml"
    try:
        recipe = read_recipe(path.read_text(encoding="utf-8"), folder.name)
    except (OSError, UnicodeDecodeError, RecipeError) as error:
        raise RunError(f"cannot read {path}: {error}") from error
    if Path(recipe.task.name).name == TASK and (folder / TASK).is_file():
        recipe = recipe.with_task(folder / TASK)
    return recipe, _read_json(folder / "metrics.json"), manifest


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    write_atomically(path, (json.dumps(_plain(values), indent=2) + "\n").encode())


def _plain(value: Any) -> Any:
    """What JSON can say: a score that is not defined is null, not NaN, which is no JSON."""
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
        raise RunError(f"{path} does not hold a JSON object")
    return values


def _device_name(device: str) -> str:
    if device.startswith("cuda"):
        return f"{device}: {torch.cuda.get_device_name(device)}"
    return f"{device}: {platform.processor() or platform.machine()}"
