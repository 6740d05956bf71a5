"""HTTP connections that end if their clients are too slow.

The server waits for a request without a limit, so some hundred connections that send nothing, or
one header per minute, would keep everybody else out.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

HEAD_TIME = 10.0
"""Seconds in which the headers of a request must arrive."""
MOST_HEAD = 64 << 10
"""Bytes after which incomplete headers are too large."""


class ImpatientProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """Closes a connection whose next request does not start in time."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        is_head = before is None or before.response_complete
        if is_head and self._timer is None:  # the next request of a connection that stayed open
            self._wait()
        super().data_received(data)
        if self.cycle is not before:
            self._stop_waiting()
        elif is_head:
            self._size += len(data)
            if self._size > MOST_HEAD:
                self._close()

    def _wait(self) -> None:
        self._size = 0
        self._timer = self.loop.call_later(HEAD_TIME, self._close)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close(self) -> None:
        self._stop_waiting()
        if not self.transport.is_closing():
            self.transport.close()
