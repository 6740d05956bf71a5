"""A run folder until its run is finished: held by one process, kept so that it can go on.

checkpoint.safetensors   what training goes on from; gone when the run is finished
.lock                    the number of the process that is at it
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from unimp.config.recipe import Recipe, differences
from unimp.errors import RunError
from unimp.runs.folder import files as run_folder
from unimp.runs.folder.files import TASK, TRANSFORMS
from unimp.runs.folder.lock import NAME as LOCK
from unimp.runs.folder.lock import in_use, locked
from unimp.tracking.sinks import KNOWN_AS, SINKS
from unimp.training.checkpoint import Checkpoints, load_checkpoint, read_about
from unimp.training.interruption import signals_held
from unimp.training.loop import Epoch, Keep, TrainingState

CHECKPOINT = "checkpoint.safetensors"
WRITTEN = (
    "recipe.toml",
    "model.safetensors",
    "metrics.json",
    "history.jsonl",
    "predictions.parquet",
    "report.html",
    "manifest.json",
    TASK,
    TRANSFORMS,
    KNOWN_AS,
    CHECKPOINT,
)
"""What a run writes into its folder."""

LEFT = {CHECKPOINT, KNOWN_AS, "history.jsonl", "manifest.json"}
"""Of these a folder in which a run has come anywhere has one."""

PARTS_OF = tuple(f".{name}." for name in WRITTEN)
"""How the names begin under which files are written before they are whole."""


@contextmanager
def opened(folder: Path | None) -> Iterator[None]:
    """The folder of a run that is made or gone on with, held by this process alone.

    It is taken away again if what was to fill it fails before there is anything to go on from.
    """
    if folder is None:
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise RunError(f"{folder} is a file; choose another folder") from error
    except OSError as error:
        raise RunError(f"cannot make the folder {folder}: {error.strerror}") from error
    refuse_files_of_others(folder)
    try:
        with locked(folder):
            for path in folder.iterdir():
                if path.name.startswith(PARTS_OF):  # of a process that ended while it wrote
                    path.unlink()
            try:
                yield
            except BaseException:
                _forget_beginning(folder)
                raise
    except BaseException as error:
        with suppress(OSError):
            # A signal may come just after the lock is taken, or while it is let go. An error may be
            # that another thread holds it.
            lock = folder / LOCK
            interrupted = not isinstance(error, Exception) and lock.exists()
            if interrupted and lock.read_text(encoding="ascii") == str(os.getpid()):
                lock.unlink()
            folder.rmdir()  # refuses if there is anything in it
        raise


def refuse_files_of_others(folder: Path) -> None:
    """Refuse to write over files that no run left, such as a recipe that somebody wrote."""
    names = {path.name for path in folder.iterdir()}
    if names & {LOCK, *LEFT}:  # of which a run leaves one, wherever it was killed
        return
    if lost := [name for name in WRITTEN if name in names]:
        raise RunError(
            f"{folder} holds {' and '.join(lost)}, which no run left there and this one would "
            "write over; choose another folder with --out"
        )


def _forget_beginning(folder: Path) -> None:
    """Take away what a run wrote that failed with nothing to go on from, such as its task.

    Without the lock it would be taken for files of somebody else.
    """
    if not any((folder / name).exists() for name in LEFT):
        for name in WRITTEN:
            (folder / name).unlink(missing_ok=True)


def finished_as(folder: Path, recipe: Recipe, seed: int) -> bool:
    """Whether the folder holds the finished run of a recipe and seed.

    One that holds another run, finished or not, is refused with what is other about it.
    """
    kind, path = "a finished run", folder / CHECKPOINT
    if run_folder.is_finished(folder):
        found, _, manifest = run_folder.read_run(folder)
        other = differences(found, recipe)
        if manifest["seed"] != seed:
            other.append(f"seed {manifest['seed']}, now {seed}")
    elif path.exists():
        kind, wanted = "an unfinished run", made_with(recipe, seed)
        other = different(read_about(path)["made_with"], wanted)
    else:
        return False
    if other:
        raise _other_run(folder, kind, other)
    return run_folder.is_finished(folder)


def _other_run(folder: Path, kind: str, other: Sequence[str]) -> RunError:
    text = f"{folder} holds {kind} with other settings ({', '.join(other)})"
    if any(entry.startswith(("train.epochs", "train.time_limit")) for entry in other):
        text += "; a run ends as it was begun, and is not trained for longer"
    return RunError(f"{text}; choose another folder, or remove it")


def goes_on(folder: Path, recipe: Recipe, seeds: Sequence[int]) -> bool:
    """Whether a command for this recipe and these seeds was interrupted here, and nobody is at it.

    In how many threads it was is not asked: that is told when it is gone on with.
    """
    places = [folder]
    if len(seeds) > 1:
        places = sorted(folder.glob("seed-*"))
        wanted = {f"seed-{seed}" for seed in seeds}
        if (folder / "summary.json").exists() or not {p.name for p in places} <= wanted:
            return False
    elif run_folder.is_finished(folder):
        return False
    return bool(places) and all(_is_of(place, recipe, seeds) for place in places)


def _is_of(place: Path, recipe: Recipe, seeds: Sequence[int]) -> bool:
    """Whether a folder holds a run of the recipe and a seed, or what one leaves before it trains.

    That is an old lock and its task, which is written anew; and what sinks have written.
    """
    if in_use(place):
        return False
    with suppress(RunError):
        if run_folder.is_finished(place):
            found, _, manifest = run_folder.read_run(place)
            return manifest["seed"] in seeds and not differences(found, recipe)
        if (place / CHECKPOINT).exists():
            made = read_about(place / CHECKPOINT)["made_with"]
            found = Recipe.model_validate(made["recipe"])
            return made["seed"] in seeds and not differences(found, recipe)
    names = {p.name for p in place.iterdir() if not p.name.startswith(PARTS_OF)}
    told = {*SINKS, KNOWN_AS}
    return bool(names & {LOCK, *told}) and names <= {LOCK, TASK, TRANSFORMS, *told}


def is_begun(folder: Path) -> bool:
    return (folder / CHECKPOINT).exists()


def as_begun(folder: Path | None, recipe: Recipe) -> Recipe:
    """A recipe that leaves its regime open, with the regime in which the run was begun."""
    if folder is None or recipe.batch.regime != "auto" or not (folder / CHECKPOINT).exists():
        return recipe
    begun = read_about(folder / CHECKPOINT)["made_with"]["recipe"]["batch"]["regime"]
    return recipe if begun == "auto" else recipe.with_regime(begun)


def made_with(recipe: Recipe, seed: int, **more: str | None) -> dict[str, Any]:
    """What a checkpoint depends on: gone on with another, training would end elsewhere.

    Sums are taken in another order by another number of threads.
    """
    values = {"recipe": recipe.model_dump(), "seed": seed, "threads": torch.get_num_threads()}
    return values | more


def different(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """In what a checkpoint and what is to go on differ, in words.

    Its time limit may: nothing else follows from it than where training ends. A task kept in the
    folder has another path where that was moved; its data says whether it is the same.
    """
    begun, now = (Recipe.model_validate(values["recipe"]) for values in (found, wanted))
    begun = begun.with_settings({"train.time_limit": now.train.time_limit})
    if {Path(begun.task.name).name, Path(now.task.name).name} == {TASK}:
        begun = begun.with_task(Path(now.task.name))
    other = differences(begun, now)
    for key in wanted.keys() - {"recipe"}:
        before, now = found.get(key), wanted[key]
        if before == now or (key == "threads" and str(found.get("device")).startswith("cuda")):
            continue
        if key == "data":
            other.append("data that has changed since")
        elif key == "threads":
            other.append(f"{before} threads, now {now}: set OMP_NUM_THREADS={before}")
        else:
            other.append(f"{key} {before}, now {now}")
    return other


def found_checkpoint(folder: Path, wanted: Mapping[str, Any]) -> TrainingState | None:
    """What an unfinished run goes on from; refused, if it was made with anything else."""
    path = folder / CHECKPOINT
    if not path.exists():
        return None
    if other := different(read_about(path)["made_with"], wanted):
        raise _other_run(folder, "an unfinished run", other)
    return load_checkpoint(path)


@contextmanager
def checkpoints(
    folder: Path | None, made_with: Mapping[str, Any], recipe: Recipe, say: Callable[[str], None]
) -> Iterator[Keep]:
    """What keeps the state of training in the folder while signals wait; without one, nothing."""
    if folder is None:
        yield lambda state, ended: None
        return
    with signals_held(say) as interruption:
        yield Checkpoints(
            folder / CHECKPOINT,
            made_with,
            every=recipe.train.checkpoint_every,
            interruption=interruption,
        )


def forget(folder: Path) -> None:
    """Take away what a finished run needs no more: its checkpoint."""
    (folder / CHECKPOINT).unlink(missing_ok=True)


def clear(folder: Path) -> None:
    """Take away what a process left that ended between finishing its run and letting go of it."""
    if (folder / CHECKPOINT).exists() or (folder / LOCK).exists():
        with suppress(RunError, OSError), locked(folder):  # not if somebody is at it
            forget(folder)


class History:
    """The epochs of a run, in a file while it trains: as often as costs nothing to speak of."""

    def __init__(self, folder: Path | None, epochs: Sequence[Epoch]) -> None:
        self.folder, self.epochs = folder, list(epochs)
        self._written = float("-inf")

    def add(self, epoch: Epoch) -> None:
        self.epochs.append(epoch)
        if self.folder is not None and time.monotonic() - self._written > 1:
            run_folder.write_history(self.folder, self.epochs)
            self._written = time.monotonic()
