"""Starting, resuming or loading: what a run folder already contains, and who may write to it.

`find_run` makes the decision for one folder. A folder is held by one process at a time. While a run
trains, its folder contains a checkpoint; a finished run has none.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple
from zipfile import BadZipFile, ZipFile

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open

from unimp import __version__
from unimp.config.recipe import Recipe, read_recipe
from unimp.config.run_files import (
    CHECKPOINT,
    EVIDENCE,
    HISTORY,
    LOCK,
    MANIFEST,
    METRICS,
    PREDICTIONS,
    RECIPE,
    REPORT,
    STARTED,
    SUMMARY,
    TASK,
    TRACKERS,
    TRANSFORMS,
    WEIGHTS,
    WRITTEN,
    is_finished,
    is_partial,
    is_started,
)
from unimp.data.files import open_regular, read_regular, special_kind
from unimp.errors import RunError
from unimp.runs.folder.files import MOST_BYTES, read_run, refuse_special_files
from unimp.runs.folder.lock import in_use, locked
from unimp.runs.folder.paths import paths_in
from unimp.runs.folder.schemas import Checkpoint, HistoryLine, Metrics, TransformsFile, parse
from unimp.runs.folder.writing import write_history
from unimp.tracking import trackers
from unimp.training.checkpoint import Checkpoints, load_checkpoint, read_about
from unimp.training.interruption import signals_held
from unimp.training.loop import Epoch, Keep, TrainingState

NO_EFFECT = (
    "train.checkpoint_every",
    "batch.workers",
    "batch.placement",
    "batch.prefetch",
    "ensemble.jobs",
)
"""Options that change no result."""


class Found(NamedTuple):
    """What a folder contains of the wanted run."""

    state: Literal["new", "started", "finished"]
    recipe: Recipe  # the wanted recipe, with the regime of the started run if it leaves that open


def find_run(folder: Path | None, recipe: Recipe, seed: int) -> Found:
    """Decide whether a run starts, resumes or is loaded; refuse a folder with another run."""
    if folder is None:
        return Found("new", recipe)
    if is_finished(folder):
        stored, _, manifest = read_run(folder)
        other = differences(stored, recipe)
        if manifest["seed"] != seed:
            other.append(f"seed is {manifest['seed']} there and {seed} here")
        _refuse_other(folder, "a finished run", other)
        return Found("finished", recipe)
    if not is_started(folder):
        return Found("new", recipe)
    begun = read_begun(folder)["made_with"]
    _refuse_other(folder, "an unfinished run", _different(begun, depends_on(recipe, seed)))
    regime = begun["recipe"]["batch"]["regime"]
    if recipe.batch.regime == "auto" and regime != "auto":
        recipe = recipe.with_regime(regime)
    return Found("started", recipe)


def read_begun(folder: Path) -> dict[str, Any]:
    """The description in the checkpoint of an unfinished run, without the tensors."""
    path = folder / CHECKPOINT
    about = read_about(path)
    fix = "Remove it to start this run again."
    parse(Checkpoint, json.dumps(about), path, fix)
    try:
        Recipe.model_validate(about["made_with"]["recipe"])
    except ValidationError as error:
        raise RunError(f"the recipe in {path} is not valid: {error}. {fix}") from error
    return about


@contextmanager
def held_folder(folder: Path | None) -> Iterator[None]:
    """Create the folder of a run if needed, and hold it for this process alone.

    If the run fails before there is anything to resume from, the files that this process wrote
    are removed, and the folder if it was created here.
    """
    if folder is None:
        yield
        return
    existed = folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise RunError(f"{folder} is a file; choose another folder") from error
    except OSError as error:
        raise RunError(
            f"cannot create the folder {folder}: {error.strerror}; choose another folder"
        ) from error
    refuse_special_files(folder)
    _refuse_files_of_others(folder)
    try:
        with locked(folder):
            for path in folder.iterdir():
                if is_partial(path.name):  # of a process that was killed while writing
                    path.unlink()
            before = {path.name for path in folder.iterdir()}
            try:
                yield
            except BaseException:
                _remove_beginning(folder, before)
                raise
    except BaseException:
        if not existed:
            with suppress(OSError):
                folder.rmdir()  # does nothing if the folder is not empty
        raise


def refuse_linked_seed(folder: Path | None) -> None:
    """Refuse a link as the folder of a seed: the run would be written somewhere else."""
    if folder is not None and (kind := special_kind(folder)) not in ("", "a folder"):
        raise RunError(
            f"{folder} is {kind}, and a run writes a folder of that name. Remove it, or choose "
            "another folder."
        )


def _refuse_files_of_others(folder: Path) -> None:
    """Refuse to overwrite files that no run wrote, such as a recipe that a user wrote.

    A file belongs to a run if its content is of the kind that a run writes under its name, and if
    the folder shows that a run was interrupted: by a checkpoint, an epoch or the id in a tracker. A
    run without training leaves its recipe beside a lock or a history without epochs. A lock alone
    is that of a run that was killed before its first epoch. An empty file can be overwritten.
    """
    names = {path.name for path in folder.iterdir()}
    if MANIFEST in names:  # a finished run is loaded, or refused by `find_run`
        return
    found = {name for name in _READERS if name in names and (folder / name).stat().st_size}
    written = {name for name in found if _is_of_a_run(folder / name)}
    ours = written & {TASK, TRANSFORMS} if LOCK in names else set()
    untrained = RECIPE in written and bool(names & {LOCK, HISTORY})
    if written & {HISTORY, TRACKERS} or untrained:
        ours = written
    if CHECKPOINT in names:
        ours = written | {TRACKERS}  # damaged ids are reported, and do not prevent resuming
    if lost := [name for name in WRITTEN if name in found - ours]:
        raise RunError(
            f"{folder} contains {' and '.join(lost)}, which no run wrote; this run would "
            "overwrite it. Choose another folder with --out"
        )


def _is_of_a_run(path: Path) -> bool:
    """Whether a file has the content that a run writes under its name."""
    try:
        return _READERS[path.name](path)
    except (OSError, ValueError, LookupError, NotImplementedError, SafetensorError, BadZipFile):
        return False


def _is_stored_recipe(path: Path) -> bool:
    """Whether a recipe has exactly the form in which a run stores one, with every option."""
    text = _text(path).decode()
    return read_recipe(text, path.parent.name).to_toml() == text


def _is_history(path: Path) -> bool:
    lines = [parse(HistoryLine, line, path) for line in _text(path).splitlines()]
    return bool(lines)


def _are_weights(path: Path) -> bool:
    with safe_open(path, framework="pt") as file:
        return file.keys() is not None


def _are_predictions(path: Path) -> bool:
    from pyarrow.parquet import read_schema

    return {"node", "prediction", "known_neighbors"} <= {*read_schema(path).names}


def _is_evidence(path: Path) -> bool:
    from pyarrow.parquet import read_schema

    return {"in_edges", "known_neighbors"} <= {*read_schema(path).names}


def _is_task(path: Path) -> bool:
    with ZipFile(path) as file:
        return {"edge_index.npy", "directed.npy", "y.npy"} <= {*file.namelist()}


def _is_report(path: Path) -> bool:
    with open_regular(path) as file:
        start = file.read(300)
    return start.startswith(b"<!doctype html>") and b"Content-Security-Policy" in start


def _text(path: Path) -> bytes:
    return read_regular(path, MOST_BYTES)


_READERS: Mapping[str, Callable[[Path], bool]] = {
    RECIPE: _is_stored_recipe,
    WEIGHTS: _are_weights,
    METRICS: lambda path: bool(parse(Metrics, _text(path), path)),
    HISTORY: _is_history,
    PREDICTIONS: _are_predictions,
    REPORT: _is_report,
    EVIDENCE: _is_evidence,
    TASK: _is_task,
    TRANSFORMS: lambda path: bool(parse(TransformsFile, _text(path), path)),
    TRACKERS: lambda path: bool(trackers.read_ids(path)),
}


def _remove_beginning(folder: Path, before: Set[str]) -> None:
    """Remove what this process wrote if it failed before there was anything to resume from."""
    if not any((folder / name).exists() for name in STARTED):
        for name in {*WRITTEN} - before:
            (folder / name).unlink(missing_ok=True)


def interrupted_folder(parent: Path, recipe: Recipe, seeds: Sequence[int]) -> Path | None:
    """The newest folder NAME, NAME-2, … in which the same command was interrupted, if any."""
    numbered = re.compile(re.escape(recipe.folder_name) + r"(-(\d+))?")
    found = {
        int(match[2] or 1): folder
        for folder in (parent.iterdir() if parent.is_dir() else ())
        if folder.is_dir() and (match := numbered.fullmatch(folder.name))
    }
    newest = (found[number] for number in sorted(found, reverse=True))
    return next((folder for folder in newest if _is_interrupted(folder, recipe, seeds)), None)


def _is_interrupted(folder: Path, recipe: Recipe, seeds: Sequence[int]) -> bool:
    """Whether a command for this recipe and these seeds was interrupted in the folder."""
    places = [folder]
    if len(seeds) > 1:
        places = sorted(folder.glob("seed-*"))
        wanted = {f"seed-{seed}" for seed in seeds}
        if (folder / SUMMARY).exists() or not {p.name for p in places} <= wanted:
            return False
    elif is_finished(folder):
        return False
    return bool(places) and all(_belongs(place, recipe, seeds) for place in places)


def _belongs(place: Path, recipe: Recipe, seeds: Sequence[int]) -> bool:
    """Whether a folder contains a run of the recipe and a seed, or the beginning of one.

    The beginning is an old lock, the task, which is written again, and files of trackers. The
    number of threads is not compared: `find_run` reports it with the fix.
    """
    with suppress(RunError):
        if in_use(place):
            return False
        if is_finished(place):
            stored, _, manifest = read_run(place)
            return manifest["seed"] in seeds and not differences(stored, recipe)
        if is_started(place):
            begun = read_begun(place)["made_with"]
            stored = Recipe.model_validate(begun["recipe"])
            return begun["seed"] in seeds and not differences(stored, recipe)
    names = {p.name for p in place.iterdir() if not is_partial(p.name)}
    tracked = {*trackers.TRACKERS, TRACKERS}
    return bool(names & {LOCK, *tracked}) and names <= {LOCK, TASK, TRANSFORMS, *tracked}


def differences(found: Recipe, wanted: Recipe) -> list[str]:
    """The options in which two recipes differ, in words; options without effect are left out.

    A regime that is wanted as `auto` may have become any regime. The paths of files may differ,
    because a project may be moved; the hash of the data decides whether it is the same.
    """
    before, now = found.settings(), wanted.settings()
    same = {*NO_EFFECT, *(paths_in(found).keys() & paths_in(wanted).keys())}
    if now["batch.regime"] == "auto":
        same.add("batch.regime")
    if now["task.name"] == "tables" and Path(before["task.name"]).name == TASK:
        same.add("task.name")  # a run stores the task of its tables
    return [
        f"{option} is {before[option]} there and {value} here"
        for option, value in now.items()
        if value != before[option] and option not in same
    ]


def depends_on(recipe: Recipe, seed: int, **more: str | None) -> dict[str, Any]:
    """Everything that a checkpoint depends on: with another value, training would end differently.

    Another number of threads adds numbers in another order. Another version may do so too.
    """
    values = {"recipe": recipe.model_dump(), "seed": seed, "threads": torch.get_num_threads()}
    return values | {"unimp": __version__, "torch": torch.__version__} | more


def _different(begun: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """The differences between what a checkpoint depends on and what is wanted, in words.

    The time limit may differ: it only decides when training ends.
    """
    stored, recipe = (Recipe.model_validate(values["recipe"]) for values in (begun, wanted))
    stored = stored.with_settings({"train.time_limit": recipe.train.time_limit})
    other = differences(stored, recipe)
    if stored.train.draws != recipe.train.draws:  # then numbers of threads do not matter
        hint = "with --devices 1" if stored.train.draws == "node" else "without --devices"
        return [*other, f"it was started by several processes or one: resume it {hint}"]
    for key in wanted.keys() - {"recipe"}:
        before, now = begun.get(key), wanted[key]
        if before == now or (key == "threads" and str(begun.get("device")).startswith("cuda")):
            continue
        # Another number of processes, each with other threads, may resume such a run.
        if key == "threads" and recipe.train.draws == "node":
            continue
        if key == "data":
            other.append("the data has changed")
        elif key == "threads":
            other.append(f"{before} threads there and {now} here: set OMP_NUM_THREADS={before}")
        elif key in ("unimp", "torch"):
            other.append(f"{key} {before} there and {now} here: install {key} {before}")
        else:
            other.append(f"{key} is {before} there and {now} here")
    return other


def _refuse_other(folder: Path, kind: str, other: Sequence[str]) -> None:
    if not other:
        return
    text = f"{folder} contains {kind} with other settings ({', '.join(other)})"
    again = "; repeat the original command to resume it" if kind == "an unfinished run" else ""
    raise RunError(f"{text}{again}; choose another folder, or remove this one")


def load_state(folder: Path | None, wanted: Mapping[str, Any]) -> TrainingState | None:
    """The state to resume from, if there is one; refused if it depends on other values."""
    if folder is None or not is_started(folder):
        return None
    other = _different(read_begun(folder)["made_with"], wanted)
    _refuse_other(folder, "an unfinished run", other)
    return load_checkpoint(folder / CHECKPOINT)


@contextmanager
def checkpoints(
    folder: Path | None, wanted: Mapping[str, Any], every: float, note: Callable[[str], None]
) -> Iterator[Keep]:
    """A function that stores the state of training in the folder; signals wait for it."""
    if folder is None:
        yield lambda state, ended: None
        return
    with signals_held(note) as interruption:
        yield Checkpoints(folder / CHECKPOINT, wanted, every=every, interruption=interruption)


def remove_leftovers(folder: Path) -> None:
    """Remove what a process left that was killed just after it finished its run."""
    if is_started(folder) or (folder / LOCK).exists():
        with suppress(RunError, OSError), locked(folder):  # not while another process holds it
            (folder / CHECKPOINT).unlink(missing_ok=True)


class HistoryFile:
    """The epochs of a run, written to its folder while it trains, at most once per second."""

    def __init__(self, folder: Path | None, epochs: Sequence[Epoch]) -> None:
        self.folder, self.epochs = folder, list(epochs)
        self._written = float("-inf")

    def add(self, epoch: Epoch) -> None:
        self.epochs.append(epoch)
        if self.folder is not None and time.monotonic() - self._written > 1:
            write_history(self.folder, self.epochs)
            self._written = time.monotonic()
