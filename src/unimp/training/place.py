"""Static memory for a recorded step: tensors at fixed addresses into which each batch is copied.

A CUDA graph works on fixed addresses and sizes. A full batch keeps both, so only its mask and the
labels that were propagated under the mask are copied. The parts of a random partition have nearly
the same size, so they are copied into tensors with some spare room. The spare room is padding:

    nodes     unused rows have no label and no edge to or from a node of the part
    edges     unused edges connect the last row to itself
    hidden    unused entries name the last row, whose label is unknown and does not count

A model that processes rows independently, apart from edges, therefore gives the nodes of a part
the same result with and without padding.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from unimp.graph.features import join_features, split_features
from unimp.graph.hop import PIECE, Derived, Hop, Schedule, Transpose
from unimp.ops.recording import MOST_EDGES
from unimp.tasks.labels import UNLABELED
from unimp.training.batch import Batch


def place_for(batch: Batch, before: Place | None, padding: int | None) -> Place:
    """Create a place for a batch that did not fit `before` (None: the first batch).

    A batch with other edges than the last one is a part, if all of its layers run on the same
    edges. `padding` is the number of an extra node whose label is unknown (None: a place must not
    contain padding).
    """
    if before is None or padding is None:
        return FixedPlace(batch)
    if not is_part(batch) or batch.hops[0].num_edges > MOST_EDGES:
        return FixedPlace(batch)
    room = Room.around(batch)
    if isinstance(before, PartPlace) and before.is_like(batch):
        room = room.or_more(before.room)
    return PartPlace(batch, room, padding)


def is_part(batch: Batch) -> bool:
    """Whether all layers run on the same edges among the seeds, and features are dense."""
    x, _ = split_features(batch.x)
    hop = batch.hops[0] if batch.hops else None
    return (
        hop is not None
        and all(other is hop for other in batch.hops)
        and hop.num_sources == hop.num_targets == batch.num_seeds
        and (x is None or isinstance(x, Tensor))
    )


class FixedPlace:
    """A place for batches that differ only in their mask."""

    def __init__(self, batch: Batch) -> None:
        self._batch, self._is_copied = batch, False

    def put(self, batch: Batch) -> bool:
        """Copy a batch into these tensors; return False and change nothing if it does not fit."""
        stored = self._batch
        x, propagated = split_features(batch.x)
        stored_x, stored_propagated = split_features(stored.x)
        fits = (
            batch.num_seeds == stored.num_seeds
            and x is stored_x
            and (propagated is None) == (stored_propagated is None)
            and len(batch.hops) == len(stored.hops)
            and all(hop is other for hop, other in zip(batch.hops, stored.hops, strict=True))
            and batch.observed.shape == stored.observed.shape
            and batch.hidden.shape == stored.hidden.shape
        )
        if not fits:
            return False
        if not self._is_copied:  # the tensors of the first batch belong to its creator
            self._is_copied = True
            if stored_propagated is not None:
                stored_propagated = stored_propagated.clone()
            self._batch = replace(
                stored,
                x=join_features(x, stored_propagated),
                observed=batch.observed.clone(),
                hidden=batch.hidden.clone(),
            )
        if propagated is not None and stored_propagated is not None:
            stored_propagated.copy_(propagated)
        self._batch.observed.copy_(batch.observed)
        self._batch.hidden.copy_(batch.hidden)
        return True

    def batch(self) -> Batch:
        """The batch that is stored in these tensors."""
        return self._batch


class Room(NamedTuple):
    """The sizes that a batch needs, or that a place has."""

    nodes: int
    edges: int
    hidden: int
    hubs: int  # by target
    source_hubs: int  # by source

    @classmethod
    def of(cls, batch: Batch) -> Room:
        """The sizes that a part needs, including one node of padding."""
        hop = batch.hops[0]
        return cls(
            hop.num_sources + 1,
            hop.num_edges,
            batch.hidden.numel(),
            len(hop.schedule.hubs),
            len(hop.source_schedule.hubs),
        )

    @classmethod
    def around(cls, batch: Batch) -> Room:
        """Sizes with spare room for similar parts: random parts differ by a few percent."""
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
        return all(size >= needed for size, needed in zip(self, other, strict=True))


class PartPlace:
    """A place for parts of a graph, one at a time."""

    def __init__(self, batch: Batch, room: Room, padding: int) -> None:
        hop = batch.hops[0]
        self.room, self._padding, self._num_layers = room, padding, len(batch.hops)
        self._kind = _kind(batch)
        self._nodes = _rows(batch.nodes, room.nodes)
        self._x, self._propagated = (
            None if rows is None else _rows(rows, room.nodes) for rows in _dense(batch)
        )
        self._observed = _rows(batch.observed, room.nodes)
        self._hidden = _rows(batch.hidden, room.hidden)
        self._edge_attr = None if hop.edge_attr is None else _rows(hop.edge_attr, room.edges)
        self._by_target = _Entries(hop.indptr, hop.source, room.nodes, room.edges, room.hubs)
        self._target = _rows(hop.target, room.edges)
        by_source = hop.transpose
        self._by_source = _Entries(
            by_source.indptr, by_source.target, room.nodes, room.edges, room.source_hubs
        )
        self._slot = _rows(by_source.slot, room.edges)
        self._slots = torch.arange(room.edges, dtype=self._slot.dtype, device=self._slot.device)
        self.put(batch)

    def is_like(self, batch: Batch) -> bool:
        """Whether a batch is a part of the same kind, whatever its size."""
        return is_part(batch) and _kind(batch) == self._kind

    def put(self, batch: Batch) -> bool:
        """Copy a batch as `FixedPlace.put` does."""
        if not self.is_like(batch) or not self.room.holds(Room.of(batch)):
            return False
        hop, last = batch.hops[0], self.room.nodes - 1
        _fill(self._nodes, batch.nodes, self._padding)
        for place, rows in zip((self._x, self._propagated), _dense(batch), strict=True):
            if place is not None and rows is not None:
                _fill(place, rows, 0.0)
        _fill(self._observed, batch.observed, UNLABELED)
        _fill(self._hidden, batch.hidden, last)
        if self._edge_attr is not None and hop.edge_attr is not None:
            _fill(self._edge_attr, hop.edge_attr, 0.0)
        self._by_target.put(hop.indptr, hop.source, hop.schedule)
        _fill(self._target, hop.target, last)
        by_source = hop.transpose
        self._by_source.put(by_source.indptr, by_source.target, hop.source_schedule)
        _fill(self._slot, by_source.slot, self._slots[hop.num_edges :])
        return True

    def batch(self) -> Batch:
        """The part that is stored here.

        Each call returns a new hop, so that whatever a model derives from the edges is computed
        again and becomes part of a recording.
        """
        by_target, by_source = self._by_target, self._by_source
        derived = Derived(
            target=self._target,
            transpose=Transpose(by_source.indptr, by_source.ends, self._slot),
            schedule=by_target.schedule,
            source_schedule=by_source.schedule,
        )
        hop = Hop(by_target.indptr, by_target.ends, self.room.nodes, self._edge_attr, derived)
        hops = (hop,) * self._num_layers
        x = join_features(self._x, self._propagated)
        return Batch(self._nodes, self.room.nodes, x, self._observed, self._hidden, hops)


Place = FixedPlace | PartPlace
"""The tensors that a recording works on."""


class _Entries:
    """A place for the edges of a hop, grouped by one of their ends."""

    def __init__(self, indptr: Tensor, ends: Tensor, rows: int, edges: int, hubs: int) -> None:
        self.indptr, self.ends = _rows(indptr, rows + 1), _rows(ends, edges)
        # The largest number of pieces that this many edges can have.
        pieces = indptr.new_zeros((rows + edges // PIECE, 4))
        self.schedule = Schedule(pieces, indptr.new_zeros((hubs, 3)))
        # A row without entries is also a piece; extra pieces belong to the last row.
        self._empty = indptr.new_zeros((len(pieces), 4))
        self._empty[:, 0] = torch.arange(len(pieces), device=indptr.device).clamp(max=rows - 1)
        self._empty[:, 3] = -1
        self._no_hub = indptr.new_tensor([rows - 1, 0, 0])

    def put(self, indptr: Tensor, ends: Tensor, schedule: Schedule) -> None:
        rows = len(indptr) - 1
        _fill(self.indptr, indptr, len(ends))
        self.indptr[-1:] = len(self.ends)
        _fill(self.ends, ends, len(self.indptr) - 2)
        unused = len(self.schedule.pieces) - len(schedule.pieces)
        _fill(self.schedule.pieces, schedule.pieces, self._empty[rows:][:unused])
        _fill(self.schedule.hubs, schedule.hubs, self._no_hub)


def _rows(like: Tensor, count: int) -> Tensor:
    return like.new_empty((count, *like.shape[1:]))


def _fill(place: Tensor, rows: Tensor, rest: Tensor | float) -> None:
    place[: len(rows)] = rows
    place[len(rows) :] = rest


def _dense(batch: Batch) -> tuple[Tensor | None, Tensor | None]:
    """The features and the propagated labels of a part."""
    x, propagated = split_features(batch.x)
    assert x is None or isinstance(x, Tensor)  # `is_part` checks it
    return x, propagated


def _kind(batch: Batch) -> tuple[object, ...]:
    """The properties besides size that all parts of one place share: dtypes and row shapes."""
    hop = batch.hops[0]
    rows = (*_dense(batch), batch.observed, batch.hidden, batch.nodes, hop.source, hop.edge_attr)
    of_rows = (None if r is None else (r.dtype, r.shape[1:]) for r in rows)
    return len(batch.hops), *of_rows
