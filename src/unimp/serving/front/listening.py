"""Server-sent events, which announce what was stored and published."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Query
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from unimp.serving.front.answers import ERRORS, Caller, TheService
from unimp.serving.front.listeners import Listener, Listeners
from unimp.serving.front.service import NAMED, Service

router = APIRouter(prefix="/v1", tags=["read"])
HEARTBEAT = 15.0
"""Seconds after which a comment is sent, so that proxies keep the connection open."""


@router.get(
    "/events",
    responses={**ERRORS, 200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
    response_class=StreamingResponse,
)
async def events(
    service: TheService,
    caller: Caller,
    last_event_id: Annotated[str | None, Header(pattern=r"^[0-9]{1,16}$")] = None,
    since: Annotated[int | None, Query(ge=0)] = None,
) -> StreamingResponse:
    """Send an event for each publication; `Last-Event-ID` or `since` resumes from a version."""
    missed = _missed(service, int(last_event_id) if last_event_id else since)
    return EventStream(service.listeners, service.listeners.add(caller.name), missed)


class EventStream(StreamingResponse):
    """The events of one listener, who is removed when the response ends."""

    def __init__(self, listeners: Listeners, listener: Listener, missed: bytes) -> None:
        super().__init__(_events(listener, missed), media_type="text/event-stream")
        self._listeners, self._listener = listeners, listener

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._listeners.remove(self._listener)


async def _events(listener: Listener, missed: bytes) -> AsyncIterator[bytes]:
    yield b"retry: 1000\n\n" + missed
    while True:
        try:
            text = await asyncio.wait_for(listener.get(), HEARTBEAT)
        except TimeoutError:
            text = b": still here\n\n"
        if text is None:
            return
        yield text


def _missed(service: Service, since: int | None) -> bytes:
    """One event for all that a client has missed since a version."""
    published = service.ready()
    if since is not None and (since < published.first or since > published.version):
        return service.event_text("reset", changed=0, nodes=[])
    start = published.version if since is None else since
    moved = published.changed_since(start, (start, len(published.ids)), len(published.ids))
    names = [published.ids[n] for n in moved[:NAMED]]
    return service.event_text("published", changed=len(moved), nodes=names)
