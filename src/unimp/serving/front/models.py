"""The loaded models: which of them answers, and how a newly trained one replaces it."""

from __future__ import annotations

import asyncio
import datetime
import json
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from unimp.config.run_files import MANIFEST
from unimp.errors import UnimpError
from unimp.serving.events import ModelChange
from unimp.serving.front.engine_link import EngineError, EngineLink
from unimp.serving.front.generations import (
    ROLLBACK,
    Job,
    Jobs,
    Model,
    folder_of,
    refusal,
    scores_of,
    trained,
)
from unimp.serving.front.problems import ProblemError
from unimp.serving.front.rankings import log_failure
from unimp.serving.requests import Receipt
from unimp.serving.store import Store

if TYPE_CHECKING:
    from unimp.serving.front.service import Service

LOG = logging.getLogger("unimp.serving")
LOADING = 600
"""Seconds in which a model must be loaded."""


class Models:
    """The loaded models by generation, of which one is active, and trainings of new ones."""

    def __init__(self, service: Service, link: Callable[[int], EngineLink]) -> None:
        """link: makes the engine of a generation."""
        self._service, self._link = service, link
        self.active = _active_generation(service.store)
        self.loaded = {self.active: Model(link(self.active))}
        self.jobs = Jobs(service.folder, lambda job: service.announce("job", **job.plain()))
        self._tasks: set[asyncio.Task[Any]] = set()
        self._unloading: dict[int, asyncio.Task[Any]] = {}
        self._activations: dict[int, asyncio.Task[Any]] = {}

    def start(self) -> None:
        """Start the engine of the active model, and continue a training that was interrupted."""
        self.loaded[self.active].link.start()
        self._mark_active()
        if (job := self.jobs.running) is not None:  # the service was stopped meanwhile
            self._in_background(self._continue_when_ready(job))

    async def _continue_when_ready(self, job: Job) -> None:
        """Continue a training when predictions exist, because an earlier start would delay them.

        If the active model cannot be loaded, the training is stopped; somebody can resume it.
        """
        end = time.monotonic() + LOADING
        while self._service.published is None:
            link = self._service.engine
            if (link.state == "down" and link.detail) or time.monotonic() >= end:
                why = link.detail or f"it was not ready within {LOADING:g} s"
                then = f"Resume the training later: POST /v1/jobs/{job.id}/resume"
                self.jobs.change(job, "stopped", f"the active model is not loaded: {why}. {then}")
                return
            await asyncio.sleep(0.1)
        self._continue(job)

    async def close(self) -> None:
        """Stop trainings and end all engines."""
        await self.jobs.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for model in list(self.loaded.values()):
            await model.link.close()

    def generations(self) -> list[dict[str, Any]]:
        """The models that can answer."""
        found = []
        for generation in (0, *trained(self._service.folder)):
            where = folder_of(self._service.folder, generation) or self._service.folder
            model = self.loaded.get(generation)
            loaded = model is not None and model.published is not None
            made = datetime.datetime.fromtimestamp((where / MANIFEST).stat().st_mtime, datetime.UTC)
            found.append(
                {
                    "generation": generation,
                    "run": where.relative_to(self._service.folder.parent).as_posix(),
                    "active": generation == self.active,
                    "loaded": loaded,
                    "created": made.isoformat(timespec="seconds"),
                    "scores": scores_of(where),
                }
            )
        return found

    def retrain(self, actor: str, epochs: int | None, *, activate: bool) -> Job:
        """Train a model in the background, on all labels that the gate does not hold out."""
        job = self.jobs.start(self._service.acknowledged, self.active, actor)
        job.epochs, job.activate = epochs, activate
        return self._continue(job)

    def resume(self, id: str) -> Job:
        """Continue a training that was stopped."""
        return self._continue(self.jobs.resume(id))

    def _continue(self, job: Job) -> Job:
        """Start or resume a training; the gate compares with the model that is active now."""
        job.against = self.active
        self.jobs.change(job, "training")
        self._in_background(self._retrain(job))
        return job

    async def _retrain(self, job: Job) -> None:
        try:
            if not await self._accepted(job):
                await self._unload(job.generation)
                return
            if job.activate:
                await self.activate(job.actor, job.generation)
            else:
                self._unload_later(job.generation)
            self.jobs.change(job, "active" if self.active == job.generation else "ready")
        except Exception as error:  # a job that does not run must not be shown as running
            if not isinstance(error, (UnimpError, ProblemError)):
                LOG.exception("the training of generation %d failed", job.generation)
            state = "ready" if job.generation in self.loaded else "failed"
            self.jobs.change(job, state, str(error) or type(error).__name__)

    async def _accepted(self, job: Job) -> bool:
        """Train and load a model; return whether the gate prefers it to the active one."""
        while await self.jobs.train(job):
            self.jobs.change(job, "loading")
            await self._load(job.generation)
            if self.active in (job.against, job.generation):
                return True
            job.against = self.active  # it was activated meanwhile
            self.jobs.change(job, "training")
        return False

    async def _load(self, generation: int) -> None:
        """Start the engine of a model, and wait until it has applied all events that the active
        one has applied.

        A model that cannot be loaded in time is unloaded.
        """
        if generation not in self.loaded:
            self.loaded[generation] = Model(self._link(generation))
            self.loaded[generation].link.start()
        model, end = self.loaded[generation], time.monotonic() + LOADING
        while time.monotonic() < end and self.loaded.get(generation) is model:
            found, active = model.published, self._service.published
            if found is not None and (active is None or found.version >= active.version):
                return
            if model.link.state == "down" and model.link.detail:
                break
            await asyncio.sleep(0.05)
        why = model.link.detail or f"it was not ready within {LOADING:g} s"
        await self._unload(generation)
        raise EngineError(f"generation {generation} cannot be loaded: {why}.")

    async def activate(self, actor: str, generation: int, *, override: bool = False) -> Receipt:
        """Answer with another model from now on; the one before stays loaded for a while.

        Loading a model may take longer than a request, so the activation continues if the request
        is cancelled; a repeated request waits for the same activation. override: also if the gate
        refused the model; the event states it.
        """
        override = self._check_gate(generation, override)
        task = self._activations.get(generation)
        if task is None or task.done():
            task = self._in_background(self._activate(actor, generation, override))
            self._activations[generation] = task
        receipt: Receipt = await asyncio.shield(task)
        return receipt

    async def _activate(self, actor: str, generation: int, override: bool) -> Receipt:
        if (timer := self._unloading.pop(generation, None)) is not None:
            timer.cancel()
        try:
            await self._load(generation)
            write = ModelChange(generation=generation, run=str(generation), override=override)
            receipt = await self._service.write(actor, [write])
        except Exception:
            self._unload_later(generation)
            raise
        before, was = self.active, self._service.published
        self.active = generation
        if before != generation:
            # Answers of two models must not be combined: who asks for changes must read all nodes.
            self._service.ready().first = max(receipt.version, was.version + 1 if was else 0)
            self._unload_later(before)
        self._service.rankings.forget()
        self._mark_active()
        self._service.announce("reset", changed=0, nodes=[])
        return receipt

    def _mark_active(self) -> None:
        """Store which of the trained models is the active one."""
        for job in self.jobs.all.values():
            state = "active" if job.generation == self.active else "ready"
            # A refused model that was activated anyway stays refused.
            if job.state in ("ready", "active") and job.state != state:
                self.jobs.change(job, state)

    def _check_gate(self, generation: int, override: bool) -> bool:
        """Refuse a model that the gate refused; return whether it is overridden."""
        if not generation:
            return False
        result = trained(self._service.folder).get(generation)
        if result is None:
            raise ProblemError(404, "not-found", f"there is no generation {generation}.")
        if not result["accepted"] and not override:
            raise ProblemError(
                422,
                "refused",
                f"the gate refused generation {generation}: {refusal(result)}. An admin can "
                'activate it anyway with {"override": true}.',
            )
        return not result["accepted"]

    def _unload_later(self, generation: int) -> None:
        """End the engine of a model after some time, unless it is activated before."""
        if (timer := self._unloading.pop(generation, None)) is not None:
            timer.cancel()
        self._unloading[generation] = self._in_background(self._unload(generation, after=ROLLBACK))

    async def _unload(self, generation: int, *, after: float = 0.0) -> None:
        """End the engine of a model, unless it is active; after: seconds to wait before."""
        await asyncio.sleep(after)
        if generation != self.active and (model := self.loaded.pop(generation, None)) is not None:
            await model.link.close()

    def _in_background(self, work: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(log_failure)
        return task


def _active_generation(store: Store) -> int:
    """The generation that the last event about models names."""
    query = "select body from event where kind = 'model' order by version desc limit 1"
    found = store.reader.rows(query)
    return int(json.loads(found[0][0])["generation"]) if found else 0
