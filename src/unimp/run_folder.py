"""What a run leaves behind: files that can be read without this package, each whole or absent.

recipe.toml            every option
model.safetensors      weights
metrics.json           scores by protocol
history.jsonl          one line an epoch
predictions.parquet    one row a node
report.html            what people look at, made from the others and the task (see report/)
task.npz               the task, where it was your own or made from tables …
transforms.json        … and how columns of tables became features
manifest.json          versions, seed, threads, data hash, command; written last: its presence
                       says that the run is whole
"""

from __future__ import annotations

import datetime
import io
import json
import math
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unimp import __version__
from unimp.errors import RecipeError, RunError
from unimp.graph.files import write_atomically
from unimp.model.node_model import NodeModel
from unimp.ops.attention import backend_in_words
from unimp.recipe import Recipe, read_recipe
from unimp.tasks.labels import is_known
from unimp.tasks.npz import save_npz
from unimp.tasks.task import Task
from unimp.tasks.transforms import load_transforms
from unimp.training.checkpoint import save_weights
from unimp.training.loop import Epoch

FORMAT = 1
TASK, TRANSFORMS = "task.npz", "transforms.json"


def refuse_finished(folder: Path) -> None:
    """A folder that holds a run already is left alone."""
    if (folder / "manifest.json").exists():
        raise RunError(f"{folder} holds a finished run; choose another folder, or remove it")
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file; choose another folder")


def claim(folder: Path) -> Path:
    """Make the folder of a new run."""
    refuse_finished(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make the folder {folder}: {error.strerror}") from error
    return folder


@contextmanager
def not_left_empty(folder: Path | None) -> Iterator[None]:
    """Take the folder away again if what was to fill it fails before it writes anything."""
    try:
        yield
    except BaseException:
        if folder is not None:
            with suppress(OSError):
                folder.rmdir()  # refuses if there is anything in it
        raise


def write_task(folder: Path, task: Task) -> None:
    """Keep a task that has no name to load it by, and how its tables were read."""
    save_npz(task, folder / TASK)
    if task.tables is not None:
        task.tables.save(folder / TRANSFORMS)


def with_transforms(task: Task, folder: Path) -> Task:
    """The task of a run with the transforms that the run keeps, if it does."""
    path = folder / TRANSFORMS
    return replace(task, tables=load_transforms(path)) if path.is_file() else task


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
    own_model: bool,
    metrics: Mapping[str, Any],
    history: Sequence[Epoch],
    probabilities: Tensor,
    observed: Tensor,
    seed: int,
    device: str,
    command: Sequence[str],
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
    write_predictions(folder / "predictions.parquet", task, probabilities, observed)
    manifest = {
        "format": FORMAT,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": list(command),
        "seed": seed,
        "protocol": "train labels are inputs when scoring; a line `train+val` adds validation's",
        "task": task.name,
        "data_hash": task.data_hash(),
        "device": _device_name(device),
        "threads": torch.get_num_threads(),
        # What computes attention, and a model that the recipe does not tell of.
        "backend": backend_in_words(recipe.model.backend, device)
        if model is not None and model.attends
        else "torch",
        "model": type(model).__name__ if own_model else None,
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
        seeds = sorted(folder.glob("seed-*/manifest.json"))
        hint = f"; it holds several: name one, such as {seeds[0].parent}" if seeds else ""
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


def write_predictions(
    path: Path, task: Task, probabilities: Tensor, observed: Tensor, *, every_class: bool = False
) -> None:
    """One row a node: its id, set, label as far as known, whether it was an input, the prediction.

    Classes: `prediction` is the observed label where there is one, for the rest the likeliest
    class; `confidence` is the model's own probability of it. With `every_class`, a column
    `p_<class>` for each. Binary tasks: the names of tasks above one half, and one column each.
    A path that ends in .csv gives CSV; any other, Parquet.
    """
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    names = task.class_names or tuple(str(c) for c in range(task.num_classes))
    ids = task.node_names or range(task.graph.num_nodes)
    seen = is_known(observed).numpy()
    sets = np.full(task.graph.num_nodes, "", dtype=object)
    for name in ("train", "val", "test"):
        sets[getattr(task.split, name).numpy()] = name
    columns: dict[str, Any] = {"node": pa.array(ids), "set": pa.array(sets, pa.string())}
    if task.is_multilabel:
        columns["observed"] = pa.array(seen)
        above = [np.flatnonzero(row) for row in (probabilities > 0.5).numpy()]
        columns["prediction"] = pa.array(" ".join(names[t] for t in row) for row in above)
    else:
        lookup = np.array([*names, ""], dtype=object)
        label = torch.where(observed >= 0, observed, task.labels)
        prediction = torch.where(observed >= 0, observed, probabilities.argmax(1))
        confidence = probabilities.gather(1, prediction[:, None]).squeeze(1)
        unknown = ~is_known(label).numpy()
        columns["label"] = pa.array(lookup[label.numpy()], pa.string(), mask=unknown)
        columns["observed"] = pa.array(seen)
        columns["prediction"] = pa.array(lookup[prediction.numpy()], pa.string())
        columns["confidence"] = pa.array(confidence.numpy())
    if task.is_multilabel or every_class:
        for c, name in enumerate(names):
            columns[f"p_{name}"] = pa.array(probabilities[:, c].numpy())
    table, buffer = pa.table(columns), io.BytesIO()
    if path.suffix == ".csv":
        pyarrow.csv.write_csv(table, buffer)
    else:
        pyarrow.parquet.write_table(table, buffer, compression="zstd")
    write_atomically(path, buffer.getvalue())


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
