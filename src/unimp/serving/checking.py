"""Check a database, rebuild what follows from its events, and back it up while it is written."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from unimp.data.files import special_kind, sync_folder
from unimp.errors import OutputError, ServiceError, UnimpError
from unimp.serving.reader import FIELDS, Reader, event_of
from unimp.serving.state import Decided, label_in, replay
from unimp.serving.store import NO_HASH, Store, hash_of_event

MOST_PROBLEMS = 100
_ROWS = "select version, kind, source, node, target, undoes from event order by version desc"


def check(reader: Reader) -> list[str]:
    """List everything that is wrong with a database; empty if nothing is.

    The file is intact according to SQLite, versions have no gaps, each event is valid and has its
    hash, and the tables of labels and edges are those that follow from the events.
    """
    with reader.state() as db:
        problems = [
            f"the file is damaged: {row[0]}"
            for row in db.execute(f"pragma integrity_check({MOST_PROBLEMS})")
            if row[0] != "ok"
        ]
        problems += [
            f"row {row} of {table} names a row of {other} that does not exist"
            for table, row, other, _ in db.execute("pragma foreign_key_check")
        ]
        problems += _event_problems(db)
        if not problems:  # the rest follows from valid events
            problems += _derived_problems(db)
    return problems[:MOST_PROBLEMS]


def _event_problems(db: sqlite3.Connection) -> Iterator[str]:
    before = NO_HASH
    rows = db.execute(f"select {FIELDS}, hash from event order by version")
    for expected, (*values, stored) in enumerate(rows, 1):
        version = values[0]
        if version != expected:
            yield f"events {expected} to {version - 1} are missing"
            return
        before = hash_of_event(before, values)
        if before != stored:
            yield f"event {version} or one before it was changed: its hash does not match"
            return
        try:
            event = event_of(values)
            if event.write.kind == "undo" and event.write.undoes >= version:
                yield f"event {version} undoes a later event"
        except UnimpError as error:
            yield f"event {version} is not valid: {error}"
        except ValueError as error:  # of pydantic
            yield f"event {version} is not valid: {str(error).splitlines()[0]}"


def _derived_problems(db: sqlite3.Connection) -> Iterator[str]:
    right = replay(db.execute(_ROWS))
    stored = {row[0]: row[1:] for row in db.execute("select * from now")}
    expected = {row[0]: row[1:] for row in _now_rows(db, right)}
    (head,) = db.execute("select coalesce(max(version), 0) from event").fetchone()
    for node in sorted(stored.keys() | expected.keys()):
        *label, changed = stored.get(node, (None, None, None, None, None))
        if tuple(label) != expected.get(node):
            yield f"the label of {node!r} is not the one that follows from the events"
        elif not label[1] <= changed <= head:
            yield f"the label of {node!r} changed at version {changed}, which is impossible"
    edges = {(row[0], row[1]): row[2] for row in db.execute("select * from edge")}
    for pair in sorted(edges.keys() | right.edges.keys()):
        if edges.get(pair) != right.edges.get(pair):
            yield f"the edge {pair!r} is not the one that follows from the events"
    undone = {row[0] for row in db.execute("select version from undone")}
    for version in sorted(undone ^ right.undone):
        yield f"event {version} is {'not ' if version in undone else ''}undone by another event"


def _now_rows(
    db: sqlite3.Connection, decided: Decided
) -> Iterator[tuple[str, str | None, int, str | None, str | None]]:
    """The rows of `now` without the column `changed`."""
    query = "select kind, body, actor, source from event where version = ?"
    for node, version in decided.labels.items():
        kind, body, actor, source = db.execute(query, (version,)).fetchone() or ("",) * 4
        label = label_in(body) if kind == "label" else None
        yield node, label, version, actor or None, source or None


def rebuild(store: Store) -> None:
    """Compute labels, edges and undone events again from all events, and store them.

    Everything counts as changed by the last event, so restart processes that follow the changes.
    """

    def job(db: sqlite3.Connection) -> None:
        right = replay(db.execute(_ROWS))
        (head,) = db.execute("select coalesce(max(version), 0) from event").fetchone()
        rows = [(*row, head) for row in _now_rows(db, right)]
        for table in ("now", "edge", "undone"):
            db.execute(f"delete from {table}")
        db.executemany("insert into now values (?, ?, ?, ?, ?, ?)", rows)
        edges = [(*pair, version, head) for pair, version in right.edges.items()]
        db.executemany("insert into edge values (?, ?, ?, ?)", edges)
        db.executemany("insert into undone values (?)", [(one,) for one in right.undone])

    store.writer.submit(job).result()


def backup(reader: Reader, path: Path) -> int:
    """Copy the database to a new file, also while it is written; return the version of the copy.

    The copy is one consistent state in one file. To restore it, stop the service, remove labels.db,
    labels.db-wal and labels.db-shm from the run folder, and copy the file there as labels.db.
    """
    if path.exists() or special_kind(path):
        raise OutputError(f"{path} exists already; name another file for the backup.")
    if not path.parent.is_dir():
        raise OutputError(f"there is no folder {path.parent}; create it first.")
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        with closing(sqlite3.connect(name, isolation_level=None)) as copy:
            with reader.state() as db:
                db.backup(copy)
            # The copy consists of one file, and the mode is set again when it is opened.
            copy.execute("pragma journal_mode = delete")
        with Path(name).open("rb+") as file:
            os.fsync(file.fileno())
        with Reader(Path(name)) as written:
            version = written.head()
        Path(name).replace(path)
        sync_folder(path.parent)
    except (sqlite3.Error, OSError) as error:
        raise ServiceError(
            f"{path} could not be written ({error}). Check the disk, or choose another path."
        ) from error
    finally:
        Path(name).unlink(missing_ok=True)
    return version
