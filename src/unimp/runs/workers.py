"""Train several experiments on one task: in this process, or in several at the same time.

A worker is the process `python -m unimp.runs.worker`. It loads the task once. It then receives one
line of JSON per experiment, trains it into the folder of the experiment and answers with a line. It
ends when its input is closed, so that no worker is left behind when this process is killed; the
folders that it was writing to can be resumed.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import torch

from unimp.config.recipe import Recipe
from unimp.config.run_files import is_finished, is_started
from unimp.data.memory import available_memory
from unimp.errors import RecipeError, RunError, TrainingError, UnimpError
from unimp.model.solved_model import SolvedModel
from unimp.runs.context import Experiment
from unimp.runs.estimate import SHARE, estimate
from unimp.runs.folder.lock import in_use
from unimp.runs.folder.resume import read_begun
from unimp.runs.preparation import is_small, model_without_weights
from unimp.runs.run import Run
from unimp.tasks.task import Task
from unimp.training.loop import Epoch

MOST, MOST_ON_GPU = 8, 4
"""The largest number of workers that is chosen automatically."""
SHORT = 30.0
"""With a time limit of fewer seconds than this, no workers are started."""
CUDA_CONTEXT = 1 << 29
"""Bytes of GPU memory that each process needs in addition to its tensors."""
GRACE = 10.0
"""Seconds in which a worker stores a checkpoint and ends after its input was closed."""

Key = TypeVar("Key")
Train = Callable[[Experiment], Run]
"""Trains one experiment, or resumes it, or loads it if it is finished; raises if it failed."""


class Plan(NamedTuple):
    """How many experiments are trained at the same time, and the threads of each."""

    jobs: int = 1  # 1: in this process, with its threads
    threads: int = 1


def plan(experiment: Experiment, recipes: Sequence[Recipe], task: Task) -> Plan:
    """How the recipes of an ensemble's members are trained.

    `ensemble.jobs` decides. If it is 0, there is one worker per core, as far as memory allows, and
    none if training would take less time than their start. Which members are finished does not
    matter, so that a command that resumes trains the others with the same number of threads.
    """
    recipe, device, cores = experiment.recipe, experiment.device, usable_cores()
    jobs = recipe.ensemble.jobs
    if not jobs:
        limit, graph = recipe.train.time_limit, task.graph
        is_short = 0 < limit < SHORT or is_small(graph)
        most = MOST_ON_GPU if device.startswith("cuda") else MOST
        jobs = 1 if is_short else min(cores, most)
        jobs = min(jobs, number_that_fits(recipes, task, device)) if jobs > 1 else 1
    jobs = min(jobs, len(recipes))
    if jobs < 2 or not sys.executable:
        return Plan()
    return Plan(jobs, max(1, cores // jobs))


def usable_cores() -> int:
    """The cores that this process may use: torch's threads, at most those of its cgroup."""
    cores = torch.get_num_threads()
    with suppress(AttributeError):  # not on every system
        cores = min(cores, len(os.sched_getaffinity(0)))
    with suppress(OSError, ValueError):  # "max" instead of a number means unlimited
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, int(quota) // int(period))
    return max(1, cores)


