"""Suggestions and doubtful labels, which are computed when they are needed and then kept."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unimp.serving.front.service import Service

ANSWER = 60.0
"""Seconds that an explanation or a list of suggestions may take."""
AUDIT = 600.0


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
            enough = version >= wanted and (self._most_suggested >= number)
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

        at_least: not older than this version.
        """
        while True:
            found = self._audited
            enough = found is not None and found[0] >= (at_least or 0)
            if found is not None and enough:
                is_current = found[0] >= self._service.ready().version
                if not is_current and time.monotonic() >= self._next_audit:
                    self._once("audit", self._audit())
                return found
            task = self._once("audit", self._audit())
            await asyncio.shield(task)

    async def _audit(self) -> None:
        generation, started = self._service.generation, time.monotonic()
        answer = await self._service.audit(timeout=AUDIT)
        # While labels keep arriving, audits take at most half of the time.
        self._next_audit = 2 * time.monotonic() - started
        if generation == self._service.generation:
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
            task.add_done_callback(retrieve)
        else:
            work.close()
        return task


def retrieve(task: asyncio.Task[Any]) -> None:
    """Look at an error that nobody waits for."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logging.getLogger("unimp.serving").info("A background task failed: %s", error)
