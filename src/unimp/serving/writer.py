"""The only thread that writes to the database: many requests per transaction.

A sync of the disk takes milliseconds, however much is written. The thread therefore takes all
requests that are waiting, stores them in one transaction, and acknowledges each of them after the
commit. A request that is refused leaves nothing behind and does not disturb the others.

After an error of the disk nobody knows what was written. The thread then stops for good: it never
acknowledges again, while readers continue. A restart reads what is on the disk.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from unimp.errors import BrokenError, BusyError, ServiceError
from unimp.serving.events import MOST_WRITES

MOST_WAITING = 1_000
"""Requests that may wait for the next transaction."""
WAL_BYTES = 4 << 20
"""The size of the WAL from which on its pages are moved into the database."""

T = TypeVar("T")
Job = Callable[[sqlite3.Connection], Any]


@dataclass(frozen=True)
class Waiting:
    """A job in the queue: what it does, and who waits for it."""

    job: Job
    future: Future[Any]


class Writer:
    """A thread that runs jobs in transactions, in the order in which they were submitted."""

    def __init__(
        self,
        db: sqlite3.Connection,
        path: Path,
        *,
        most_waiting: int = MOST_WAITING,
        on_commit: Callable[[], None] | None = None,
    ) -> None:
        self._failure: BaseException | None = None
        self._db, self._path, self._on_commit = db, path, on_commit
        self._wal = path.with_name(f"{path.name}-wal")
        self._checkpoint_at = WAL_BYTES
        self._most_waiting = most_waiting
        self._waiting: deque[Waiting] = deque()
        self._events = 0  # that the waiting jobs store
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="label log", daemon=True)
        self._thread.start()

    @property
    def is_broken(self) -> bool:
        """Whether the disk failed, so that nothing will be acknowledged anymore."""
        return self._failure is not None

    def submit(self, job: Callable[[sqlite3.Connection], T], size: int = 1) -> Future[T]:
        """Run a job in the next transaction; its result arrives after the commit.

        size: the number of events that it stores.
        Raises BusyError if too much is waiting, and BrokenError after an error of the disk.
        """
        future: Future[T] = Future()
        with self._changed:
            if self._failure is not None:
                raise self._refusal()
            if self._closed:
                raise ServiceError(f"{self._path} was closed. Open it again.")
            if len(self._waiting) >= self._most_waiting or self._events > MOST_WRITES:
                raise BusyError(
                    f"{len(self._waiting):,} requests with {self._events:,} events are waiting to "
                    "be written. Try again in a second."
                )
            self._waiting.append(Waiting(job, future))
            self._events += size
            self._changed.notify()
        return future

    def close(self) -> None:
        """Write what is waiting, stop the thread, and close the database."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()
        self._db.close()

    def _take(self) -> list[Waiting]:
        """Wait for jobs and take all of them; an empty list after `close`."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            group = list(self._waiting)
            self._waiting.clear()
            self._events = 0
            return group

    def _run(self) -> None:
        while self._failure is None and (group := self._take()):
            group = [one for one in group if one.future.set_running_or_notify_cancel()]
            try:
                self._commit(group)
                self._move_wal()
            except BaseException as error:
                self._stop(error, group)

    def _commit(self, group: list[Waiting]) -> None:
        """Run jobs in one transaction, and then acknowledge them."""
        try:
            self._db.execute("begin immediate")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            for one in group:
                one.future.set_exception(
                    BusyError(
                        f"another program is writing to {self._path}. Close it and try again."
                    )
                )
            return
        outcomes = [self._attempt(one.job) for one in group]
        self._db.execute("commit")
        for one, (result, refused) in zip(group, outcomes, strict=True):
            if refused is None:
                one.future.set_result(result)
            else:
                one.future.set_exception(refused)
        if self._on_commit is not None:
            try:
                self._on_commit()
            except Exception:  # the labels are stored; whoever listens must not stop the next ones
                logging.getLogger(__name__).exception("A listener of the label log failed.")

    def _attempt(self, job: Job) -> tuple[Any, Exception | None]:
        """Run one job; if it is refused, remove what it has written."""
        self._db.execute("savepoint job")
        result, refused = None, None
        try:
            result = job(self._db)
        except Exception as error:  # a mistake in one job must not end the service
            of_disk = isinstance(error, sqlite3.Error | OSError)
            if of_disk and not isinstance(error, sqlite3.IntegrityError):
                raise
            refused = error
            self._db.execute("rollback to job")
        self._db.execute("release job")
        return result, refused

    def _move_wal(self) -> None:
        """Move the pages of a large WAL into the database; errors must not go unnoticed.

        A reader with a long transaction keeps the WAL from being emptied, so the next attempt
        waits until it has grown.
        """
        size = self._wal.stat().st_size if self._wal.exists() else 0
        if size < self._checkpoint_at:
            return
        busy, _, _ = self._db.execute("pragma wal_checkpoint(truncate)").fetchone()
        self._checkpoint_at = size + WAL_BYTES if busy else WAL_BYTES

    def _stop(self, error: BaseException, group: list[Waiting]) -> None:
        """Refuse everything from now on."""
        with suppress(sqlite3.Error):
            self._db.execute("rollback")
        with self._changed:
            self._failure = error
            waiting = list(self._waiting)
            self._waiting.clear()
        group += [one for one in waiting if one.future.set_running_or_notify_cancel()]
        for one in group:
            if not one.future.done():
                one.future.set_exception(self._refusal())

    def _refusal(self) -> BrokenError:
        """A new error for each caller: an error that is raised twice would collect tracebacks."""
        return BrokenError(
            f"{self._path} could not be written ({self._failure}). Nothing was acknowledged since. "
            "Check the disk and its free space, then restart the service."
        )
