"""Server-sent events: what was stored and published, as it happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Query
from starlette.responses import StreamingResponse

from unimp.serving.front.answers import ERRORS, Someone, TheService
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
    someone: Someone,
    last_event_id: Annotated[str | None, Header(pattern=r"^[0-9]{1,16}$")] = None,
    since: Annotated[int | None, Query(ge=0)] = None,
) -> StreamingResponse:
    """Send an event for each publication; `Last-Event-ID` or `since` resumes from a version."""
    service.ready()
    start = int(last_event_id) if last_event_id else since
    return StreamingResponse(_stream(service, start), media_type="text/event-stream")


async def _stream(service: Service, since: int | None) -> AsyncIterator[bytes]:
    listener = service.listeners.add()
    try:
        yield b"retry: 1000\n\n"
        yield _missed(service, since)
        while True:
            try:
                text = await asyncio.wait_for(listener.get(), HEARTBEAT)
            except TimeoutError:
                yield b": still here\n\n"
                continue
            if text is None:
                return
            yield text
    finally:
        service.listeners.remove(listener)


def _missed(service: Service, since: int | None) -> bytes:
    """The event that a client which resumes has missed, in one."""
    published = service.ready()
    if since is not None and (since < published.first or since > published.version):
        return service.event_text("reset", changed=0, nodes=[])
    start = published.version if since is None else since
    moved = published.changed_since(start, (start, len(published.ids)), len(published.ids))
    names = [published.ids[n] for n in moved[:NAMED]]
    return service.event_text("published", changed=len(moved), nodes=names)
