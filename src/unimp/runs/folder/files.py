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
manifest.json          versions, seed, threads, data hash, command, and the SHA-256 of the files
                       above (other than report.html, explanations/ and trackers.json, which may be
                       written again); it is written last, so that its presence shows that the run
                       is complete

Every file is complete or absent. `config/run_files.py` lists the names and `schemas.py` the schema
of each JSON file; `resume.py` describes the checkpoint and the lock of an unfinished run.
"""

from __future__ import annotations

import datetime
import errno
import hashlib
import json
import math
import platform
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from unimp import __version__
from unimp.analysis.predictions import MAX_ENTRIES_IN_RUN, predictions_table
from unimp.config.recipe import Recipe, read_recipe
from unimp.config.run_files import (
    CHECKPOINT,
    EXPLANATIONS,
    HISTORY,
    MANIFEST,
    METRICS,
    PARTS,
    PREDICTIONS,
    RECIPE,
    TASK,
    TRANSFORMS,
    WEIGHTS,
    WRITTEN,
    is_finished,
)
from unimp.data.files import digest_of, open_regular, read_regular, special_kind, write_atomically
from unimp.data.npz import npz_of
from unimp.data.tables.transforms import Transforms
from unimp.data.tables.writing import write_table
from unimp.errors import RecipeError, RunError, UnimpError, nearest_names
from unimp.ops.attention import backend_in_words
from unimp.runs.folder.paths import (
    paths_in,
    paths_outside,
    with_absolute_paths,
    with_relative_paths,
)
from unimp.runs.folder.schemas import (
    FIX,
    FORMAT,
    HistoryLine,
    Manifest,
    Metrics,
    TransformsFile,
    parse,
    plain,
)
from unimp.tasks.task import Task
from unimp.tracking.origin import code_origin
from unimp.training.checkpoint import save_weights
from unimp.training.loop import Epoch, Fit

if TYPE_CHECKING:
    from unimp.runs.run import Run

MOST_BYTES = 1 << 28
"""The largest size of a file that the manifest does not list, such as the manifest itself."""


def write_task(folder: Path, task: Task) -> None:
    """Store a task that has no name to load it by, and how its tables were read."""
    write_atomically(folder / TASK, npz_of(task))
    if task.tables is not None:
        task.tables.save(folder / TRANSFORMS)


def with_transforms(task: Task, folder: Path) -> Task:
    """The task of a run with the transforms that the folder contains, if any."""
    path = folder / TRANSFORMS
    if not (path.exists() or path.is_symlink()):
        return task
    found = parse(TransformsFile, _read(path, MOST_BYTES), path)
    for encoder in (*found.nodes, *found.edges):
        if getattr(encoder, "std", 1.0) <= 0 or not encoder.width:
            raise RunError(f"{path} is damaged at the column {encoder.column!r}. {FIX}")
    transforms = Transforms(
        found.tables,
        tuple(found.nodes),
        tuple(found.edges),
        found.sparse,
        found.whole_ids,
        found.near,
    )
    if found.near is not None and len(found.near.points) not in (0, task.graph.num_nodes):
        raise RunError(f"{path} does not describe the nodes of {TASK}. {FIX}")
    widths = [sum(encoder.width for encoder in part) for part in (found.nodes, found.edges)]
    sizes = task.sizes
    if (*widths, found.sparse, found.tables.is_multilabel) != (
        *(sizes.features, sizes.edge_features, sizes.sparse, sizes.multilabel),
    ):
        raise RunError(f"{path} does not describe the features and labels of {TASK}. {FIX}")
    return replace(task, tables=transforms)


def write_history(folder: Path, history: Sequence[Epoch]) -> None:
    """Write one line per epoch; also called during training, so that a killed run has one."""
    lines = "".join(json.dumps(_plain(epoch.as_line())) + "\n" for epoch in history)
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
    # A student of a refitted ensemble learns from these probabilities, which are from before.
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


def stored_task(recipe: Recipe) -> list[Path]:
    """The files of a task that a run stored, here or in the folder of an earlier run."""
    path = Path(recipe.task.name)
    if path.name != TASK:
        return []
    transforms = path.parent / TRANSFORMS
    return [path, *([transforms] if transforms.exists() and not recipe.task.features else [])]


def read_run(folder: Path) -> tuple[Recipe, dict[str, Any], dict[str, Any]]:
    """The recipe, metrics and manifest of a finished run."""
    if not is_finished(folder):
        raise RunError(_not_finished(folder))
    path = folder / MANIFEST
    manifest = plain(Manifest, _read(path, MOST_BYTES), path)
    path = folder / RECIPE
    try:
        recipe = read_recipe(read_part(path, manifest).decode(), folder.name)
    except (UnicodeDecodeError, RecipeError) as error:
        raise RunError(f"cannot read {path}: {error}") from error
    path = folder / METRICS
    metrics = plain(Metrics, read_part(path, manifest), path)
    return with_absolute_paths(recipe, folder, manifest["paths"]), metrics, manifest


def read_history(folder: Path, manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The epochs of a finished run."""
    path = folder / HISTORY
    lines = read_part(path, manifest).splitlines()
    return [parse(HistoryLine, line, path).model_dump(exclude_unset=True) for line in lines]


