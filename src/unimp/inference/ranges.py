"""Exact inference beyond memory: layer by layer, by ranges of targets, with states in files.

The states of a layer, [N, width] float32, are written to a temporary file, range after range. The
next layer reads them in one of two ways:

    ranges    The file is mapped, and attention reads the rows of sources directly. Reads are
              random, so this is for states that the system can keep in memory.
    streamed  The in-edges of a stripe of targets are grouped by blocks of sources. A stripe reads
              the file once, block after block, and merges the attention over each block
              (`ops/pieces.py`). All reads are sequential.

Several processes on one machine can share the work (`shared_work`): each computes a range of the
targets of every layer, and all wait for each other between layers.
"""

from __future__ import annotations

import atexit
import logging
import shutil
import tempfile
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from unimp.config.choices import ALL
from unimp.data.files import temporary_folder
from unimp.data.memory import gib
from unimp.errors import ArgumentError
from unimp.graph.features import Features, join_features, rows_of
from unimp.graph.graph import Graph
from unimp.graph.hop import Hop
from unimp.inference.exact import bounded_runs
from unimp.inference.propagated_files import PropagatedFiles
from unimp.inference.row_files import RowFile, check_space
from unimp.model.node_model import LayerInPieces, NodeModel
from unimp.ops import native
from unimp.ops.sampling import sample_hops
from unimp.training.ranks import Ranks

LOG = logging.getLogger("unimp.inference")

RESIDENT = 0.5
"""States of up to this part of the memory are mapped; larger ones are streamed."""
FOR_STRIPES, FOR_BLOCK, FOR_CHUNK = 0.4, 0.2, 0.04
"""The parts of the memory for a stripe of targets, a block of sources, and a chunk of targets."""
LEAST_CHUNK, LARGEST_CHUNK = 1 << 25, 1 << 28
"""Bytes of a chunk: smaller chunks are slower, and larger ones are not faster."""


def _no_barrier() -> None:
    """Return at once, for a single process."""


@dataclass(frozen=True)
class SharedWork:
    """The part of this process in a computation; `barrier` returns when all have called it.

    folder: an existing folder on a disk that all of them share; required if there are several.
    agreed: returns the value of the first process; without it, all of them need the same limit of
    memory.
    """

    rank: int = 0
    ranks: int = 1
    barrier: Callable[[], None] = _no_barrier
    folder: Path | None = None
    agreed: Callable[[int], int] = int

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.ranks:
            raise ArgumentError(
                f"rank is {self.rank}; with {self.ranks} ranks it must be 0 to {self.ranks - 1}"
            )
        if self.ranks > 1 and (self.folder is None or self.barrier is _no_barrier):
            raise ArgumentError(
                "several processes need barrier=… and folder=…, a folder that they share"
            )

    @property
    def is_first(self) -> bool:
        return self.rank == 0


ALONE = SharedWork()


def shared_work(ranks: Ranks) -> SharedWork:
    """The part of this process in the work of all processes that were started together.

    They must be on one machine, because they map the same files, in a temporary folder that the
    first process removes when it ends.
    """
    if ranks.size == 1:
        return ALONE
    made = tempfile.mkdtemp(prefix="unimp-", dir=temporary_folder()) if ranks.is_first else ""
    if made:
        atexit.register(shutil.rmtree, made, ignore_errors=True)
    folder = Path(ranks.agreed(made))
    return SharedWork(ranks.rank, ranks.size, ranks.wait, folder, ranks.agreed)


