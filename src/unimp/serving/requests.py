"""Requests, and their checks against everything that is stored."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field

from unimp.errors import (
    SHOWN_PROBLEMS,
    ConflictError,
    InvalidWriteError,
    KeyReusedError,
    nearest_names,
)
from unimp.serving.events import (
    COLUMNS,
    Label,
    ModelChange,
    NewEdge,
    NewNode,
    Predicted,
    RemovedEdge,
    Retraction,
    Undo,
    Withdrawal,
    Write,
)
from unimp.serving.state import LONGEST_CHAIN, UNDOABLE, chain_length

NOT_UNDOABLE = {
    "node": "remove the edges and the label of the node instead",
    "model": "write another model event with the earlier generation instead",
}


@dataclass(frozen=True)
class Vocabulary:
    """The ids and classes that a run knows.

    nodes, classes: None accepts every name. several: whether a label is a set of names, as in
    binary tasks.
    """

    nodes: Container[str] | None = None
    classes: Collection[str] | None = None
    several: bool = False


@dataclass(frozen=True)
class Request:
    """What an actor wants to write, all or nothing.

    key: the idempotency key; a request that is repeated with its key is stored once. if_match: the
    expected version of the label of some nodes, 0 for none. predicted: what the model predicts for
    nodes that get a label. made_from: the version of the labels that the request is based on; no
    label of its nodes may have changed since.
    """

    actor: str
    writes: tuple[Write, ...]
    key: str | None = None
    if_match: Mapping[str, int] = field(default_factory=dict)
    predicted: Mapping[str, Predicted] = field(default_factory=dict)
    made_from: int | None = None


@dataclass(frozen=True)
class Receipt:
    """The versions of the events of a request; repeated: they were stored earlier, by its key."""

    first: int
    last: int
    repeated: bool = False

    @property
    def version(self) -> int:
        """The version that contains the whole request."""
        return self.last


Stored = tuple[str, str, str | None, str | None, str, int | None]
"""The source, kind, node, target, body and undone version of an event."""


def stored_form(request: Request, write: Write) -> Stored:
    """The values of a write as the table `event` stores them."""
    named = {column: getattr(write, name) for name, column in COLUMNS[write.kind].items()}
    node, target, undoes = (named.get(column) for column in ("node", "target", "undoes"))
    return write.source or request.actor, write.kind, node, target, write.body(), undoes


def repeated(db: sqlite3.Connection, request: Request, given: Sequence[Stored]) -> Receipt | None:
    """The receipt of an earlier request with the same key; refuse the key of another request.

    given: the writes of the request in their stored form.
    """
    if request.key is None:
        return None
    found = db.execute(
        "select version, source, kind, node, target, body, undoes from event "
        "where actor = ? and key = ? order by version",
        (request.actor, request.key),
    ).fetchall()
    if not found:
        return None
    if [row[1:] for row in found] != list(given):
        raise KeyReusedError(
            f"the idempotency key {request.key!r} belongs to another request, which was stored as "
            f"version {found[-1][0]}. Use a new key."
        )
    return Receipt(found[0][0], found[-1][0], repeated=True)


def check_versions(db: sqlite3.Connection, expected: Mapping[str, int]) -> None:
    """Refuse a request if the label of a node is not the one that the client has seen."""
    found: dict[str, int] = {}
    words = []
    for node, version in expected.items():
        row = db.execute("select version, actor from now where node = ?", (node,)).fetchone()
        current, actor = row or (0, None)
        if current != version:
            found[node] = current
            by = f", by {actor}" if actor else ""
            words.append(f"the label of {node!r} has the version {current}{by}, not {version}")
    if found:
        raise ConflictError(f"{_shortened(words)}. Read the node again, then decide.", found)


def check_unchanged(db: sqlite3.Connection, request: Request, head: int) -> None:
    """Refuse a request if the label of one of its nodes changed since the request was made."""
    since = request.made_from
    if since is None:
        return
    if since > head:
        raise ConflictError(
            f"version {since} is not stored; the last one is {head}. Export the labels again.", {}
        )
    nodes = {w.node for w in request.writes if isinstance(w, Label | Retraction)}
    query = "select node, version, actor from now where changed > ? order by changed"
    rows = [row for row in db.execute(query, (since,)) if row[0] in nodes]
    if rows:
        words = [f"the label of {node!r}" + (f", by {by}" if by else "") for node, _, by in rows]
        raise ConflictError(
            f"nothing was written, because these labels changed after version {since}: "
            f"{_shortened(words)}. Export the labels again, then decide.",
            {node: version for node, version, _ in rows},
        )


def _shortened(words: Sequence[str]) -> str:
    more = len(words) - SHOWN_PROBLEMS
    return "; ".join(words[:SHOWN_PROBLEMS]) + (f"; and {more:,} more" if more > 0 else "")


def undoes_others(db: sqlite3.Connection, request: Request) -> bool:
    """Return whether a request undoes an event of another actor."""
    for write in request.writes:
        if isinstance(write, Undo):
            query = "select actor from event where version = ?"
            row = db.execute(query, (write.undoes,)).fetchone()
            if row is not None and row[0] != request.actor:
                return True
    return False


class Check:
    """The check of the writes of one request."""

    def __init__(self, db: sqlite3.Connection, vocabulary: Vocabulary) -> None:
        self._db, self._vocabulary = db, vocabulary
        self._added: set[str] = set()
        self._labels: dict[str, str | tuple[str, ...] | None] = {}  # None: retracted
        self._undone: set[int] = set()
        self._problems: list[tuple[int, str]] = []

    def run(self, writes: tuple[Write, ...]) -> None:
        """Refuse writes that do not fit the graph, the classes or earlier events; list them all."""
        for place, write in enumerate(writes):
            if what := self._problem(write):
                self._problems.append((place, what))
        if self._problems:
            raise InvalidWriteError(self._problems)

    def _problem(self, write: Write) -> str:
        """Describe what is wrong with a write; empty if nothing is."""
        match write:
            case Undo():
                return self._undo_problem(write.undoes)
            case Withdrawal():
                query = "select 1 from event where source = ? and kind in ('label', 'retract')"
                if not self._db.execute(query, (write.withdrawn,)).fetchone():
                    return f"no label came from the source {write.withdrawn!r}"
            case ModelChange():
                pass
            case NewNode():
                known = self._vocabulary.nodes
                if self._was_added(write.node) or (known is not None and write.node in known):
                    return f"there is a node {write.node!r} already; choose another id"
                self._added.add(write.node)
            case NewEdge() | RemovedEdge():
                return self._unknown(write.node) or self._unknown(write.target)
            case Label():
                return (
                    self._unknown(write.node)
                    or self._label_problem(write)
                    or self._repeated(write.node, write.label)
                )
            case Retraction():
                return self._unknown(write.node) or self._repeated(write.node, None)
            case _:
                return self._unknown(write.node)
        return ""

    def _was_added(self, node: str) -> bool:
        query = "select 1 from event where node = ? and kind = 'node'"
        return node in self._added or self._db.execute(query, (node,)).fetchone() is not None

    def _unknown(self, node: str) -> str:
        known = self._vocabulary.nodes
        if known is None or node in known or self._was_added(node):
            return ""
        return f"there is no node {node!r}; add it first"

    def _label_problem(self, write: Label) -> str:
        several, classes = self._vocabulary.several, self._vocabulary.classes
        if several != isinstance(write.label, tuple):
            form = "a list of names" if several else "one name"
            return f"the label of {write.node!r} is not {form}, as in this task"
        for name in write.label if isinstance(write.label, tuple) else (write.label,):
            if classes is not None and name not in classes:
                # Searching similar names is slow, so only the problems that are shown get a hint.
                shown = len(self._problems) < SHOWN_PROBLEMS
                return f"there is no class {name!r}" + (
                    f"; {nearest_names(name, classes)}" if shown else ""
                )
        return ""

    def _repeated(self, node: str, label: str | tuple[str, ...] | None) -> str:
        if self._labels.setdefault(node, label) != label:
            return f"the node {node!r} has two different decisions in the same request; keep one"
        return ""

    def _undo_problem(self, version: int) -> str:
        query = "select kind from event where version = ?"
        row = self._db.execute(query, (version,)).fetchone()
        if row is None:
            return f"there is no event {version}"
        if row[0] not in UNDOABLE:
            return f"event {version} cannot be undone; {NOT_UNDOABLE[row[0]]}"
        by = self._db.execute(
            "select version from event where undoes = ? and not exists "
            "(select 1 from undone where undone.version = event.version)",
            (version,),
        ).fetchone()
        if by is not None:
            return f"event {version} was undone by event {by[0]}; undo that one to bring it back"
        if version in self._undone:
            return f"event {version} is undone twice in the same request"
        if chain_length(self._db, version) >= LONGEST_CHAIN:
            return f"event {version} is the last of {LONGEST_CHAIN:,} undos; label the node again"
        self._undone.add(version)
        return ""
