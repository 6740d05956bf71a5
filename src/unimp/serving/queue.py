"""The next node to label, so that no two people get the same one.

A node that was given to somebody is leased to them for some minutes. One item in ten is random; the
others come from a ranking, such as that of `unimp suggest`.

A ranking prefers nodes on which the model is doubtful, so accuracy is measured without bias only on
a random sample of all nodes. For a random item, nodes are drawn until one of them is free. Each
drawn node belongs to the sample, also one that somebody has labeled already: without these, the
sample would lack the doubtful nodes that the ranking offered first.
"""

from __future__ import annotations

import random
import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from unimp.serving.people import find_actor
from unimp.serving.state import IN_FORCE
from unimp.serving.store import Store

LEASE = 600.0
"""Seconds for which a node belongs to whoever got it."""
ONE_IN = 10
"""One item of this many is drawn at random."""
MOST_LEASES = 20
"""Leases that one actor may hold; one more ends the oldest."""
TRIES = 100
"""Random draws for one item; if none of them is free, the item comes from the ranking."""
MOST_TRIED = 20_000
"""Nodes of the ranking, and of the population, that are tried: other requests wait meanwhile."""

_FREE = f"""
    select not exists (select 1 from now where node = :node and label is not null)
    and not exists (select 1 from claim where node = :node and until > :time)
    and not exists (
        select 1 from event where node = :node and kind = 'skip' and actor = :actor and {IN_FORCE})
"""


@dataclass(frozen=True)
class Item:
    """A node that is leased to an actor; drawn: "random" or "ranked"."""

    node: str
    drawn: str
    until: float


class Queue:
    """The queue of a store."""

    def __init__(self, store: Store, *, seed: int | None = None, lease: float = LEASE) -> None:
        """seed: of the random items; it is stored, and kept from then on."""
        self._store, self._lease = store, lease
        first = secrets.randbits(53) if seed is None else seed
        store.writer.submit(lambda db: _start(db, first)).result()

    def next(
        self, actor: str, ranking: Sequence[str], population: Sequence[str] | None = None
    ) -> Future[Item | None]:
        """Lease the next free node to an actor; None if none was found.

        A node is free if it has no label, nobody holds a lease on it, and the actor has not skipped
        it. ranking: nodes, the most useful first. population: the nodes
        that random items are drawn from: all nodes for which the run has no label, also those that
        events have labeled since; None: those of the ranking.
        """
        among = ranking if population is None else population
        return self._store.writer.submit(lambda db: self._next(db, actor, ranking, among))

    def release(self, actor: str, node: str) -> None:
        """End a lease without an answer."""
        self._store.writer.submit(
            lambda db: db.execute("delete from claim where node = ? and actor = ?", (node, actor))
        ).result()

    def held(self, actor: str) -> list[Item]:
        """The leases of an actor that have not expired, the oldest first."""
        query = "select node, drawn, until from claim where actor = ? and until > ? order by until"
        return [Item(*row) for row in self._store.reader.rows(query, (actor, self._store.clock()))]

    def _next(
        self, db: sqlite3.Connection, actor: str, ranking: Sequence[str], among: Sequence[str]
    ) -> Item | None:
        find_actor(db, actor).check("claim")
        time = self._store.clock()
        seed, number = _setting(db, "seed"), _setting(db, "items")
        block = random.Random(f"{seed} block {number // ONE_IN}")
        is_random = number % ONE_IN == block.randrange(ONE_IN)
        draw = random.Random(f"{seed} item {number}")
        draws = draw.choices(among, k=TRIES) if is_random and among else []
        # If nothing else is free, any node is better than none.
        for drawn, nodes in (
            ("random", draws),
            ("ranked", ranking[:MOST_TRIED]),
            ("ranked", _some(draw, among)),
        ):
            for node in nodes:
                if drawn == "random":
                    db.execute("insert or ignore into sample values (?, ?)", (node, number))
                values = {"node": node, "time": time, "actor": actor}
                if db.execute(_FREE, values).fetchone()[0]:
                    item = Item(node, drawn, time + self._lease)
                    self._claim(db, actor, item, number)
                    return item
        return None

    def _claim(self, db: sqlite3.Connection, actor: str, item: Item, number: int) -> None:
        db.execute(
            "insert or replace into claim values (?, ?, ?, ?)",
            (item.node, actor, item.until, item.drawn),
        )
        db.execute(
            "delete from claim where actor = ? and node not in "
            "(select node from claim where actor = ? order by until desc, rowid desc limit ?)",
            (actor, actor, MOST_LEASES),
        )
        db.execute("update setting set value = ? where name = 'items'", (number + 1,))


def _some(draw: random.Random, among: Sequence[str]) -> Iterator[str]:
    """Nodes in random order; they are drawn only when the first one is requested."""
    yield from draw.sample(among, min(len(among), MOST_TRIED))


def _start(db: sqlite3.Connection, seed: int) -> None:
    values = [("seed", seed), ("items", 0)]
    db.executemany("insert or ignore into setting values (?, ?)", values)


def _setting(db: sqlite3.Connection, name: str) -> int:
    return int(db.execute("select value from setting where name = ?", (name,)).fetchone()[0])
