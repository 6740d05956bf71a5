"""The models that can answer: the run itself, and models that were trained on new labels.

Each loaded model has its own engine process, which follows all events. Only one model is active;
another becomes active between two requests, by one event.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from unimp.config.run_files import GATE, GENERATIONS, JOB, METRICS, is_finished
from unimp.data.files import write_atomically
from unimp.errors import BusyError
from unimp.serving.front.engine_link import EngineLink
from unimp.serving.front.problems import ProblemError
from unimp.serving.front.published import Published

ROLLBACK = 600.0
"""Seconds that the model before the active one stays loaded."""
RUNNING = ("training", "loading")
STOPPED = ("stopped", "failed")
MOST_STARTS = 3
"""The largest number of consecutive starts of a trainer that is killed."""
STOP = 10.0
"""Seconds in which a trainer stores a checkpoint when the service ends."""


@dataclass
class Model:
    """A loaded model: its engine, and its predictions once there are some."""

    link: EngineLink
    published: Published | None = None


@dataclass
class Job:
    """A training in the background; it is stored at each change, beside the folder of its model.

    against: the generation that the gate compares with. activate: make the model active as soon as
    it is ready, in the name of the actor.
    """

    id: str
    generation: int
    version: int
    against: int
    actor: str
    epochs: int | None = None
    activate: bool = False
    state: str = "training"
    detail: str = ""
    gate: list[dict[str, Any]] = field(default_factory=list)
    started: str = field(
        default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    )

    def plain(self) -> dict[str, Any]:
        """The job as in `schemas.Job`."""
        hidden = ("actor", "epochs", "activate")
        return {name: value for name, value in asdict(self).items() if name not in hidden}


def folder_of(run: Path, generation: int) -> Path | None:
    """The folder of a trained model; None for the run itself."""
    return run / GENERATIONS / str(generation) if generation else None


def trained(run: Path) -> dict[int, dict[str, Any]]:
    """The trained models in a run folder that the gate has seen, by generation."""
    found = {}
    for folder in sorted((run / GENERATIONS).glob("*")):
        with suppress(OSError, ValueError):
            if is_finished(folder):
                found[int(folder.name)] = json.loads((folder / GATE).read_text(encoding="utf-8"))
    return dict(sorted(found.items()))


def refusal(result: dict[str, Any]) -> str:
    """Why the gate refused a model."""
    failed = [check for check in result["checks"] if not check["passed"]]
    return "; ".join(f"{check['name']}: {check['detail']}" for check in failed)


def scores_of(folder: Path) -> dict[str, float | None]:
    """The scores of a run folder with train labels as inputs."""
    with suppress(OSError, ValueError, KeyError):
        scores = json.loads((folder / METRICS).read_text(encoding="utf-8"))["scores"]
        found: dict[str, float | None] = scores.get("train") or next(iter(scores.values()))
        return found
    return {}


class Jobs:
    """Trainings, one at a time. They are found again after a restart of the service."""

    def __init__(self, run: Path, announce: Callable[[Job], None]) -> None:
        self._folder, self._run, self._announce = run / GENERATIONS, run, announce
        self.all: dict[str, Job] = {}
        for path in self._folder.glob(f"*.{JOB}"):
            with suppress(OSError, ValueError, TypeError):
                job = Job(**json.loads(path.read_text(encoding="utf-8")))
                self.all[job.id] = job
        self.all = dict(sorted(self.all.items(), key=lambda item: item[1].generation))
        self._process: asyncio.subprocess.Process | None = None
        self._closing = False

    def get(self, id: str) -> Job:
        if id not in self.all:
            raise ProblemError(404, "not-found", f"there is no job {id!r}.")
        return self.all[id]

    @property
    def running(self) -> Job | None:
        """The job that runs, or that ran when the service ended."""
        return next((job for job in self.all.values() if job.state in RUNNING), None)

    def _refuse_another(self) -> None:
        if self.running is not None:
            raise BusyError("a training runs already. Wait until it has ended.")

    def start(self, version: int, against: int, actor: str) -> Job:
        """Make the job of the next generation."""
        self._refuse_another()
        self._folder.mkdir(exist_ok=True)
        numbers = (re.match(r"\d+", path.name) for path in self._folder.iterdir())
        generation = max((int(number[0]) for number in numbers if number), default=0) + 1
        return Job(str(generation), generation, version, against, actor)

    def resume(self, id: str) -> Job:
        """Let a job that was stopped or that failed continue."""
        job = self.get(id)
        if job.state not in STOPPED:
            raise ProblemError(422, "refused", f"the job {id} is {job.state}; it cannot continue.")
        self._refuse_another()
        return job

    def change(self, job: Job, state: str, detail: str = "") -> None:
        """Store and announce another state."""
        job.state, job.detail = state, detail
        path = self._folder / f"{job.generation}.{JOB}"
        write_atomically(path, json.dumps(asdict(job)).encode())
        self.all.setdefault(job.id, job)
        self._announce(job)

    async def train(self, job: Job) -> bool:
        """Run the trainer until the gate has decided; return whether it accepts the new model.

        A trainer that was killed is started again and resumes from its last checkpoint. After
        MOST_STARTS starts the job is stopped, because it may need more memory than there is.
        """
        for _ in range(MOST_STARTS):
            if (result := self._result(job)) is not None:
                break
            code, printed = await self._run_trainer(job)
            if self._closing:  # the next start of the service continues
                return False
            result = self._result(job)
            if result is None and code >= 0:
                self.change(job, "failed", printed or "the trainer ended without a result")
                return False
        if result is None:
            why = f"the trainer was killed {MOST_STARTS} times. Check the memory, then resume it"
            self.change(job, "stopped", f"{why}: POST /v1/jobs/{job.id}/resume")
            return False
        job.gate, job.version = result["checks"], result["version"]
        if not result["accepted"]:
            self.change(job, "refused", refusal(result))
            return False
        return True

    def _result(self, job: Job) -> dict[str, Any] | None:
        """The decision of the gate, if it compared the new model with the one that is active."""
        result = trained(self._run).get(job.generation)
        return result if result is not None and result["against"] == job.against else None

    async def _run_trainer(self, job: Job) -> tuple[int, str]:
        """The exit code of the trainer, and the last line that it printed."""
        out = folder_of(self._run, job.generation)
        command = [sys.executable, "-m", "unimp.serving.trainer", str(self._run), str(out)]
        command += [str(job.against)] + ([] if job.epochs is None else [str(job.epochs)])
        self._process = process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,  # the trainer ends when it is closed
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr is not None
        printed = (await process.stderr.read()).decode(errors="replace").strip().splitlines()
        return await process.wait(), printed[-1][:500] if printed else ""

    async def close(self) -> None:
        """Stop a training that runs; the next start of the service continues it."""
        self._closing = True
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), STOP)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
