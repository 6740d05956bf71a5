"""Cells into run folders: what is there is used, what is missing is trained."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from unimp.errors import RunError
from unimp.runs.experiment import run
from unimp.runs.folder.files import read_run
from unimp.runs.folder.resume import differences
from unimp.runs.preparation import task_of
from unimp.studies.cells import Cell
from unimp.studies.shares import recipe_on_file, settings_beside_task, with_train_share
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
    """A job that ended: its metrics and manifest, or why it failed."""

    job: Job
    metrics: Mapping[str, Any]
    manifest: Mapping[str, Any]
    failure: str = ""


class Hashes:
    """Hashes of tasks' data, each found once: many cells share one task."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int, float], str] = {}
        self._last: tuple[tuple[str, int], Task] | None = None  # loading takes longest

    def of(self, job: Job) -> str:
        options, share = job.cell.recipe.task.model_dump_json(), job.cell.train_share
        if (options, job.seed, share) not in self._found:
            if self._last is None or self._last[0] != (options, job.seed):
                self._last = (options, job.seed), task_of(job.cell.recipe, job.seed)
            task = with_train_share(self._last[1], share, seed=job.seed)
            self._found[options, job.seed, share] = task.data_hash()
        return self._found[options, job.seed, share]


def found(job: Job, hashes: Hashes) -> Ended | None:
    """The finished run of a job; None where there is none.

    A run of another recipe, seed or data is refused, as it would be mixed with others in silence.
    """
    if not (job.folder / "manifest.json").exists():
        return None
    recipe, metrics, manifest = read_run(job.folder)
    wanted = job.cell.recipe
    if job.cell.train_share < 1:
        wanted = recipe_on_file(wanted, job.folder)
    other = differences(recipe, wanted)
    if manifest["seed"] != job.seed:
        other.append(f"seed {manifest['seed']}, now {job.seed}")
    if not other and manifest["data_hash"] != hashes.of(job):
        other.append("data that has changed since")
    if other:
        raise RunError(
            f"{job.folder} holds a run with other settings ({', '.join(other)}), which must not be "
            "mixed with these; choose another --out, or remove it"
        )
    return _ended(job, metrics, manifest)


def train_cell(job: Job, on_epoch: Callable[[Epoch], None] = lambda epoch: None) -> Ended:
    """Train one seed of a cell into its folder; a failure is told, not raised."""
    try:
        if job.cell.train_share == 1:
            run(job.cell.recipe, seed=job.seed, out=job.folder, on_epoch=on_epoch)
        else:
            run(
                with_train_share(
                    task_of(job.cell.recipe, job.seed), job.cell.train_share, seed=job.seed
                ),
                seed=job.seed,
                out=job.folder,
                settings=settings_beside_task(job.cell.recipe),
                on_epoch=on_epoch,
            )
        _, metrics, manifest = read_run(job.folder)
    except Exception as error:  # whatever it is: the other cells go on
        return Ended(job, {}, {}, f"{error}" or type(error).__name__)
    return _ended(job, metrics, manifest)


def _ended(job: Job, metrics: Mapping[str, Any], manifest: Mapping[str, Any]) -> Ended:
    """A run whose loss stopped being a number is kept in its folder, and is no result."""
    failure = ""
    if metrics["failed"]:
        failure = f"{metrics['stopped']}; to train it again, remove {job.folder}"
    return Ended(job, {} if failure else metrics, manifest, failure)


def train_all(
    jobs: Iterable[Job],
    *,
    processes: int,
    on_epoch: Callable[[Job, Epoch], None],
    prepare_process: Callable[[], object],
) -> Iterator[Ended]:
    """Each job as it ends: in this process, or in several that share its threads."""
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
            else:  # the process itself ended, as one that runs out of memory does
                yield Ended(waiting[done], {}, {}, f"its process ended: {error}")
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin(threads: int, prepare_process: Callable[[], object]) -> None:
    # Processes that each take every core would keep one another waiting.
    torch.set_num_threads(threads)
    prepare_process()
