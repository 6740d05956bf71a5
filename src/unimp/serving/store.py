"""The events of a run folder, opened for writing by one process at a time.

A request is stored completely or not at all. Its receipt arrives after its events are on the disk.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from unimp.config.run_files import LABELS, LABELS_LOCK
from unimp.errors import InvalidWriteError, RunError
from unimp.runs.folder.lock import acquire, holder_of, refuse_foreign_lock
from unimp.serving.database import open_for_writing
from unimp.serving.events import LONGEST_BODY, MOST_WRITES, Label, Retraction, Skip, Write
from unimp.serving.people import People, find_actor
from unimp.serving.reader import FIELDS, Reader
from unimp.serving.requests import (
    Check,
    Receipt,
    Request,
    Vocabulary,
    check_unchanged,
    check_versions,
    repeated,
    stored_form,
    undoes_others,
)
from unimp.serving.state import take_effect
from unimp.serving.writer import MOST_WAITING, Writer

NO_HASH = bytes(32)
"""The hash before that of the first event."""


class Store:
    """The events of a run folder, and the only place that writes them."""

    def __init__(
        self,
        folder: Path,
        vocabulary: Vocabulary | None = None,
        *,
        clock: Callable[[], float] = time.time,
        most_waiting: int = MOST_WAITING,
        on_commit: Callable[[], None] | None = None,
    ) -> None:
        """on_commit: called by the writing thread after requests were acknowledged."""
        self.folder, self.clock = Path(folder), clock
        self.use(vocabulary or Vocabulary())
        path = self.folder / LABELS_LOCK
        refuse_foreign_lock(self.folder, LABELS_LOCK)
        holder, lock = holder_of(path), acquire(path)
        if lock is None:
            raise RunError(f"{self.folder} is served by {holder}. Stop it, or choose another run.")
        self._lock = lock
        with ExitStack() as opened:
            opened.callback(self._lock.release)
            db = open_for_writing(self.folder)
            opened.callback(db.close)
            self.reader = Reader(self.folder)
            opened.pop_all()  # `close` closes them
        self.writer = Writer(
            db, self.folder / LABELS, most_waiting=most_waiting, on_commit=on_commit
        )
        self.people = People(self.writer, self.reader)

    def use(self, vocabulary: Vocabulary) -> None:
        """Check requests against these ids and classes from now on."""
        if vocabulary.classes is not None:
            vocabulary = replace(vocabulary, classes=frozenset(vocabulary.classes))
        self._vocabulary = vocabulary

    def close(self) -> None:
        """Store what is waiting, and let another process open the folder."""
        self.reader.close()
        self.writer.close()
        with suppress(OSError):  # Windows removes it when the lock is released
            (self.folder / LABELS_LOCK).unlink()
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def submit(self, request: Request) -> Future[Receipt]:
        """Store a request; its receipt arrives when its events are on the disk.

        Raises BusyError or BrokenError at once. The future raises InvalidWriteError, ConflictError,
        KeyReusedError, ForbiddenError or BrokenError.
        """
        count = len(request.writes)
        if not 1 <= count <= MOST_WRITES:
            what = f"a request has 1 to {MOST_WRITES:,} writes, but this one has {count:,}"
            raise InvalidWriteError([(0, what)])
        # Everything that does not depend on other requests is prepared outside the transaction.
        rows = [stored_form(request, write) for write in request.writes]
        problems = [
            (place, f"its values have {len(row[4]):,} bytes, more than {LONGEST_BODY:,}")
            for place, row in enumerate(rows)
            if len(row[4]) > LONGEST_BODY
        ]
        if problems:
            raise InvalidWriteError(problems)
        return self.writer.submit(lambda db: self._append(db, request, rows), count)

    def problems_of(self, writes: tuple[Write, ...]) -> list[tuple[int, str]]:
        """What is wrong with writes that are not stored."""
        with self.reader.state() as db:
            try:
                Check(db, self._vocabulary).run(writes)
            except InvalidWriteError as error:
                return list(error.problems)
        return []

    def write(self, actor: str, *writes: Write, **options: Any) -> Receipt:
        """Store writes and wait until they are on the disk; options: fields of Request."""
        return self.submit(Request(actor, writes, **options)).result()

    def _append(self, db: sqlite3.Connection, request: Request, rows: Sequence[Any]) -> Receipt:
        """Check a request against everything that is stored, and store its events."""
        actor = find_actor(db, request.actor)
        actor.check_writes(request.writes, undoes_others(db, request))
        if (earlier := repeated(db, request, rows)) is not None:
            return earlier
        Check(db, self._vocabulary).run(request.writes)
        check_versions(db, request.if_match)
        head, before = last_hash(db)
        check_unchanged(db, request, head)
        now = datetime.datetime.fromtimestamp(self.clock(), datetime.UTC)
        at = now.isoformat(timespec="microseconds")
        pairs = zip(request.writes, rows, strict=True)
        for version, (write, row) in enumerate(pairs, head + 1):
            predicted, drawn = _prediction(db, request, write), _drawn(db, request, write)
            values = (version, at, request.actor, *row, request.key, predicted, drawn)
            before = hash_of_event(before, values)
            db.execute(INSERT, (*values, before))
            take_effect(db, version, write)
        return Receipt(head + 1, head + len(rows))


INSERT = f"insert into event ({FIELDS}, hash) values ({', '.join('?' * 13)})"


def last_hash(db: sqlite3.Connection) -> tuple[int, bytes]:
    """The version and the hash of the last event."""
    row = db.execute("select version, hash from event order by version desc limit 1").fetchone()
    return row or (0, NO_HASH)


def hash_of_event(before: bytes, values: Sequence[Any]) -> bytes:
    """The SHA-256 of an event and of the hash of the event before it.

    A changed, removed or inserted event therefore changes all hashes after it.
    """
    return hashlib.sha256(before + json.dumps(values).encode()).digest()


def _prediction(db: sqlite3.Connection, request: Request, write: Write) -> str | None:
    """What the model predicted for the node, as JSON; informed if its label was an input."""
    if not isinstance(write, Label) or (predicted := request.predicted.get(write.node)) is None:
        return None
    query = "select 1 from now where node = ? and label is not null"
    if not predicted.informed and db.execute(query, (write.node,)).fetchone():
        predicted = predicted.model_copy(update={"informed": True})
    return predicted.model_dump_json()


def _drawn(db: sqlite3.Connection, request: Request, write: Write) -> str:
    """How the queue chose the node for this actor, whose lease ends with the answer."""
    if not isinstance(write, Label | Retraction | Skip):
        return ""
    claim = (write.node, request.actor)
    row = db.execute("select drawn from claim where node = ? and actor = ?", claim).fetchone()
    if row is None:
        return ""
    db.execute("delete from claim where node = ? and actor = ?", claim)
    return str(row[0])
