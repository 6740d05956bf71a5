"""Where a recorded step finds its batch: tensors that stay, into which every batch is put.

A recording works on addresses and sizes. A full batch keeps both: only its mask is copied. Parts of
a graph are of nearly the same size, and are put into a place with a little room to spare:

    nodes     rows left over have no label, and no edge to or from a node of the part
    edges     those left over join the last row to itself
    hidden    what is left over names the last row, whose label is unknown and does not count

So a model that takes rows apart, but for edges, gives the nodes of a part what it would give them
without the padding.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from unimp.graph.hop import PIECE, Hop, Schedule, Transpose
from unimp.tasks.labels import UNLABELED
from unimp.training.batching import Batch

MOST_EDGES = 4_000_000
"""The most edges of a part that is given a place. A larger one keeps a GPU busy for longer than its
kernels take to be asked for; recording it would save nothing and hold its memory."""


class Place(Protocol):
    """What a recording works on."""

    def put(self, batch: Batch) -> bool:
        """Make a batch the one in place; False: it does not fit, and nothing is changed."""
        ...

    def batch(self) -> Batch:
        """The batch in place."""
        ...


def place_for(batch: Batch, before: Place | None, padding: int) -> Place:
    """A place for a batch that did not fit the one before; None: there was none.

    A batch of other edges than the last one is a part, if all of its layers run on these edges.
    `padding` is the number of a node that is not in the graph, whose label is unknown.
    """
    if before is None or not is_part(batch) or batch.hops[0].num_edges > MOST_EDGES:
        return FixedPlace(batch)
    room = Room.around(batch)
    if isinstance(before, PartPlace) and before.is_like(batch):
        room = room.or_more(before.room)
    return PartPlace(batch, room, padding)


def is_part(batch: Batch) -> bool:
    """Whether all layers run on the same edges, among seeds alone, and features are dense."""
    hop = batch.hops[0] if batch.hops else None
    return (
        hop is not None
        and all(other is hop for other in batch.hops)
        and hop.num_sources == hop.num_targets == batch.num_seeds
        and (batch.x is None or isinstance(batch.x, Tensor))
    )


class FixedPlace:
    """The place of a batch of which only the mask changes."""

    def __init__(self, batch: Batch) -> None:
        self._batch, self._is_copied = batch, False

    def put(self, batch: Batch) -> bool:
        there = self._batch
        fits = (
            batch.num_seeds == there.num_seeds
            and batch.x is there.x
            and len(batch.hops) == len(there.hops)
            and all(hop is other for hop, other in zip(batch.hops, there.hops, strict=True))
            and batch.observed.shape == there.observed.shape
            and batch.hidden.shape == there.hidden.shape
        )
        if not fits:
            return False
        if not self._is_copied:  # what came first is not ours to write into
            self._is_copied = True
            self._batch = replace(
                there, observed=batch.observed.clone(), hidden=batch.hidden.clone()
            )
        self._batch.observed.copy_(batch.observed)
        self._batch.hidden.copy_(batch.hidden)
        return True

    def batch(self) -> Batch:
        return self._batch


class Room(NamedTuple):
    """What a batch takes of a place, or what a place has."""

    nodes: int
    edges: int
    hidden: int
    hubs: int  # by target
    by_source_hubs: int

    @classmethod
    def of(cls, batch: Batch) -> Room:
        """What a part takes; at least one node is padding."""
        hop = batch.hops[0]
        return cls(
            hop.num_sources + 1,
            hop.num_edges,
            batch.hidden.numel(),
            len(hop.schedule.hubs),
            len(hop.transpose.schedule.hubs),
        )

    @classmethod
    def around(cls, batch: Batch) -> Room:
        """Enough for others like it: parts drawn at random differ by a few in a hundred."""
        nodes, edges, hidden, *hubs = cls.of(batch)
        return cls(
            nodes + 1,
            int(1.05 * edges) + PIECE,
            int(1.05 * hidden) + 64,
            *(2 * count + 8 if count else 0 for count in hubs),
        )

    def or_more(self, other: Room) -> Room:
        return Room(*map(max, self, other))

    def holds(self, other: Room) -> bool:
        return all(there >= wanted for there, wanted in zip(self, other, strict=True))


class PartPlace:
    """The place of parts of a graph, one after the other."""

    def __init__(self, batch: Batch, room: Room, padding: int) -> None:
        hop = batch.hops[0]
        self.room, self._padding, self._num_layers = room, padding, len(batch.hops)
        self._kind = _kind(batch)
        self._nodes = _rows(batch.nodes, room.nodes)
        self._x = None if batch.x is None else _rows(_dense(batch.x), room.nodes)
        self._observed = _rows(batch.observed, room.nodes)
        self._hidden = _rows(batch.hidden, room.hidden)
        self._edge_attr = None if hop.edge_attr is None else _rows(hop.edge_attr, room.edges)
        self._by_target = _Entries(hop.indptr, hop.source, room.nodes, room.edges, room.hubs)
        self._target = _rows(hop.target, room.edges)
        by_source = hop.transpose
        self._by_source = _Entries(
            by_source.indptr, by_source.target, room.nodes, room.edges, room.by_source_hubs
        )
        self._slot = _rows(by_source.slot, room.edges)
        self._slots = torch.arange(room.edges, dtype=self._slot.dtype, device=self._slot.device)
        self.put(batch)

    def is_like(self, batch: Batch) -> bool:
        """Whether a batch is a part like those here, whatever its size."""
        return is_part(batch) and _kind(batch) == self._kind

    def put(self, batch: Batch) -> bool:
        if not self.is_like(batch) or not self.room.holds(Room.of(batch)):
            return False
        hop, last = batch.hops[0], self.room.nodes - 1
        _fill(self._nodes, batch.nodes, self._padding)
        if self._x is not None and batch.x is not None:
            _fill(self._x, _dense(batch.x), 0.0)
        _fill(self._observed, batch.observed, UNLABELED)
        _fill(self._hidden, batch.hidden, last)
        if self._edge_attr is not None and hop.edge_attr is not None:
            _fill(self._edge_attr, hop.edge_attr, 0.0)
        self._by_target.put(hop.indptr, hop.source, hop.schedule)
        _fill(self._target, hop.target, last)
        by_source = hop.transpose
        self._by_source.put(by_source.indptr, by_source.target, by_source.schedule)
        _fill(self._slot, by_source.slot, self._slots[hop.num_edges :])
        return True

    def batch(self) -> Batch:
        """The part in place; a hop of its own each time, so that what a model derives from the
        edges is derived again, and is part of a recording."""
        by_source = Transpose(self._by_source.indptr, self._by_source.ends, self._slot)
        by_source.__dict__["schedule"] = self._by_source.schedule
        hop = Hop(
            self._by_target.indptr, self._by_target.ends, self.room.nodes, edge_attr=self._edge_attr
        )
        hop.__dict__.update(
            target=self._target, transpose=by_source, schedule=self._by_target.schedule
        )
        hops = (hop,) * self._num_layers
        return Batch(self._nodes, self.room.nodes, self._x, self._observed, self._hidden, hops)


class _Entries:
    """The place of a hop's edges, grouped by one of their ends."""

    def __init__(self, indptr: Tensor, ends: Tensor, rows: int, edges: int, hubs: int) -> None:
        self.indptr, self.ends = _rows(indptr, rows + 1), _rows(ends, edges)
        # As many pieces as so many edges can make.
        pieces = indptr.new_zeros((rows + edges // PIECE, 4))
        self.schedule = Schedule(pieces, indptr.new_zeros((hubs, 3)))
        # A row without entries is a piece too; the last row needs none of those it is given.
        self._empty = indptr.new_zeros((len(pieces), 4))
        self._empty[:, 0] = torch.arange(len(pieces), device=indptr.device).clamp(max=rows - 1)
        self._empty[:, 3] = -1
        self._no_hub = indptr.new_tensor([rows - 1, 0, 0])

    def put(self, indptr: Tensor, ends: Tensor, schedule: Schedule) -> None:
        rows = len(indptr) - 1
        _fill(self.indptr, indptr, len(ends))
        self.indptr[-1:] = len(self.ends)
        _fill(self.ends, ends, len(self.indptr) - 2)
        left = len(self.schedule.pieces) - len(schedule.pieces)
        _fill(self.schedule.pieces, schedule.pieces, self._empty[rows:][:left])
        _fill(self.schedule.hubs, schedule.hubs, self._no_hub)


def _rows(like: Tensor, count: int) -> Tensor:
    return like.new_empty((count, *like.shape[1:]))


def _fill(place: Tensor, rows: Tensor, rest: Tensor | float) -> None:
    place[: len(rows)] = rows
    place[len(rows) :] = rest


def _dense(x: object) -> Tensor:
    assert isinstance(x, Tensor)  # `is_part` sees to that
    return x


def _kind(batch: Batch) -> tuple[object, ...]:
    """What parts of one place have in common beside their room: dtypes and lengths of rows."""
    hop = batch.hops[0]
    x = None if batch.x is None else _dense(batch.x)
    rows = (x, batch.observed, batch.hidden, batch.nodes, hop.source, hop.edge_attr)
    of_rows = (None if r is None else (r.dtype, r.shape[1:]) for r in rows)
    return len(batch.hops), *of_rows
