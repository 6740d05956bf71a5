"""Wait for other processes as long as they run, and notice if one of them was stopped or lost.

A process may compute for hours while the others wait for it. A time limit would either end such a
wait too early, or notice a stopped process too late. Instead, a thread of each process exchanges a
message with the threads of all others about once per second, also while its process computes. If
one of them does not answer within the limit, its process was stopped or lost.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from datetime import timedelta
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

LONGEST = timedelta(days=20)
"""The longest wait for processes that run: torch stores it as milliseconds in 32 bits."""
END_SECONDS = 5.0
"""Seconds for which a process that ends waits for an exchange that has begun."""


class Heartbeat:
    """Exchanges messages with all processes, and lets them wait for each other.

    exchange: returns when all processes have called it, and raises an error if one of them was
    stopped or lost.
    store: a store of torch that all of the `size` processes share, and nothing else uses.
    pause: seconds between two exchanges.
    """

    def __init__(
        self, exchange: Callable[[], object], store: Any, size: int, *, pause: float
    ) -> None:
        self._exchange, self._store, self._size, self._pause = exchange, store, size, pause
        self._meetings = 0
        self._lost: Exception | None = None  # why the processes cannot wait for each other anymore
        # What the threads report: None if all processes have called `meet`, otherwise the error.
        self._reports: SimpleQueue[Exception | None] = SimpleQueue()
        self._ended = Event()
        self._thread = Thread(target=self._beat, daemon=True)
        self._thread.start()
        atexit.register(self.end)

    def meet(self) -> None:
        """Return when all processes have called it.

        Raises the error of the exchange or of the store if one of the processes was stopped or
        lost.
        """
        if self._lost:
            raise self._lost
        self._meetings += 1
        # The store is called in a separate thread, because a call does not return if the process
        # that hosts the store is stopped.
        Thread(target=self._attend, args=(self._meetings,), daemon=True).start()
        if error := self._reports.get():
            self._lost = error
            raise error

    def end(self) -> None:
        """Stop exchanging messages."""
        self._ended.set()
        self._thread.join(END_SECONDS)
        atexit.unregister(self.end)

    def _beat(self) -> None:
        try:
            while not self._ended.wait(self._pause):
                self._exchange()
        # Any error: `meet` would wait forever if the thread ended without a report.
        except Exception as error:
            self._reports.put(error)

    def _attend(self, meeting: int) -> None:
        try:
            if self._store.add("attended", 1) == meeting * self._size:
                self._store.set(f"met/{meeting}", "1")
                self._store.delete_key(f"met/{meeting - 1}")  # all have returned from it
            self._store.wait([f"met/{meeting}"], LONGEST)
        except Exception as error:
            self._reports.put(error)
        else:
            self._reports.put(None)
