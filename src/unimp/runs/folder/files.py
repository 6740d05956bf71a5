"""The files of a run folder, which can be read without this package, and how they are read.

recipe.toml            every option
model.safetensors      the weights
metrics.json           scores per label protocol, calibration, epochs, time
history.jsonl          one line per epoch
predictions.parquet    one row per node (see analysis/predictions.py)
report.html            what people look at
evidence.parquet       what a report takes from the task and the model (see facts.py)
explanations/          stored answers of `unimp explain`
task.npz               the task, if it was given as an object or read from tables
transforms.json        how columns of the tables became features
trackers.json          the ids of the run in W&B and MLflow
manifest.json          versions, seed, threads, data hash, command, and the SHA-256 of the files
                       above (other than report.html, evidence.parquet, explanations/ and
                       trackers.json, which may be written again); it is written last, so that its
                       presence shows that the run is complete

Every file is complete or absent. `config/run_files.py` lists the names and `schemas.py` the schema
of each JSON file; `resume.py` describes the checkpoint and the lock of an unfinished run.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unimp.config.recipe import Recipe, read_recipe
from unimp.config.run_files import (
    EXPLANATIONS,
    HISTORY,
    MANIFEST,
    MEMBERS,
    METRICS,
    RECIPE,
    REFIT,
    TASK,
    TRANSFORMS,
    WRITTEN,
    is_finished,
)
from unimp.data.files import digest_of, open_regular, read_regular, special_kind, write_atomically
from unimp.data.tables.transforms import Transforms
from unimp.errors import RecipeError, RunError, UnimpError, nearest_names
from unimp.runs.folder.paths import (
    paths_in,
    with_absolute_paths,
)
from unimp.runs.folder.schemas import (
    FIX,
    HistoryLine,
    Manifest,
    Metrics,
    TransformsFile,
    parse,
    plain,
)
from unimp.tracking.trackers import TRACKERS

if TYPE_CHECKING:
    from unimp.tasks.task import Task

LOWER_RATE = "Try a smaller train.lr, or scale the features."
MOST_BYTES = 1 << 28
"""The largest size of a file that the manifest does not list, such as the manifest itself."""


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


def stored_task(recipe: Recipe) -> list[Path]:
    """The files of a task that a run stored, here or in the folder of an earlier run."""
    path = Path(recipe.task.name)
    if path.name != TASK:
        return []
    transforms = path.parent / TRANSFORMS
    return [path, *([transforms] if transforms.exists() and not recipe.task.features else [])]


def refuse_special_files(folder: Path) -> None:
    """Refuse a folder in which a link, a pipe or a device has the name of a file of a run."""
    for name in WRITTEN:
        if kind := special_kind(folder / name):
            raise RunError(
                f"{folder / name} is {kind}, and a run writes a file of that name. Remove it, or "
                "choose another folder."
            )
    for name in (EXPLANATIONS, MEMBERS, REFIT, *TRACKERS):
        if special_kind(folder / name) not in ("", "a folder"):
            raise RunError(
                f"{folder / name} is not a folder, and a run writes a folder of that name. Remove "
                "it, or choose another folder."
            )


def read_run(folder: Path) -> tuple[Recipe, dict[str, Any], dict[str, Any]]:
    """The recipe, metrics and manifest of a finished run."""
    refuse_unfinished(folder)
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


def refuse_unfinished(folder: Path) -> None:
    """Refuse a folder that is not a finished run."""
    if not is_finished(folder):
        raise RunError(_not_finished(folder))


def _not_finished(folder: Path) -> str:
    """Why a folder is not a finished run, and what to do."""
    if not folder.exists():
        near = (str(path) for path in folder.parent.glob("*") if path.is_dir())
        meant = nearest_names(str(folder), near)
        hint = f"; {meant}" if meant.startswith("did you mean") else ""
        return f"there is no folder {folder}{hint}"
    hint = ""
    if seeds := sorted(folder.glob(f"seed-*/{MANIFEST}")):
        hint = f"; it contains several runs: choose one, such as {seeds[0].parent}"
    if (folder / HISTORY).is_file():
        hint = "; if it was interrupted, run the command that started it again to resume it"
    return f"{folder} is not a finished run: it has no {MANIFEST}{hint}"


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    write_atomically(path, (json.dumps(as_json(values), indent=2) + "\n").encode())


def as_json(value: Any) -> Any:
    """Values that JSON can represent: an undefined score becomes null instead of NaN."""
    if isinstance(value, Mapping):
        return {key: as_json(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def with_digest(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as JSON represents them, and their `digest`."""
    plain_values: dict[str, Any] = as_json(values)
    return {**plain_values, "digest": digest_of(plain_values)}


def failure_of(metrics: Mapping[str, Any]) -> str:
    """Why a training failed, and which state its model has; empty if it succeeded."""
    if not metrics.get("failed"):
        return ""
    state = "in the last good state" if metrics["epochs"] else "untrained"
    return f"training failed: {metrics['stopped']}, so the model is {state}. {LOWER_RATE}"
