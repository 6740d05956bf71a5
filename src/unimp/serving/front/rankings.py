"""Suggestions and doubtful labels, which are computed on demand and then kept."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unimp.serving.front.service import Service

LOG = logging.getLogger("unimp.serving")
ANSWER = 60.0
"""Seconds that an explanation or a list of suggestions may take."""
AUDIT = 600.0
"""Seconds that an audit may take."""
RETRY = 60.0
"""Seconds before an audit that failed is started again."""


class Rankings:
    """The last rankings of the active model."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._running: dict[str, asyncio.Task[Any]] = {}
        self.forget()

    def forget(self) -> None:
        """Compute everything again, with another model."""
        self._suggested: tuple[int, list[dict[str, Any]]] = (-1, [])
        self._most_suggested = 0
        self._audited: tuple[int, dict[str, Any]] | None = None
        self._audit_error: Exception | None = None
        self._next_audit = 0.0

    async def suggested(
        self, number: int, at_least: int | None = None
    ) -> tuple[int, list[dict[str, Any]]]:
        """Suggestions at the published version, or slightly older ones while new ones are made.

        at_least: not older than this version.
        """
        wanted = max(at_least or 0, 0)
        while True:
            version, rows = self._suggested
            enough = version >= wanted and self._most_suggested >= number
            if enough and version == self._service.ready().version:
                return self._suggested
            task = self._once("suggest", self._suggest(max(number, 200)))
            if enough:
                return version, rows
            await asyncio.shield(task)

    async def _suggest(self, number: int) -> None:
        answer = await self._service.engine.ask("suggest", timeout=ANSWER, number=number)
        if answer["generation"] == self._service.generation:
            self._suggested = answer["version"], answer["suggestions"]
            self._most_suggested = number

    async def audited(self, at_least: int | None = None) -> tuple[int, dict[str, Any]]:
        """Doubtful labels; an older list is returned while a new one is made.

        An audit that failed is not repeated for a while; its error is raised again. at_least: not
        older than this version.
        """
        while True:
            found, is_late = self._audited, time.monotonic() >= self._next_audit
            if found is not None and found[0] >= (at_least or 0):
                if found[0] < self._service.ready().version and is_late:
                    self._once("audit", self._audit())
                return found
            if self._audit_error is not None and not is_late:
                raise self._audit_error.with_traceback(None)
            await asyncio.shield(self._once("audit", self._audit()))

    async def _audit(self) -> None:
        generation, started = self._service.generation, time.monotonic()
        answer, error = None, None
        try:
            answer = await self._service.audit(timeout=AUDIT)
        except Exception as failure:
            LOG.warning("The audit failed: %s", failure)
            error = failure
        if generation != self._service.generation:
            return  # whoever waits asks for an audit of the model that is active now
        # While labels keep arriving, audits take at most half of the time.
        pause = time.monotonic() - started
        self._next_audit = time.monotonic() + (pause if error is None else max(pause, RETRY))
        self._audit_error = error
        if answer is not None:
            self._audited = (answer["version"], dict(answer.values))

    async def close(self) -> None:
        """End what is being computed."""
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    def _once(self, name: str, work: Any) -> asyncio.Task[Any]:
        """Start a computation, unless it is running already."""
        task = self._running.get(name)
        if task is None or task.done():
            task = self._running[name] = asyncio.ensure_future(work)
            task.add_done_callback(log_failure)
        else:
            work.close()
        return task


def log_failure(task: asyncio.Task[Any]) -> None:
    """Log the error of a task whose result may never be awaited."""
    if not task.cancelled() and (error := task.exception()) is not None:
        LOG.info("A background task failed: %s", error)
