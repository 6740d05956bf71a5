"""The engine process, as the front sees it: started, asked, and started again if it ends."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Literal

from unimp.errors import BusyError, ServiceError, UnimpError, UnknownNodeError
from unimp.serving.wire import Message, encode, receive_async

LOG = logging.getLogger("unimp.serving")
MOST_WAITING = 200
"""Requests that may wait for an answer of the engine."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0
"""Seconds before a process that ended at once is started again."""
STOP = 5.0
"""Seconds that the process has to end on its own."""

State = Literal["loading", "ready", "down"]


class EngineError(ServiceError):
    """The engine cannot answer now; the same request may succeed later."""


class RefusedError(ServiceError):
    """The engine refuses a request, which would not succeed later either."""


class EngineLink:
    """Keeps one engine process running.

    on_hello, on_published: called with messages of the process, in their order. on_down: called
    when it has ended. on_estimate: called with the memory that it will need, in words.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        generation: int = 0,
        on_hello: Callable[[Message], None],
        on_published: Callable[[Message], None],
        on_down: Callable[[], None],
        on_estimate: Callable[[str], None],
    ) -> None:
        self._arguments = [sys.executable, "-m", "unimp.serving.engine", *arguments]
        self._on_hello, self._on_published, self._on_down = on_hello, on_published, on_down
        self._on_estimate = on_estimate
        self.generation = generation
        self.state: State = "loading"
        self.detail = ""
        """Why the process ended, if it reported a reason."""
        self.starts = 0
        self._process: asyncio.subprocess.Process | None = None
        self._waiting: dict[int, asyncio.Future[Message]] = {}
        self._numbers = itertools.count(1)
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep())

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def close(self) -> None:
        """End the process: closing its input is the request to do so."""
        self._closed = True
        process = self._process
        if process is not None and process.returncode is None:
            assert process.stdin is not None
            process.stdin.close()
            await _ended(process)
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _keep(self) -> None:
        pause = FIRST_PAUSE
        while not self._closed:
            self.state, self.starts = "loading", self.starts + 1
            was_ready = await self._run_once()
            self.state = "down"
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(EngineError("the engine ended. Try again in a second."))
            self._waiting.clear()
            self._on_down()
            if self._closed:
                return
            pause = FIRST_PAUSE if was_ready else min(2 * pause, LONGEST_PAUSE)
            LOG.warning("The engine ended; it is started again. %s", self.detail)
            await asyncio.sleep(pause)

    async def _run_once(self) -> bool:
        """Run the process until it ends; return whether it was ready."""
        process = await asyncio.create_subprocess_exec(
            *self._arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 20,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self._process = process
        assert process.stdout is not None
        try:
            while True:
                self._take(await receive_async(process.stdout))
        except asyncio.IncompleteReadError:
            pass
        except ValueError as error:
            self.detail = f"its messages are damaged ({error})"
        finally:
            await _ended(process)
        return self.state == "ready"

    def _take(self, message: Message) -> None:
        if self._closed:
            return
        match message["kind"]:
            case "hello":
                self.state, self.detail = "ready", ""
                self._on_hello(message)
            case "published":
                self._on_published(message)
            case "estimate":
                self._on_estimate(message["detail"])
            case "failed":
                self.detail = message["detail"]
            case "answer":
                future = self._waiting.pop(message["request"], None)
                if future is not None and not future.done():
                    future.set_result(message)

    def notify(self, **values: Any) -> None:
        """Send a message that has no answer; it is not needed if the process is not ready."""
        if self.state == "ready":
            self._write(Message(values))

    async def ask(self, kind: str, *, timeout: float, **values: Any) -> Message:
        """Send a request and wait for its answer, which states the generation that answered."""
        if self.state != "ready":
            why = f" ({self.detail})" if self.detail else ""
            raise EngineError(f"the model is {self.state}{why}. Try again in a few seconds.")
        if len(self._waiting) >= MOST_WAITING:
            raise BusyError(f"{MOST_WAITING} requests wait for the model. Try again in a second.")
        number = next(self._numbers)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._write(Message({"kind": kind, "request": number, **values}))
            answer = await asyncio.wait_for(future, timeout)
        except TimeoutError:
            raise EngineError(
                f"the model did not answer within {timeout:g} s. Try again later."
            ) from None
        finally:
            self._waiting.pop(number, None)
        found = _checked(answer)
        return Message({**found.values, "generation": self.generation}, found.arrays)

    def _write(self, message: Message) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(ConnectionError, RuntimeError):  # it has just ended
            for part in encode(message):
                self._process.stdin.write(part)


async def ask_once(module: str, arguments: Sequence[str], *, timeout: float) -> Message:
    """Start a process of the engine's package, and return its only message."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", f"unimp.serving.engine.{module}", *arguments),
        stdin=asyncio.subprocess.PIPE,  # the process ends when this pipe does
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 20,
    )
    assert process.stdout is not None
    try:
        answer = await asyncio.wait_for(receive_async(process.stdout), timeout)
    except (TimeoutError, asyncio.IncompleteReadError, ValueError) as error:
        why = f"within {timeout:g} s" if isinstance(error, TimeoutError) else "before it ended"
        raise EngineError(f"the {module} did not answer {why}. Try again later.") from None
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    return _checked(answer)


async def _ended(process: asyncio.subprocess.Process) -> None:
    """Wait for the end of a process, and then enforce it."""
    try:
        await asyncio.wait_for(process.wait(), STOP)
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _checked(answer: Message) -> Message:
    found = answer.values
    error: UnimpError | None = None
    if "unknown" in found:
        error = UnknownNodeError(found["unknown"])
    elif "refused" in found:
        error = RefusedError(found["refused"])
    elif "failed" in found:
        error = EngineError("the model could not answer; the log of the service states why.")
    if error is not None:
        raise error
    return answer
