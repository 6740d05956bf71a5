"""From numbered edges to compressed rows, in two passes over buckets of targets.

The first pass appends each edge, and its reverse unless edges are directed, to the bucket of its
target. The second pass sorts each bucket by (target, source) and merges duplicate edges. The result
is bit-equal to `Graph.from_edges(…).symmetrize()`, or `.deduplicate()` for directed edges: among
duplicates, an edge comes before the reverse of another, and edges keep the order of their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unimp.data.store import native
from unimp.data.store.mapping import map_bytes
from unimp.data.store.workspace import Workspace, sync
from unimp.data.threads import in_order

EDGE = 8  # bytes of an edge in a bucket
_BLOCKS = 1 << 16  # ranges of nodes from which buckets are put together
_MOST_ENTRIES = 1 << 23  # per bucket: a larger one is not sorted faster
_MOST_BUCKETS = 1024
_GROUPED = 1 << 20  # edges that are grouped at a time

Encode = Callable[[int], Iterator[NDArray[np.float32]]]
"""Yields the features of the edges of a part, chunk after chunk."""


@dataclass(frozen=True)
class Plan:
    """How targets are divided into buckets: bucket b holds the targets bounds[b] to bounds[b+1]."""

    num_nodes: int
    both: bool  # the reverse of every edge is added
    width: int  # edge features
    shift: int
    bounds: Sequence[int]
    entries: int

    @property
    def num_buckets(self) -> int:
        return len(self.bounds) - 1

    @property
    def directions(self) -> tuple[str, ...]:
        return ("direct", "reverse") if self.both else ("direct",)

    @property
    def bucket_of_block(self) -> NDArray[np.int32]:
        blocks = np.arange(-(-self.num_nodes >> self.shift) + 1, dtype=np.int64) << self.shift
        return (np.searchsorted(self.bounds, blocks, side="right") - 1).astype(np.int32)


def make_plan(
    ends: Sequence[Path], num_nodes: int, *, both: bool, width: int, memory: int, workers: int
) -> Plan:
    """Count entries per range of targets, and divide the targets into buckets that fit memory."""
    shift = max(0, int(num_nodes - 1).bit_length() - _BLOCKS.bit_length() + 1)
    counts = np.zeros((num_nodes >> shift) + 1, dtype=np.int64)
    entries = sum(_count(read_ends(path), both, shift, counts) for path in ends)
    # Edges, sources and row pointers; with features also positions, keys and three copies of them.
    per_entry = 16 if not width else 40 + 12 * width
    most = min(_MOST_ENTRIES, max(1, memory // workers // per_entry))
    most = max(most, -(-entries // _MOST_BUCKETS))
    bounds, held = [0], 0
    for block, count in enumerate(counts.tolist()):
        if held and held + count > most:
            bounds.append(block << shift)
            held = 0
        held += count
    return Plan(num_nodes, both, width, shift, [*bounds, num_nodes], entries)


def read_ends(path: Path) -> NDArray[np.int32]:
    """Map the numbered edges of a part: [rows, 2]."""
    return np.frombuffer(map_bytes(path), np.int32).reshape(-1, 2)


def _count(ends: NDArray[np.int32], both: bool, shift: int, counts: NDArray[np.int64]) -> int:
    if native.library() is not None:
        return native.call("count", ends, len(ends), int(both), shift, counts)
    valid = ends[(ends >= 0).all(1)]
    targets = [valid[:, 1]]
    if both:
        targets.append(valid[valid[:, 0] != valid[:, 1], 0])
    for nodes in targets:
        counts += np.bincount(nodes >> shift, minlength=len(counts))
    return sum(map(len, targets))


@dataclass(frozen=True)
class Grouped:
    """Some edges in one direction, bucket after bucket."""

    sizes: NDArray[np.int64]
    edges: NDArray[np.int32]  # [entries, 2]
    features: NDArray[np.float32] | None


def _group(
    ends: NDArray[np.int32], features: NDArray[np.float32] | None, plan: Plan, *, reverse: bool
) -> Grouped:
    buckets = plan.bucket_of_block
    if native.library() is not None:
        sizes = np.zeros(plan.num_buckets, dtype=np.int64)
        out = np.empty((len(ends), 2), dtype=np.int32)
        order = None if features is None else np.empty(len(ends), dtype=np.int64)
        given = (ends, len(ends), int(reverse), plan.shift, buckets, plan.num_buckets)
        count = native.call("group", *given, sizes, out, order)
        edges, order = out[:count], None if order is None else order[:count]
    else:
        kept = (ends >= 0).all(1) & ((ends[:, 0] != ends[:, 1]) | (not reverse))
        edges = ends[kept][:, ::-1] if reverse else ends[kept]
        bucket = buckets[edges[:, 1] >> plan.shift]
        place = np.argsort(bucket, kind="stable")
        sizes = np.bincount(bucket, minlength=plan.num_buckets).astype(np.int64)
        edges, order = np.ascontiguousarray(edges[place]), np.flatnonzero(kept)[place]
    return Grouped(sizes, edges, None if features is None else features[order])


def bucket_path(work: Workspace, direction: str, bucket: int, kind: str = "edges") -> Path:
    return work.path(f"bucket-{bucket:04}.{direction}.{kind}")


def bucket_paths(work: Workspace, plan: Plan, bucket: int) -> list[Path]:
    """All files of a bucket."""
    kinds = ("edges", "features")[: 1 + bool(plan.width)]
    return [bucket_path(work, direction, bucket, k) for direction in plan.directions for k in kinds]


def scatter(
    work: Workspace,
    plan: Plan,
    ends: Sequence[Path],
    encode: Encode | None,
    *,
    workers: int,
    on_part: Callable[[], None],
    save: Callable[[], bool],
) -> None:
    """Append the edges of all parts to the buckets of their targets.

    save: whether it is time to make the buckets durable, so that a killed build resumes here.
    """
    done, sizes = work.get("scattered", (0, {}))
    for bucket in range(plan.num_buckets):
        for path in bucket_paths(work, plan, bucket):
            with path.open("ab") as file:
                file.truncate(sizes.get(path.name, 0))

    def grouped(item: tuple[Any, ...]) -> tuple[bool, str, Grouped]:
        last, rows, features, direction = item
        return last, direction, _group(rows, features, plan, reverse=direction == "reverse")

    def items() -> Iterator[tuple[Any, ...]]:
        for number in range(done, len(ends)):
            rows = read_ends(ends[number])
            chunks = _chunks(rows, None if encode is None else encode(number))
            held = next(chunks, (rows, None))
            for chunk in chunks:
                yield from ((False, *held, direction) for direction in plan.directions)
                held = chunk
            for direction in plan.directions:
                yield direction == plan.directions[-1], *held, direction

    for last, direction, group in in_order(grouped, items(), workers):
        end = np.cumsum(group.sizes)
        for bucket in np.flatnonzero(group.sizes).tolist():
            rows = slice(int(end[bucket] - group.sizes[bucket]), int(end[bucket]))
            with bucket_path(work, direction, bucket).open("ab") as file:
                file.write(group.edges[rows].data)
            if group.features is not None:
                with bucket_path(work, direction, bucket, "features").open("ab") as file:
                    file.write(np.ascontiguousarray(group.features[rows]).data)
        if last:
            done += 1
            on_part()
            if done == len(ends) or save():
                work.record("scattered", (done, _synced_sizes(work)))


def _chunks(
    rows: NDArray[np.int32], features: Iterator[NDArray[np.float32]] | None
) -> Iterator[tuple[NDArray[np.int32], NDArray[np.float32] | None]]:
    if features is None:
        for begin in range(0, len(rows), _GROUPED):
            yield rows[begin : begin + _GROUPED], None
        return
    begin = 0
    for block in features:
        yield rows[begin : begin + len(block)], block
        begin += len(block)


def _synced_sizes(work: Workspace) -> dict[str, int]:
    sizes = {}
    for path in sorted(work.folder.glob("bucket-*")):
        sync(path)
        sizes[path.name] = path.stat().st_size
    return sizes


@dataclass(frozen=True)
class Rows:
    """The sorted in-edges of the targets of one bucket."""

    starts: NDArray[np.int64]  # [targets + 1], from 0
    source: NDArray[np.int32]
    features: NDArray[np.float32] | None


def sort_bucket(work: Workspace, plan: Plan, bucket: int) -> Rows:
    """Sort the edges of a bucket by (target, source), and merge duplicate edges."""
    first, targets = plan.bounds[bucket], plan.bounds[bucket + 1] - plan.bounds[bucket]
    edges = np.concatenate(
        [read_ends(bucket_path(work, direction, bucket)) for direction in plan.directions]
    )
    starts = np.empty(targets + 1, dtype=np.int64)
    if not plan.width and native.library() is not None:
        source = np.empty(len(edges), dtype=np.int32)
        count = native.call("sort", edges, len(edges), first, targets, starts, source, None)
        return Rows(starts, source[:count], None)
    source, order = _sorted(edges, first, starts)
    target = np.repeat(np.arange(targets), np.diff(starts))
    is_first = np.ones(len(source), dtype=bool)
    is_first[1:] = (source[1:] != source[:-1]) | (target[1:] != target[:-1])
    kept = np.zeros(len(source) + 1, dtype=np.int64)
    np.cumsum(is_first, out=kept[1:])
    features = None
    if plan.width:
        given = [map_bytes(bucket_path(work, d, bucket, "features")) for d in plan.directions]
        rows = np.concatenate([np.frombuffer(block, np.float32) for block in given])
        features = _merged(rows.reshape(-1, plan.width)[order], is_first, kept[1:] - 1)
    return Rows(kept[starts], source[is_first], features)


def _sorted(
    edges: NDArray[np.int32], first: int, starts: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    if native.library() is not None:
        source = np.empty(len(edges), dtype=np.int32)
        order = np.empty(len(edges), dtype=np.int64)
        native.call("sort", edges, len(edges), first, len(starts) - 1, starts, source, order)
        return source, order
    order = np.lexsort((edges[:, 0], edges[:, 1]))
    starts[0] = 0
    np.cumsum(np.bincount(edges[:, 1] - first, minlength=len(starts) - 1), out=starts[1:])
    return edges[order, 0], order


def _merged(
    rows: NDArray[np.float32], is_first: NDArray[np.bool_], into: NDArray[np.int64]
) -> NDArray[np.float32]:
    """The features of kept edges: the mean over duplicates, as `Graph.deduplicate` computes it."""
    if is_first.all():
        return rows
    kept = torch.from_numpy(rows[is_first])
    several = np.flatnonzero(np.bincount(into) > 1)
    place = np.full(len(kept), -1, dtype=np.int64)
    place[several] = np.arange(len(several))
    chosen = place[into] >= 0
    found, index = torch.from_numpy(rows[chosen]), torch.from_numpy(place[into[chosen]])
    merged = torch.zeros(len(several), rows.shape[1]).scatter_reduce_(
        0, index[:, None].expand_as(found), found, "mean", include_self=False
    )
    kept[torch.from_numpy(several)] = merged
    return np.asarray(kept.numpy())
