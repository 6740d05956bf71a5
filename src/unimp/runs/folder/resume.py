"""Starting, resuming or loading: what a run folder already contains, and who may write to it.

`find_run` makes the decision for one folder. A folder is held by one process at a time. While a run
trains, its folder contains a checkpoint; a finished run has none.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from unimp.config.recipe import DECLARED, Recipe
from unimp.errors import RunError
from unimp.runs.folder.files import read_run, write_history
from unimp.runs.folder.lock import in_use, locked
from unimp.runs.folder.names import (
    CHECKPOINT,
    LOCK,
    PARTIAL,
    STARTED,
    SUMMARY,
    TASK,
    TRACKERS,
    TRANSFORMS,
    WRITTEN,
    is_finished,
    is_started,
)
from unimp.tracking import trackers
from unimp.training.checkpoint import Checkpoints, load_checkpoint, read_about
from unimp.training.interruption import signals_held
from unimp.training.loop import Epoch, Keep, TrainingState

NO_EFFECT = ("train.checkpoint_every", "batch.workers")
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
    begun = read_about(folder / CHECKPOINT)["made_with"]
    _refuse_other(folder, "an unfinished run", _different(begun, depends_on(recipe, seed)))
    regime = begun["recipe"]["batch"]["regime"]
    if recipe.batch.regime == "auto" and regime != "auto":
        recipe = recipe.with_regime(regime)
    return Found("started", recipe)


@contextmanager
def held_folder(folder: Path | None) -> Iterator[None]:
    """Create the folder of a run if needed, and hold it for this process alone.

    The folder is removed again if the run fails before there is anything to resume from.
    """
    if folder is None:
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise RunError(f"{folder} is a file; choose another folder") from error
    except OSError as error:
        raise RunError(f"cannot create the folder {folder}: {error.strerror}") from error
    _refuse_files_of_others(folder)
    try:
        with locked(folder):
            for path in folder.iterdir():
                if path.name.startswith(PARTIAL):  # of a process that was killed while writing
                    path.unlink()
            try:
                yield
            except BaseException:
                _remove_beginning(folder)
                raise
    except BaseException:
        with suppress(OSError):
            folder.rmdir()  # does nothing if the folder is not empty
        raise


def _refuse_files_of_others(folder: Path) -> None:
    """Refuse to overwrite files that no run wrote, such as a recipe that a user wrote."""
    names = {path.name for path in folder.iterdir()}
    if names & {LOCK, *STARTED}:  # a run leaves one of these, whenever it was killed
        return
    if lost := [name for name in WRITTEN if name in names]:
        raise RunError(
            f"{folder} contains {' and '.join(lost)}, but no run; this run would overwrite it. "
            "Choose another folder with --out"
        )


def _remove_beginning(folder: Path) -> None:
    """Remove the files of a run that failed before there was anything to resume from."""
    if not any((folder / name).exists() for name in STARTED):
        for name in WRITTEN:
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
    if in_use(place):
        return False
    with suppress(RunError):
        if is_finished(place):
            stored, _, manifest = read_run(place)
            return manifest["seed"] in seeds and not differences(stored, recipe)
        if is_started(place):
            begun = read_about(place / CHECKPOINT)["made_with"]
            stored = Recipe.model_validate(begun["recipe"])
            return begun["seed"] in seeds and not differences(stored, recipe)
    names = {p.name for p in place.iterdir() if not p.name.startswith(PARTIAL)}
    tracked = {*trackers.TRACKERS, TRACKERS}
    return bool(names & {LOCK, *tracked}) and names <= {LOCK, TASK, TRANSFORMS, *tracked}


def differences(found: Recipe, wanted: Recipe) -> list[str]:
    """The options in which two recipes differ, in words; options without effect are left out.

    A regime that is wanted as `auto` may have become any regime.
    """
    before, now = found.model_dump(), wanted.model_dump()
    if now["batch"]["regime"] == "auto":
        now["batch"]["regime"] = before["batch"]["regime"]
    if now["task"]["name"] == "tables" and Path(before["task"]["name"]).name == TASK:
        now["task"]["name"] = before["task"]["name"]  # a run stores the task of its tables
    other = []
    for option in DECLARED:
        section, _, key = option.partition(".")
        old, new = before[section][key], now[section][key]
        if old != new and option not in NO_EFFECT:
            other.append(f"{option} is {old} there and {new} here")
    return other


def depends_on(recipe: Recipe, seed: int, **more: str | None) -> dict[str, Any]:
    """Everything that a checkpoint depends on: with another value, training would end elsewhere.

    Another number of threads adds numbers in another order.
    """
    values = {"recipe": recipe.model_dump(), "seed": seed, "threads": torch.get_num_threads()}
    return values | more


def _different(begun: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """The differences between what a checkpoint depends on and what is wanted, in words.

    The time limit may differ: it only decides when training ends. A stored task has another path
    after its folder was moved; the hash of the data decides whether it is the same.
    """
    stored, recipe = (Recipe.model_validate(values["recipe"]) for values in (begun, wanted))
    stored = stored.with_settings({"train.time_limit": recipe.train.time_limit})
    if {Path(stored.task.name).name, Path(recipe.task.name).name} == {TASK}:
        stored = stored.with_task(Path(recipe.task.name))
    other = differences(stored, recipe)
    for key in wanted.keys() - {"recipe"}:
        before, now = begun.get(key), wanted[key]
        if before == now or (key == "threads" and str(begun.get("device")).startswith("cuda")):
            continue
        if key == "data":
            other.append("the data has changed")
        elif key == "threads":
            other.append(f"{before} threads there and {now} here: set OMP_NUM_THREADS={before}")
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
    """The state to resume from, if there is one; refused if it depends on anything else."""
    if folder is None or not is_started(folder):
        return None
    path = folder / CHECKPOINT
    other = _different(read_about(path)["made_with"], wanted)
    _refuse_other(folder, "an unfinished run", other)
    return load_checkpoint(path)


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


def remove_checkpoint(folder: Path) -> None:
    """Remove the checkpoint of a finished run."""
    (folder / CHECKPOINT).unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Remove what a process left that was killed just after it finished its run."""
    if is_started(folder) or (folder / LOCK).exists():
        with suppress(RunError, OSError), locked(folder):  # not while another process holds it
            remove_checkpoint(folder)


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
