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
    """All clients that listen."""

    def __init__(self) -> None:
        self._all: set[Listener] = set()

    @property
    def count(self) -> int:
        return len(self._all)

    def add(self) -> Listener:
        if len(self._all) >= MOST_LISTENERS:
            raise BusyError(f"{MOST_LISTENERS} clients listen already. Try again later.")
        listener: Listener = asyncio.Queue(MOST_QUEUED)
        self._all.add(listener)
        return listener

    def remove(self, listener: Listener) -> None:
        self._all.discard(listener)

    def send(self, text: bytes | None) -> None:
        """Send an event to all; one who reads too slowly is disconnected, and has to resume."""
        for listener in list(self._all):
            try:
                listener.put_nowait(text)
            except asyncio.QueueFull:
                listener.get_nowait()
                listener.put_nowait(None)
                self._all.discard(listener)
