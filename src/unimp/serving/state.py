"""Which events are in force, and the labels and edges that follow from them.

The rule:

1. An event is in force unless an undo that is in force names it.
2. A label or a retraction is also not in force if a withdrawal of its source that is in force comes
   after it.
3. The last event in force that labels or retracts a node decides its label. The last event in force
   that adds or removes an edge decides whether there is one. Where no event decides, the node or
   the edge is as the run has it.

An undo names an earlier event, so whether an event is in force depends on later events only. It
follows that:

- Undoing the current label of a node restores what was current before it.
- Undoing an earlier label of the node changes nothing now. If the later one is undone too, the
  earlier one does not come back. The order of the two undos does not matter.
- Undoing an undo brings its event back, unless another undo in force names the same event.
- Withdrawing a source removes its labels, and labels of other sources that they had replaced come
  back. Labels that the source gives later count again. Undoing the withdrawal brings the withdrawn
  labels back, except where a later event decides.

`replay` is this rule, from the last event to the first. `take_effect` updates the tables `now`,
`edge` and `undone` in the transaction that stores an event, and reads only what the event affects.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from unimp.serving.events import Label, NewEdge, RemovedEdge, Retraction, Undo, Withdrawal, Write

LABELS = ("label", "retract")
EDGES = ("edge", "edge-removed")
UNDOABLE = (*LABELS, *EDGES, "skip", "note", "undo", "withdraw")
"""A node cannot be removed, and another model is chosen by another event."""
LONGEST_CHAIN = 1_000
"""How often an undo may be undone in turn."""

IN_FORCE = """
    not exists (select 1 from undone where undone.version = event.version)
    and not (event.kind in ('label', 'retract') and exists (
        select 1 from event as later
        where later.kind = 'withdraw' and later.target = event.source
        and later.version > event.version
        and not exists (select 1 from undone where undone.version = later.version)))
"""
"""The rule in SQL, for a row of `event`."""

Row = tuple[int, str, str, Any, Any, Any]
"""The version, kind, source, node, target and undone version of an event."""


@dataclass
class Decided:
    """The version of the event that decides about each node and edge; 0 where none does."""

    undone: set[int] = field(default_factory=set)
    labels: dict[str, int] = field(default_factory=dict)
    edges: dict[tuple[str, str], int] = field(default_factory=dict)


def replay(rows: Iterable[Row]) -> Decided:
    """Apply the rule to all events up to some version; the rows are in descending order."""
    found = Decided()
    withdrawn: set[str] = set()
    for version, kind, source, node, target, undoes in rows:
        in_force = version not in found.undone and not (kind in LABELS and source in withdrawn)
        if kind in LABELS:
            found.labels[node] = found.labels.get(node) or (version if in_force else 0)
        elif kind in EDGES:
            pair = (node, target)
            found.edges[pair] = found.edges.get(pair) or (version if in_force else 0)
        elif kind == "undo" and in_force:
            found.undone.add(undoes)
        elif kind == "withdraw" and in_force:
            withdrawn.add(target)
    return found


def take_effect(db: sqlite3.Connection, version: int, write: Write) -> None:
    """Update the tables that follow from the events; `write` was just stored as `version`."""
    match write:
        case Label() | Retraction():
            _decide_label(db, write.node, version)
        case NewEdge() | RemovedEdge():
            _decide_edge(db, write.node, write.target, version)
        case Undo():
            _undo(db, write.undoes, version)
        case Withdrawal():
            query = "select node from now where source = ? and version > 0"
            for (node,) in db.execute(query, (write.withdrawn,)).fetchall():
                _decide_label(db, node, version)
        case _:
            pass


def _undo(db: sqlite3.Connection, named: int, version: int) -> None:
    """Put the event `named` out of force, and follow a chain of undos to what it changes."""
    to_force = False
    while True:
        if not to_force:
            added = db.execute("insert or ignore into undone values (?)", (named,)).rowcount
            if not added:
                return  # another undo in force names it as well
        else:
            others = (
                "select 1 from event where undoes = ? and not exists "
                "(select 1 from undone where undone.version = event.version)"
            )
            if db.execute(others, (named,)).fetchone():
                return
            db.execute("delete from undone where version = ?", (named,))
        query = "select kind, node, target, undoes from event where version = ?"
        kind, node, target, undoes = db.execute(query, (named,)).fetchone()
        if kind != "undo":
            break
        named, to_force = undoes, not to_force
    if kind in LABELS:
        _decide_label(db, node, version)
    elif kind in EDGES:
        _decide_edge(db, node, target, version)
    elif kind == "withdraw":
        query = (
            "select distinct node from event "
            "where source = ? and kind in ('label', 'retract') and version < ?"
        )
        for (one,) in db.execute(query, (target, named)).fetchall():
            _decide_label(db, one, version)


def chain_length(db: sqlite3.Connection, version: int) -> int:
    """How many undos follow one another from this event down to one that is not an undo."""
    length = 0
    while length <= LONGEST_CHAIN:
        row = db.execute("select undoes from event where version = ?", (version,)).fetchone()
        if row is None or row[0] is None:
            break
        version, length = row[0], length + 1
    return length


def _decide_label(db: sqlite3.Connection, node: str, changed: int) -> None:
    """Write the row of a node in `now`, unless the event that decides is the same as before."""
    query = f"""
        select version, actor, source, kind, body from event
        where node = ? and kind in ('label', 'retract') and {IN_FORCE}
        order by version desc limit 1"""
    row = db.execute(query, (node,)).fetchone()
    version, actor, source, kind, body = row or (0, None, None, "", "")
    label = label_in(body) if kind == "label" else None
    db.execute(
        "insert into now values (?, ?, ?, ?, ?, ?) on conflict (node) do update set "
        "label = excluded.label, version = excluded.version, actor = excluded.actor, "
        "source = excluded.source, changed = excluded.changed "
        "where now.version <> excluded.version",
        (node, label, version, actor, source, changed),
    )


def label_in(body: str) -> str:
    """The label in the body of a label event, as JSON; it is the only value in there."""
    return body.removeprefix('{"label":').removesuffix("}")


def _decide_edge(db: sqlite3.Connection, node: str, target: str, changed: int) -> None:
    query = f"""
        select version from event
        where node = ? and target = ? and kind in ('edge', 'edge-removed') and {IN_FORCE}
        order by version desc limit 1"""
    row = db.execute(query, (node, target)).fetchone()
    db.execute(
        "insert into edge values (?, ?, ?, ?) on conflict (node, target) do update set "
        "version = excluded.version, changed = excluded.changed "
        "where edge.version <> excluded.version",
        (node, target, row[0] if row else 0, changed),
    )