def number_that_fits(recipes: Sequence[Recipe], task: Task, device: str) -> int:
    """How many of the largest of these recipes can be trained at the same time; at least 1."""
    context = CUDA_CONTEXT if device.startswith("cuda") else 0
    largest = 1
    for recipe in recipes:
        with suppress(UnimpError):  # training it will report the error
            model = model_without_weights(recipe, task.sizes)
            if isinstance(model, SolvedModel):  # their sizes depend on what is solved
                continue
            found = estimate(recipe, model, task, device, timed=False)
            largest = max(largest, found.memory + context)
    return max(1, int(SHARE * available_memory(device)) // largest)


class Trainer:
    """Trains experiments on one task, in this process or in worker processes.

    experiment and task: those of the ensemble; workers load the task by the stored recipe of the
    experiment, which needs a folder, and compare the hash of the data. workers: the number of
    processes; 0 trains in this process. threads: those of each worker.
    """

    def __init__(
        self,
        experiment: Experiment,
        task: Task,
        train: Train,
        *,
        workers: int = 0,
        threads: int = 1,
    ) -> None:
        self._experiment, self._task, self._train = experiment, task, train
        self._number, self._threads = workers, threads
        self._events: Queue[tuple[Worker, dict[str, Any] | None]] = Queue()
        self._workers: list[Worker] = []

    def __enter__(self) -> Self:
        about = self._about() if self._number else {}
        try:
            self._start(about)
        except BaseException:  # such as Ctrl-C
            self.__exit__(None, None, None)
            raise
        return self

    def _start(self, about: dict[str, Any]) -> None:
        for _ in range(self._number):
            with suppress(OSError):  # no further process can be started
                self._workers.append(Worker(self._threads, self._events))
        if self._workers:
            threads = "1 thread" if self._threads == 1 else f"{self._threads} threads"
            text = f"up to {len(self._workers)} at the same time, with {threads} each"
            self._experiment.progress.note(f"members are trained by worker processes: {text}")
            for worker in self._workers:
                worker.send({**about, "prefix": worker.prefix})

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self._workers:
            worker.close()
        for worker in self._workers:
            worker.wait()

    def here(
        self, jobs: Iterable[tuple[Key, Experiment]]
    ) -> Iterator[tuple[Key, Run | UnimpError]]:
        """Train experiments one after the other in this process; see `each`."""
        for key, experiment in jobs:
            yield key, self._attempt(experiment)

    def each(
        self, jobs: Iterable[tuple[Key, Experiment]]
    ) -> Iterator[tuple[Key, Run | UnimpError]]:
        """Train experiments and yield each key with its run, or with the error if it failed.

        The next experiment is taken from `jobs` when a worker is free, so that an iterator can
        decide by the results that were yielded before. Results are yielded as they arrive. Without
        workers, also because all of them ended, experiments are trained in this process.
        """
        jobs = iter(jobs)
        while True:
            while not (free := self._free()) and self._alive():
                yield from self._next_results()
            job = next(jobs, None)
            if job is None:
                break
            key, experiment = job
            if free and experiment.folder is not None and not is_finished(experiment.folder):
                free[0].start(key, experiment)
            else:
                yield key, self._attempt(experiment)
        while any(worker.job is not None for worker in self._alive()):
            yield from self._next_results()

    def _about(self) -> dict[str, Any]:
        """What a worker needs to know to load the task."""
        experiment = self._experiment
        return {
            "recipe": experiment.stored_recipe.model_dump(),
            "seed": experiment.seed,
            "device": experiment.device,
            "name": self._task.name,
            "data_hash": experiment.data_hash(self._task),
            "threads": self._threads,
            "command": sys.argv,
        }

    def _attempt(self, experiment: Experiment) -> Run | UnimpError:
        try:
            return train_or_resume(experiment, self._train)
        except (TrainingError, RecipeError, RunError) as error:  # others may still succeed
            return error

    def _alive(self) -> list[Worker]:
        return [worker for worker in self._workers if not worker.has_ended]

    def _free(self) -> list[Worker]:
        return [worker for worker in self._alive() if worker.is_ready and worker.job is None]

    def _next_results(self) -> Iterator[tuple[Any, Run | UnimpError]]:
        """Wait for a message of a worker, and yield the result that it reports, if any."""
        try:
            worker, message = self._events.get(timeout=1)  # Windows delivers no signal in between
        except Empty:
            return
        if message is not None and "epoch" in message:
            if worker.job is not None:
                worker.job[1].on_epoch(Epoch(*message["epoch"]))
            return
        job, worker.job = worker.job, None
        if message is None:
            worker.has_ended, error = True, worker.why_ended()
        else:
            worker.is_ready, error = True, message["error"]
        if job is not None:
            key, experiment = job
            yield key, TrainingError(error) if error else self._attempt(experiment)
        elif error and not worker.is_closed:  # it could not load the task
            worker.close()
            worker.has_ended = True
            if not self._alive():
                note = f"members are trained one after the other, because workers failed: {error}"
                self._experiment.progress.note(note)


class Worker:
    """A process that trains one experiment at a time."""

    def __init__(self, threads: int, events: Queue[tuple[Worker, dict[str, Any] | None]]) -> None:
        self.job: tuple[Any, Experiment] | None = None
        self.is_ready = False  # whether the task is loaded
        self.is_closed = self.has_ended = False
        self.prefix = secrets.token_hex(16)  # of each answer; others may print to the same pipe
        # Modules are found where this process finds them.
        paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "unimp.runs.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": paths},
            start_new_session=True,  # Ctrl-C reaches this process, which closes the worker
        )
        self._receiver = Thread(target=self._receive, args=(events,), daemon=True)
        self._receiver.start()

    def start(self, key: Any, experiment: Experiment) -> None:
        self.job = key, experiment
        recipe, folder = experiment.recipe.model_dump(), str(experiment.folder)
        message = {"recipe": recipe, "folder": folder, "seed": experiment.seed}
        self.send({**message, "part": experiment.part})

    def send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # a worker that has ended is reported by `_receive`
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def close(self) -> None:
        """Make the worker end; if it is training, it stores a checkpoint before."""
        self.is_closed = True
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()

    def wait(self) -> None:
        """Wait until the worker has ended."""
        try:
            self._process.wait(2 * GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._receiver.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def why_ended(self) -> str:
        code = self._process.wait()
        if code >= 0:
            return f"its worker ended with exit code {code}"
        memory = "; memory may have run out: set ensemble.jobs=1" if code == -signal.SIGKILL else ""
        return f"its worker was killed by signal {-code}{memory}"

    def _receive(self, events: Queue[tuple[Worker, dict[str, Any] | None]]) -> None:
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                _, found, answer = line.partition(self.prefix)
                if found:
                    events.put((self, json.loads(answer)))
        finally:
            events.put((self, None))


def train_or_resume(experiment: Experiment, train: Train) -> Run:
    """Train one experiment, or resume it with the number of threads that it was started with.

    Another number of threads would add numbers in another order.
    """
    folder, threads = experiment.folder, torch.get_num_threads()
    if folder is None or is_finished(folder) or not is_started(folder):
        return train(experiment)
    torch.set_num_threads(read_begun(folder)["made_with"]["threads"])
    try:
        return train(experiment)
    finally:
        torch.set_num_threads(threads)


def wait_for_workers(folders: Iterable[Path]) -> None:
    """Wait until the workers of a command that was killed have ended, which takes seconds."""
    until = time.monotonic() + 2 * GRACE
    for folder in folders:
        with suppress(RunError):
            while in_use(folder) and time.monotonic() < until:
                time.sleep(0.05)