def ranges_of(graph: Graph, rank: int, ranks: int) -> range:
    """The targets of a rank: consecutive nodes, with about equal numbers of in-edges per rank.

    A node counts as one more in-edge, because nodes without in-edges are computed too.
    """
    total = graph.num_edges + graph.num_nodes

    def first(part: int) -> int:
        nodes = range(graph.num_nodes + 1)
        return bisect_left(nodes, total * part // ranks, key=lambda i: int(graph.indptr[i]) + i)

    return range(first(rank), first(rank + 1))


class Widths(NamedTuple):
    """The numbers per node of h⁰, of the output of each layer, and of the logits."""

    states: Sequence[int]
    logits: int
    propagated: int  # of propagated labels, if they are inputs

    def bytes_in_memory(self, num_nodes: int, chunk_edges: int) -> int:
        """The memory of exact inference with the states of two layers in memory."""
        # A layer is computed in parts, which are then concatenated.
        pairs = zip(self.states, (*self.states[1:], self.logits), strict=True)
        most = max(before + 2 * after for before, after in pairs)
        chunk = 2 * min(num_nodes, chunk_edges) * max(self.states)
        return 4 * (num_nodes * (most + self.logits + 2 * self.propagated) + chunk)


@torch.no_grad()
def widths_of(
    model: NodeModel, graph: Graph, observed: Tensor, device: torch.device | str
) -> Widths:
    """Find the widths by running the model on one node without edges."""
    one, none = torch.zeros(1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    x = None if graph.x is None else rows_of(graph.x, one)
    edge_attr = graph.edge_attr_of(none)
    alone = Graph(torch.zeros(2, dtype=torch.int64), none, None, x, edge_attr)
    features = model.features(alone, observed[:1], remember=False)
    propagated = getattr(features, "propagated", None)
    h = model.embed(None if features is None else features.to(device), observed[:1].to(device))
    widths = [h.shape[1]]
    for index in range(model.num_layers):
        h = model.propagate(h, alone.hop.to(device), index)
        widths.append(h.shape[1])
    logits = model.read_out(h).shape[1]
    return Widths(widths, logits, 0 if propagated is None else propagated.shape[1])


@torch.no_grad()
def logits_in_ranges(
    model: NodeModel,
    graph: Graph,
    observed: Tensor,
    widths: Widths,
    *,
    chunk_edges: int,
    memory: int,
    device: torch.device | str = "cpu",
    shared: SharedWork = ALONE,
) -> Tensor:
    """Compute the logits of all nodes, equal to those of the full batch: [N, classes].

    The result is mapped from a temporary file that is deleted with it. memory: the limit in bytes
    of all ranks together.
    """
    run = _Ranged(model, graph, observed, chunk_edges, memory, device, shared, widths)
    with ExitStack() as files:
        return run.logits(files)


@dataclass(frozen=True)
class _Ranged:
    """The arguments of one computation."""

    model: NodeModel
    graph: Graph
    observed: Tensor
    chunk_edges: int
    memory: int
    device: torch.device | str
    shared: SharedWork
    widths: Widths

    @property
    def share(self) -> int:
        """The bytes that this process may use."""
        return self.memory // self.shared.ranks

    @property
    def folder(self) -> Path:
        return self.shared.folder or temporary_folder()

    def logits(self, files: ExitStack) -> Tensor:
        graph, model, shared = self.graph, self.model, self.shared
        own = ranges_of(graph, shared.rank, shared.ranks)
        check_space(self._bytes_on_disk(), self.folder)
        propagated = None
        if model.takes_propagated_labels:
            propagated = PropagatedFiles(
                graph,
                self.observed,
                self.widths.logits,
                memory=int(FOR_STRIPES * self.share),
                chunk_edges=self.chunk_edges,
                part=(shared.rank, shared.ranks),
                open_file=lambda name, width: self._open(files, name, width),
            )
            shared.barrier()
        last = model.num_layers == 0
        states = self._open(files, "0", self.widths.logits if last else self.widths.states[0])
        for nodes in self._runs(own, 4 * max(self.widths.states[0], self.widths.propagated)):
            x = self._features(nodes, propagated)
            observed = self.observed[nodes.start : nodes.stop].to(self.device)
            h = model.embed(None if x is None else x.to(self.device), observed)
            states.write(nodes.start, (model.read_out(h) if last else h).cpu())
        shared.barrier()
        if propagated is not None:
            propagated.close()
        for index in range(model.num_layers):
            last = index == model.num_layers - 1
            width = self.widths.logits if last else self.widths.states[index + 1]
            following = self._open(files, str(index + 1), width)
            for begin, rows in self._layer(states, own, index):
                following.write(begin, (model.read_out(rows) if last else rows).cpu())
            shared.barrier()
            states.close()
            states = following
        return states.mapped

    def _open(self, files: ExitStack, name: str, width: int) -> RowFile:
        """Open a file that all ranks share; it has no name afterwards."""
        path = None if self.shared.ranks == 1 else self.folder / f"rows-{name}"
        file = RowFile(self.graph.num_nodes, width, self.folder, path)
        files.callback(file.close)
        self.shared.barrier()
        file.unlink()
        self.shared.barrier()  # a later computation may use the same name
        return file

    def _bytes_on_disk(self) -> int:
        widths = (*self.widths.states[:-1], self.widths.logits)
        most = max((sum(pair) for pair in pairwise(widths)), default=self.widths.logits)
        return 4 * self.graph.num_nodes * max(most, widths[0] + self.widths.propagated)

    def _runs(self, own: range, bytes_per_node: int) -> Iterator[range]:
        step = max(1, self._chunk_bytes // (4 * max(1, bytes_per_node)))
        for begin in range(own.start, own.stop, step):
            yield range(begin, min(begin + step, own.stop))

    @property
    def _chunk_bytes(self) -> int:
        least = min(LEAST_CHUNK, int(FOR_STRIPES * self.share))
        return min(LARGEST_CHUNK, max(least, int(FOR_CHUNK * self.share)))

    def _features(self, nodes: range, propagated: PropagatedFiles | None) -> Features | None:
        x = self.graph.x
        rows = None if x is None else rows_of(x, torch.arange(nodes.start, nodes.stop))
        return join_features(rows, None if propagated is None else propagated.read(nodes))

    def _layer(self, states: RowFile, own: range, index: int) -> Iterator[tuple[int, Tensor]]:
        """Compute the output of a layer for a range of targets: yield the first node, and rows."""
        # All conditions of `in_pieces` are those of the layer and the device, not of the rows.
        start = self.model.in_pieces(torch.empty(0, states.width, device=self.device), index)
        resident = states.nbytes <= RESIDENT * self.memory
        way = "gathered" if start is None else "ranges" if resident else "streamed"
        if self.shared.is_first:
            _print_choice(way, states.nbytes, self.memory, str(self.folder))
        if start is None:
            yield from self._gathered(states, own, index)
            return
        size = start.bytes_per_target
        chunks = self._chunks(own, max(1, self._chunk_bytes // (2 * size)), self.chunk_edges)
        if resident:
            stripes: Iterator[list[range]] = ([chunk] for chunk in chunks)
            buffer = None
        else:
            stripes = _stripes(chunks, max(1, int(FOR_STRIPES * self.share) // size))
            rows = max(1, int(FOR_BLOCK * self.share) // (4 * states.width))
            buffer = torch.empty(min(rows, states.rows), states.width)
        for stripe in stripes:
            started = [self._started(states, chunk, index) for chunk in stripe]
            for first, block in _blocks(states, buffer):
                for edges, layer in started:
                    for hop in edges.hops(range(first, first + len(block)), self.chunk_edges):
                        layer.add(block, hop)
            for chunk in stripe:
                yield chunk.start, started.pop(0)[1].finish()

    def _started(self, states: RowFile, chunk: range, index: int) -> tuple[_InEdges, LayerInPieces]:
        layer = self.model.in_pieces(states.read(chunk.start, chunk.stop), index)
        assert layer is not None
        return _InEdges(self.graph, chunk), layer

    def _gathered(self, states: RowFile, own: range, index: int) -> Iterator[tuple[int, Tensor]]:
        """Copy the rows of the sources of each chunk; for layers that need them all at once."""
        edges = max(1, min(self.chunk_edges, int(FOR_BLOCK * self.share) // (4 * states.width)))
        for chunk in self._chunks(own, edges, edges):
            targets = torch.arange(chunk.start, chunk.stop)
            nodes, (hop,) = sample_hops(self.graph, targets, [ALL], seed=0)
            h = states.mapped.index_select(0, nodes).to(self.device)
            yield chunk.start, self.model.propagate(h, hop.to(self.device), index)

    def _chunks(self, own: range, targets: int, edges: int) -> Iterator[range]:
        """Divide a range into chunks with at most so many targets and in-edges, or one target."""
        indptr = self.graph.indptr[own.start : own.stop + 1]
        for begin, end in bounded_runs(indptr.diff().numpy(), edges):
            for first in range(begin, end, targets):
                yield range(own.start + first, own.start + min(first + targets, end))


class _InEdges:
    """The in-edges of a chunk of targets, by blocks of sources in ascending order."""

    def __init__(self, graph: Graph, chunk: range) -> None:
        self._graph = graph
        self._indptr = graph.indptr[chunk.start : chunk.stop + 1].long()
        self._cursor: Tensor | None = None  # [targets] the next slot of each target

    def hops(self, block: range, most: int) -> Iterator[Hop]:
        """The in-edges from a block, in hops of at most `most` edges."""
        if len(block) == self._graph.num_nodes:
            yield from self._all(most)
            return
        graph, indptr = self._graph, self._indptr
        if self._cursor is None:
            self._cursor = indptr[:-1].clone()
        most = min(most, int(indptr[-1] - indptr[0]))
        count = most
        while most and count == most:
            rows = graph.source.new_empty(len(indptr))
            source = graph.source.new_empty(most)
            slots = None if graph.edge_attr is None else indptr.new_empty(most)
            count = native.take_in_edges(graph, indptr, self._cursor, block, (rows, source, slots))
            yield self._hop(
                rows, source[:count], slots[:count] if slots is not None else None, len(block)
            )

    def _all(self, most: int) -> Iterator[Hop]:
        indptr, graph = self._indptr, self._graph
        for low in range(int(indptr[0]), int(indptr[-1]), most):
            high = min(low + most, int(indptr[-1]))
            source, rows = graph.source[low:high], indptr.clamp(low, high) - low
            slots = None if graph.edge_attr is None else torch.arange(low, high)
            yield self._hop(rows.to(source.dtype), source, slots, graph.num_nodes)

    def _hop(self, rows: Tensor, source: Tensor, slots: Tensor | None, num_sources: int) -> Hop:
        edge_attr = None if slots is None else self._graph.edge_attr_of(slots)
        return Hop(rows, source, num_sources, edge_attr)


def _stripes(chunks: Iterator[range], targets: int) -> Iterator[list[range]]:
    """Join chunks to stripes of at most so many targets, or of one chunk."""
    stripe: list[range] = []
    for chunk in chunks:
        if stripe and chunk.stop - stripe[0].start > targets:
            yield stripe
            stripe = []
        stripe.append(chunk)
    if stripe:
        yield stripe


def _blocks(states: RowFile, buffer: Tensor | None) -> Iterator[tuple[int, Tensor]]:
    """The rows of all sources, block after block; without a buffer, they are one mapped block."""
    if buffer is None:
        yield 0, states.mapped
        return
    for first in range(0, states.rows, len(buffer)):
        yield first, states.read(first, min(first + len(buffer), states.rows), buffer)


_WAYS = {
    "ranges": "they are read at random, because they take at most half of the limit",
    "streamed": "they are read in order, once per stripe of targets, because they take more than "
    "half of the limit",
    "gathered": "rows of sources are copied chunk by chunk, because this layer or device cannot "
    "process the in-edges of a target in pieces",
}


@lru_cache
def _print_choice(way: str, nbytes: int, memory: int, folder: str) -> None:
    """Log how a layer is computed, once per different choice."""
    LOG.info(
        "exact inference: the states of a layer (%s) are stored in %s; memory limit %s; %s (%s)",
        gib(nbytes),
        folder,
        gib(memory),
        _WAYS[way],
        way,
    )
