"""Read events, labels and changes; also in another process, while one process writes."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from unimp.config.run_files import LABELS
from unimp.serving.database import open_for_reading
from unimp.serving.events import (
    COLUMNS,
    WRITE,
    Event,
    NewEdge,
    NewNode,
    Predicted,
    label_of,
)
from unimp.serving.state import IN_FORCE

MOST_EVENTS = 10_000
"""Events that are returned at once."""
FIELDS = "version, at, actor, source, kind, node, target, body, undoes, key, predicted, drawn"


@dataclass(frozen=True)
class Current:
    """The label of a node now.

    label: None if it was retracted (version > 0), or if no event decides (version 0) and the node
    is as the run has it. version: the event that decides, for If-Match. changed: the event that
    made it decide, such as an undo of a later one.
    """

    node: str
    label: str | tuple[str, ...] | None
    version: int
    actor: str | None
    source: str | None
    changed: int


@dataclass(frozen=True)
class EdgeNow:
    """An edge that events added or removed.

    present: None if no event in force decides, so that the edge is as the run has it.
    """

    node: str
    target: str
    present: bool | None
    write: NewEdge | None
    version: int
    changed: int


@dataclass(frozen=True)
class Changes:
    """Everything that is different at `version` from an earlier version."""

    version: int
    labels: tuple[Current, ...]
    nodes: tuple[NewNode, ...]
    edges: tuple[EdgeNow, ...]


class Reader:
    """A read-only connection to the database of a run folder, or to a backup.

    Threads may share it. Each method reads one consistent state.
    """

    def __init__(self, path: Path) -> None:
        """path: a run folder, or the file itself."""
        self.path = path / LABELS if path.is_dir() else path
        self._db = open_for_reading(self.path)
        self._lock = threading.RLock()

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @contextmanager
    def state(self) -> Iterator[sqlite3.Connection]:
        """One consistent state, for several queries."""
        with self._lock:
            nested = self._db.in_transaction
            if not nested:
                self._db.execute("begin")
            try:
                yield self._db
            finally:
                if not nested:
                    self._db.execute("rollback")

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """All rows of a query."""
        with self.state() as db:
            return db.execute(query, values).fetchall()

    def head(self) -> int:
        """The version of the last event; 0 without events."""
        return int(self.rows("select coalesce(max(version), 0) from event")[0][0])

    def event(self, version: int) -> Event | None:
        """The event with this version; None without one."""
        rows = self.rows(f"select {FIELDS} from event where version = ?", (version,))
        return event_of(rows[0]) if rows else None

    def events(self, since: int = 0, most: int = MOST_EVENTS) -> list[Event]:
        """The events after a version, in order, at most `most` of them."""
        query = f"select {FIELDS} from event where version > ? order by version limit ?"
        return [event_of(row) for row in self.rows(query, (since, most))]

    def history(self, node: str) -> list[tuple[Event, bool]]:
        """The events about a node in order, and whether each is in force."""
        about = "node = ? or (target = ? and kind in ('edge', 'edge-removed'))"
        query = f"select {FIELDS}, {IN_FORCE} from event where {about} order by version"
        return [(event_of(row[:-1]), bool(row[-1])) for row in self.rows(query, (node, node))]

    def label(self, node: str) -> Current:
        """The label of one node."""
        found = self.rows("select * from now where node = ?", (node,))
        return _current(found[0]) if found else Current(node, None, 0, None, None, 0)

    def labels(self) -> dict[str, Current]:
        """All nodes that events labeled and whose label is in force."""
        rows = self.rows("select * from now where label is not null order by node")
        return {row[0]: _current(row) for row in rows}

    def changes(self, since: int = 0) -> Changes:
        """What to apply to the state at a version to get the state now.

        Each node and each edge occurs once, with its last value, however many events changed it.
        """
        with self.state() as db:
            labels = db.execute("select * from now where changed > ? order by changed", (since,))
            nodes = db.execute(
                f"select {FIELDS} from event where kind = 'node' and version > ? order by version",
                (since,),
            )
            edges = db.execute(
                "select edge.node, edge.target, edge.version, edge.changed, kind, source, body "
                "from edge left join event on event.version = edge.version "
                "where changed > ? order by changed",
                (since,),
            )
            return Changes(
                self.head(),
                tuple(map(_current, labels)),
                tuple(_new_node(event_of(row)) for row in nodes),
                tuple(map(_edge_now, edges)),
            )


def event_of(row: Sequence[Any]) -> Event:
    """The event in a row of FIELDS."""
    version, at, actor, source, kind, node, target, body, undoes, key, predicted, drawn = row
    columns = {"node": node, "target": target, "undoes": undoes}
    return Event(
        version,
        at,
        actor,
        source,
        _write_of(kind, source, body, columns),
        key,
        None if predicted is None else Predicted.model_validate_json(predicted),
        drawn,
    )


def _write_of(kind: str, source: str, body: str, columns: dict[str, Any]) -> Any:
    named = {field: columns[column] for field, column in COLUMNS[kind].items()}
    return WRITE.validate_python({"kind": kind, "source": source, **named, **json.loads(body)})


def _current(row: Sequence[Any]) -> Current:
    node, label, version, actor, source, changed = row
    return Current(node, label_of(label), version, actor, source, changed)


def _new_node(event: Event) -> NewNode:
    assert isinstance(event.write, NewNode)
    return event.write


def _edge_now(row: Sequence[Any]) -> EdgeNow:
    node, target, version, changed, kind, source, body = row
    write = None
    if kind == "edge":
        write = _write_of(kind, source, body, {"node": node, "target": target})
    return EdgeNow(node, target, None if kind is None else kind == "edge", write, version, changed)
