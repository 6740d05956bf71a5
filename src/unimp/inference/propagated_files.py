"""Propagated labels in temporary files, for graphs whose propagated labels do not fit into memory.

Columns of labels are independent of each other. Groups of columns are therefore propagated one
after the other, each with one row per node in memory, and stored in one file per group and number
of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from unimp.graph.graph import Graph
from unimp.inference.exact import bounded_runs
from unimp.inference.row_files import RowFile
from unimp.model.label_propagation import entries_of
from unimp.model.propagated_labels import STEPS, shares_and_masses
from unimp.ops.row_sums import sum_rows

MOST_GROUPS = 64
"""Each group needs one open file per number of steps."""


class PropagatedFiles:
    """The result of `propagated_labels`, read by ranges of nodes.

    memory: bytes for the rows of a group. part: (rank, ranks); a rank computes every ranks-th
    group. open_file: opens a file with one row per node, by name and width. The files of all ranks
    are complete after a barrier.
    """

    def __init__(
        self,
        graph: Graph,
        observed: Tensor,
        classes: int,
        *,
        memory: int,
        chunk_edges: int,
        part: tuple[int, int],
        open_file: Callable[[str, int], RowFile],
    ) -> None:
        self._classes, self._has_tasks = classes, observed.ndim == 2
        columns = memory // (12 * graph.num_nodes)  # rows before and after a step, and a result
        columns = columns // 2 if self._has_tasks else columns - 1
        width = max(1, columns, -(-classes // MOST_GROUPS))
        self._groups = [range(c, min(c + width, classes)) for c in range(0, classes, width)]
        self._files = [
            [open_file(f"labels-{group.start}-{s}", self._width(group)) for s in STEPS]
            for group in self._groups
        ]
        rank, ranks = part
        for number in range(rank, len(self._groups), ranks):
            rows = self._start(observed, self._groups[number])
            cut = len(self._groups[number])
            steps = propagate_in_ranges(graph, rows, chunk_edges)
            for file, sums in zip(self._files[number], steps, strict=True):
                for begin in range(0, len(sums), chunk_edges):
                    found = shares_and_masses(sums[begin : begin + chunk_edges], cut)
                    file.write(begin, torch.cat(found, 1))

    def _width(self, group: range) -> int:
        return 2 * len(group) if self._has_tasks else len(group) + 1

    def _start(self, observed: Tensor, group: range) -> Tensor:
        """The labels of a group of classes, and which of them are observed."""
        if self._has_tasks:
            start, entry = entries_of(observed[:, group.start : group.stop], len(group))
            return torch.cat((start, entry.float()), 1)
        rows = torch.zeros(len(observed), len(group) + 1)
        rows[:, -1] = observed >= 0
        members = torch.nonzero((observed >= group.start) & (observed < group.stop)).squeeze(1)
        rows[members, observed[members].long() - group.start] = 1.0
        return rows

    def read(self, nodes: range) -> Tensor:
        """The rows of some nodes, with the columns of `propagated_labels`."""
        found = []
        for step in range(len(STEPS)):
            parts = [files[step].read(nodes.start, nodes.stop) for files in self._files]
            groups = zip(parts, self._groups, strict=True)
            shares, masses = zip(
                *((p[:, : len(g)], p[:, len(g) :]) for p, g in groups), strict=True
            )
            found += [*shares, *(masses if self._has_tasks else masses[:1])]
        return torch.cat(found, 1)

    def close(self) -> None:
        for files in self._files:
            for file in files:
                file.close()


def propagate_in_ranges(graph: Graph, rows: Tensor, chunk_edges: int) -> Iterator[Tensor]:
    """Yield Âˢ rows for each number of steps, with no array of the size of the edges."""
    chunks = list(bounded_runs(graph.in_degree.numpy(), chunk_edges))
    for step in range(1, STEPS[-1] + 1):
        following = torch.empty_like(rows)
        for begin, end in chunks:
            indptr = graph.indptr[begin : end + 1].long()
            first, stop = int(indptr[0]), int(indptr[-1])
            degree = indptr.diff()
            weight = degree.clamp(min=1).double().reciprocal().to(rows.dtype)
            weight = torch.repeat_interleave(weight, degree, output_size=stop - first)
            source = graph.source[first:stop]
            indptr = (indptr - first).to(source.dtype)
            following[begin:end] = sum_rows(indptr, source, weight, rows)
        rows = following
        if step in STEPS:
            yield rows
