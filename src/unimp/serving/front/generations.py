"""The models that can answer: the run itself, and models that were trained on new labels.

Each loaded model has its own engine process, which follows all events. Only one model is active;
another becomes active between two requests, by one event.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unimp.config.run_files import GATE, GENERATIONS, METRICS, is_finished
from unimp.errors import BusyError
from unimp.serving.front.engine_link import EngineLink
from unimp.serving.front.problems import ProblemError
from unimp.serving.front.published import Published

ROLLBACK = 600.0
"""Seconds that the model before the active one stays loaded."""
RUNNING = ("training", "loading")


@dataclass
class Model:
    """A loaded model: its engine, and its predictions once there are some."""

    link: EngineLink
    published: Published | None = None


@dataclass
class Job:
    """A training in the background."""

    id: str
    generation: int
    version: int
    activate: str = ""  # the actor for whom the model becomes active as soon as it is ready
    state: str = "training"
    detail: str = ""
    gate: dict[str, str] = field(default_factory=dict)
    started: str = field(
        default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    )

    def plain(self) -> dict[str, Any]:
        names = ("id", "state", "detail", "version", "generation", "started", "gate")
        return {name: getattr(self, name) for name in names}


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


def scores_of(folder: Path) -> dict[str, float | None]:
    """The scores of a run folder with train labels as inputs."""
    with suppress(OSError, ValueError, KeyError):
        scores = json.loads((folder / METRICS).read_text(encoding="utf-8"))["scores"]
        found: dict[str, float | None] = scores.get("train") or next(iter(scores.values()))
        return found
    return {}


class Jobs:
    """Trainings, one at a time."""

    def __init__(self, run: Path, announce: Callable[[Job], None]) -> None:
        self._run, self._announce = run, announce
        self.all: dict[str, Job] = {}
        self._process: asyncio.subprocess.Process | None = None

    def get(self, id: str) -> Job:
        if id not in self.all:
            raise ProblemError(404, "not-found", f"there is no job {id!r}.")
        return self.all[id]

    def start(self, version: int) -> Job:
        if any(job.state in RUNNING for job in self.all.values()):
            raise BusyError("a training runs already. Wait until it has ended.")
        known = [int(f.name) for f in (self._run / GENERATIONS).glob("*") if f.name.isdigit()]
        generation = max(known, default=0) + 1
        job = Job(str(generation), generation, version)
        self.all[job.id] = job
        return job

    def change(self, job: Job, state: str, detail: str = "") -> None:
        job.state, job.detail = state, detail
        self._announce(job)

    async def train(self, job: Job, epochs: int | None) -> bool:
        """Run the trainer; return whether the gate accepts the new model."""
        out = folder_of(self._run, job.generation)
        assert out is not None
        out.parent.mkdir(exist_ok=True)
        more = [] if epochs is None else [str(epochs)]
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "unimp.serving.trainer", str(self._run), str(out), *more),
            stdin=asyncio.subprocess.PIPE,  # its end tells the trainer that this process ended
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        assert self._process.stderr is not None
        said = await self._process.stderr.read()
        await self._process.wait()
        result = trained(self._run).get(job.generation)
        if result is None:
            why = said.decode(errors="replace").strip().splitlines()
            self.change(job, "failed", why[-1][:500] if why else "the trainer ended")
            return False
        job.gate, job.version = result["checks"], result["version"]
        if not result["accepted"]:
            self.change(job, "refused", "; ".join(f"{k}: {v}" for k, v in job.gate.items()))
            return False
        return True

    async def close(self) -> None:
        """End a training that runs; it is not resumed."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.terminate()
            await self._process.wait()