def read_part(path: Path, manifest: Mapping[str, Any]) -> bytes:
    """Read a file that a run consists of; refuse it if it is not the one that the run wrote."""
    data = _read(path, _entry(path, manifest)["bytes"])
    _refuse_changed(path, manifest, hashlib.sha256(data).hexdigest())
    return data


def check_part(path: Path, manifest: Mapping[str, Any]) -> None:
    """Refuse a file that is not the one that the run wrote, without reading it into memory."""
    if kind := special_kind(path):
        raise RunError(f"{path} is {kind}, not a regular file. {FIX}")
    try:
        size = path.lstat().st_size
        same_size = size == _entry(path, manifest)["bytes"]
        found = file_entry(path)["sha256"] if same_size else f"that of {size:,} bytes"
    except OSError as error:
        raise _unreadable(path, error) from error
    _refuse_changed(path, manifest, found)


def check_task(recipe: Recipe, manifest: Mapping[str, Any]) -> None:
    """Refuse the stored task of a run if it is not the one that the run was trained on."""
    path = Path(recipe.task.name)
    if path.name == TASK:
        listed = [path.parent / name for name in (TASK, TRANSFORMS) if name in manifest["files"]]
        for part in dict.fromkeys([*listed, *stored_task(recipe)]):
            check_part(part, manifest)


def file_entry(path: Path) -> dict[str, Any]:
    """The SHA-256 and size of a file, as the manifest stores them."""
    with open_regular(path) as file:
        digest = hashlib.file_digest(file, "sha256")
        return {"sha256": digest.hexdigest(), "bytes": file.tell()}


def _entry(path: Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
    try:
        entry: dict[str, Any] = manifest["files"][path.name]
    except KeyError:
        raise RunError(f"{path} is not listed in {MANIFEST} of the run. {FIX}") from None
    return entry


def _refuse_changed(path: Path, manifest: Mapping[str, Any], sha256: str) -> None:
    if sha256 != _entry(path, manifest)["sha256"]:
        raise RunError(
            f"{path} changed after the run was written: its SHA-256 is not the one in {MANIFEST}. "
            f"{FIX}"
        )


def _read(path: Path, most: int) -> bytes:
    try:
        return read_regular(path, most)
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> RunError:
    why = error.strerror or str(error)
    if error.errno == errno.EFBIG:
        why = f"it changed after the run was written ({why})"
    return RunError(f"cannot read {path}: {why}. {FIX}")


def files_behind(folder: Path) -> list[Path]:
    """All files of a run folder, and the files outside of it that its recipe names."""
    files = [*(folder / name for name in WRITTEN), *(folder / EXPLANATIONS).glob("*")]
    before: Mapping[str, str] = {}
    if is_finished(folder):
        with suppress(UnimpError):
            path = folder / MANIFEST
            before = parse(Manifest, _read(path, MOST_BYTES), path).paths
    with suppress(UnimpError, UnicodeDecodeError):
        recipe = read_recipe(_read(folder / RECIPE, MOST_BYTES).decode(), folder.name)
        files += map(Path, paths_in(with_absolute_paths(recipe, folder, before)).values())
    return files


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


def with_digest(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as JSON represents them, and their `digest`."""
    plain_values: dict[str, Any] = _plain(values)
    return {**plain_values, "digest": digest_of(plain_values)}


def _device_name(device: str) -> str:
    if device.startswith("cuda"):
        return f"{device}: {torch.cuda.get_device_name(device)}"
    return f"{device}: {platform.processor() or platform.machine()}"
