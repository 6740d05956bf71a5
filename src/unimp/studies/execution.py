"""Jobs: use the finished runs of cells, and train the missing ones into their run folders."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from unimp.config.data_options import TaskOptions
from unimp.config.recipe import Recipe
from unimp.config.run_files import TASK, is_finished
from unimp.errors import RunError, TrainingError
from unimp.runs.experiment import run
from unimp.runs.folder.files import read_run
from unimp.runs.folder.resume import find_run
from unimp.runs.preparation import data_hash_of, task_of
from unimp.studies.cells import Cell
from unimp.tasks.labels import Split
from unimp.tasks.task import Task
from unimp.training.loop import Epoch


@dataclass(frozen=True)
class Job:
    """One seed of a cell, and its folder."""

    cell: Cell
    seed: int
    folder: Path

    @property
    def name(self) -> str:
        return f"{self.cell.name} seed {self.seed}"


@dataclass(frozen=True)
class Ended:
    """A job that ended, with its metrics and manifest, or with the reason why it failed."""

    job: Job
    metrics: Mapping[str, Any] = field(default_factory=dict)
    manifest: Mapping[str, Any] = field(default_factory=dict)
    failure: str = ""


def with_train_share(task: Task, share: float, *, seed: int) -> Task:
    """The task with round(share · |train|) of its train labels; the others are in no set.

    With the same seed, a smaller share is part of every larger one, so that a curve over shares
    shows the effect of added labels.
    """
    if share == 1:
        return task
    train = task.split.train
    order = torch.randperm(train.numel(), generator=torch.Generator().manual_seed(seed))
    kept = train[order[: max(1, round(share * train.numel()))]].sort().values
    return replace(task, split=Split(train=kept, val=task.split.val, test=task.split.test))


class Hashes:
    """Hashes of the data of tasks. Many cells share one task, so each is computed once."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int, float], str] = {}
        self._last: tuple[tuple[str, int], Task] | None = None  # loading takes the longest

    def of(self, job: Job) -> str:
        options, share = job.cell.recipe.task.model_dump_json(), job.cell.train_share
        if (options, job.seed, share) not in self._found:
            if self._last is None or self._last[0] != (options, job.seed):
                self._last = (options, job.seed), task_of(job.cell.recipe, job.seed)
            task = with_train_share(self._last[1], share, seed=job.seed)
            self._found[options, job.seed, share] = data_hash_of(job.cell.recipe, task)
        return self._found[options, job.seed, share]


def find_finished(job: Job, hashes: Hashes) -> Ended | None:
    """The finished run of a job; None if there is none.

    Refuses a run with another recipe, seed or data, so that a page never mixes them.
    """
    if not is_finished(job.folder):
        return None
    wanted = job.cell.recipe
    if job.cell.train_share < 1:  # such a run stores its own task
        task = TaskOptions(name=str((job.folder / TASK).resolve()))
        wanted = wanted.model_copy(update={"task": task})
    find_run(job.folder, wanted, job.seed)
    _, metrics, manifest = read_run(job.folder)
    if manifest["data_hash"] != hashes.of(job):
        raise RunError(
            f"{job.folder} contains a run on other data: the data has changed since. Choose "
            "another --out, or remove that folder."
        )
    return _ended(job, metrics, manifest)


def train_cell(job: Job, on_epoch: Callable[[Epoch], None] = lambda epoch: None) -> Ended:
    """Train one seed of a cell into its folder. A failure is returned, not raised."""
    recipe, share = job.cell.recipe, job.cell.train_share
    try:
        given: Recipe | Task = recipe
        if share < 1:
            given = with_train_share(task_of(recipe, job.seed), share, seed=job.seed)
        settings = settings_beside_task(job.cell) if share < 1 else ()
        with suppress(TrainingError):  # the folder then contains the last good state
            run(given, seed=job.seed, out=job.folder, settings=settings, on_epoch=on_epoch)
        _, metrics, manifest = read_run(job.folder)
    except Exception as error:  # any failure: the other cells continue
        return Ended(job, failure=f"{error}" or type(error).__name__)
    return _ended(job, metrics, manifest)


def settings_beside_task(cell: Cell) -> dict[str, Any]:
    """The options of a cell's recipe, except those that name its task."""
    options = cell.recipe.settings().items()
    return {key: value for key, value in options if not key.startswith("task.")}


def _ended(job: Job, metrics: Mapping[str, Any], manifest: Mapping[str, Any]) -> Ended:
    """A run whose loss became NaN stays in its folder but does not count as a result."""
    if metrics["failed"]:
        failure = f"{metrics['stopped']}. To train it again, remove {job.folder}."
        return Ended(job, {}, manifest, failure)
    return Ended(job, metrics, manifest)


def train_all(
    jobs: Iterable[Job],
    *,
    processes: int,
    on_epoch: Callable[[Job, Epoch], None],
    prepare_process: Callable[[], object],
) -> Iterator[Ended]:
    """Yield each job as it ends, trained in this process or in several that share its threads."""
    jobs = list(jobs)
    if processes == 1 or len(jobs) < 2:
        for job in jobs:
            yield train_cell(job, lambda epoch, job=job: on_epoch(job, epoch))  # type: ignore[misc]
        return
    threads = max(1, torch.get_num_threads() // processes)
    context = multiprocessing.get_context("spawn")  # a GPU does not survive a fork
    pool = ProcessPoolExecutor(
        processes, mp_context=context, initializer=_begin, initargs=(threads, prepare_process)
    )
    try:
        waiting = {pool.submit(train_cell, job): job for job in jobs}
        for done in as_completed(waiting):
            error = done.exception()
            if error is None:
                yield done.result()
            else:  # the process was killed, for example because memory ran out
                yield Ended(waiting[done], failure=f"its process ended: {error}")
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin(threads: int, prepare_process: Callable[[], object]) -> None:
    # If every process used all cores, they would slow each other down.
    torch.set_num_threads(threads)
    prepare_process()
