"""Clients that receive server-sent events."""

from __future__ import annotations

import asyncio

from unimp.errors import BusyError

MOST_LISTENERS = 200
MOST_QUEUED = 256
"""Events that may wait for one listener, who is disconnected if there are more."""

Listener = asyncio.Queue[bytes | None]
"""The events for one client; None ends its connection."""


class Listeners:
    """All clients that listen, each with the name of its actor."""

    def __init__(self) -> None:
        self._all: dict[Listener, str] = {}

    @property
    def count(self) -> int:
        return len(self._all)

    def add(self, actor: str) -> Listener:
        """Add a client of an actor; raise BusyError if there are too many."""
        if len(self._all) >= MOST_LISTENERS:
            raise BusyError(f"{MOST_LISTENERS} clients listen already. Try again later.")
        listener: Listener = asyncio.Queue(MOST_QUEUED)
        self._all[listener] = actor
        return listener

    def remove(self, listener: Listener) -> None:
        self._all.pop(listener, None)

    def send(self, text: bytes) -> None:
        """Send an event to all; one who reads too slowly is disconnected, and has to resume."""
        for listener in list(self._all):
            if listener.full():
                self._end(listener)
            else:
                listener.put_nowait(text)

    def end(self, actor: str | None = None) -> None:
        """Disconnect all clients, or those of an actor who may not listen anymore."""
        for listener, name in list(self._all.items()):
            if actor in (None, name):
                self._end(listener)

    def _end(self, listener: Listener) -> None:
        """Disconnect a client, without the events that it has not received yet."""
        while not listener.empty():
            listener.get_nowait()
        listener.put_nowait(None)
        self.remove(listener)
