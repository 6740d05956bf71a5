"""Hide labels in many ways at once: one answer per way, without a plan in Python for each.

A row of one of K ways to hide labels is one number, way · N + node. Rows of all ways are found by
the same array operations, and each layer is computed for all of them by one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unimp.graph.csr import pick_entries
from unimp.graph.features import rows_of
from unimp.graph.graph import checked_numbers
from unimp.graph.hop import Hop
from unimp.inference.incremental.assembly import hop_of
from unimp.inference.incremental.changes import Change, refuse_repeated
from unimp.inference.incremental.projections import SCRATCH
from unimp.inference.incremental.reach import Nodes, Reach
from unimp.inference.incremental.stored import Stored, refuse_non_finite
from unimp.tasks.labels import UNLABELED

PLACES = 4_000_000
"""The largest number of ways × nodes; one array has an entry for each."""

EDGES_PER_PASS = 2_000_000
"""The largest number of edges of a layer in one call: enough to use a processor well, and small
enough for memory."""


def only_hides(change: Change) -> bool:
    """Whether a change hides labels and does nothing else."""
    return change.nodes is not None and change.labels is None and not change.changes_graph


def hidden_together(
    stored: Stored, changes: Sequence[Change], targets: Sequence[Tensor]
) -> list[Tensor] | None:
    """Return the logits of targets[k] after changes[k] alone, all of which only hide labels.

    Return None if the rows of a single change exceed the limits. `stored` must have projections.
    """
    most = max(1, PLACES // stored.reach.num_nodes)
    parts = [slice(begin, begin + most) for begin in range(0, len(changes), most)]
    answers: list[Tensor] = []
    # While a part is computed, which does not need Python, a thread finds the rows of the next.
    with ThreadPoolExecutor(1) as pool:
        plans = [pool.submit(_plans, stored, changes[part], targets[part]) for part in parts[:1]]
        for part in [*parts[1:], None]:
            found = plans.pop().result()
            if found is None:
                return None
            if part is not None:
                plans.append(pool.submit(_plans, stored, changes[part], targets[part]))
            for plan in found:
                answers += _answers(stored, plan)
    return answers


class _Plan(NamedTuple):
    """The rows to compute again for some changes, and those that are asked for."""

    ways: _Ways
    rows: list[Nodes]  # of each layer
    asked: Nodes
    targets: Sequence[Tensor]


def _plans(
    stored: Stored, changes: Sequence[Change], targets: Sequence[Tensor]
) -> list[_Plan] | None:
    """Return plans within the limits, each for some of the changes; None if there are none."""
    ways = _Ways(stored.reach, len(changes))
    nodes = [change.nodes for change in changes if change.nodes is not None]
    hidden = ways.keys(nodes, stored.num_nodes)
    refuse_repeated(torch.from_numpy(hidden), ways.num_nodes)
    is_known = (stored.labels[hidden % ways.num_nodes] != UNLABELED).reshape(len(hidden), -1)
    changed = hidden[is_known.any(1).numpy()] if stored.model.takes_labels else hidden[:0]
    asked = ways.keys(targets, stored.num_nodes)
    rows = ways.rows(changed, np.unique(asked), stored.model.num_layers)
    edges = max(map(ways.num_edges, rows[1:]))
    if max(map(len, rows[:-1])) <= SCRATCH and edges <= EDGES_PER_PASS:
        return [_Plan(ways, rows, asked, targets)]
    if len(changes) == 1:
        return None
    middle = len(changes) // 2
    first = _plans(stored, changes[:middle], targets[:middle])
    second = None if first is None else _plans(stored, changes[middle:], targets[middle:])
    return None if first is None or second is None else first + second


@torch.no_grad()
def _answers(stored: Stored, plan: _Plan) -> list[Tensor]:
    ways, rows, asked, targets = plan
    projections = stored.projections
    assert projections is not None
    with stored.in_precision():
        h = _embedded(stored, rows[0] % ways.num_nodes)
        for index in range(stored.model.num_layers):
            if len(h):
                layer, first = projections.with_scratch(h, index)
                own, hop = ways.hop(rows[index], rows[index + 1], first, len(layer), stored)
                h = stored.model.propagate_projected(layer, own, hop, index)
        logits = stored.logits[asked % ways.num_nodes]
        if len(h):
            place = ways.place(rows[-1], asked)
            is_new = place >= 0
            logits[torch.from_numpy(is_new)] = stored.read_out(h)[place[is_new]]
    refuse_non_finite(logits, torch.cat(list(targets)))
    return list(torch.split(logits, [len(nodes) for nodes in targets]))


def _embedded(stored: Stored, nodes: Nodes) -> Tensor:
    """Compute h⁰ of nodes whose label is hidden."""
    numbers = torch.from_numpy(nodes)
    if not len(numbers):
        return stored.states[0][:0]
    x = None if stored.graph.x is None else rows_of(stored.graph.x, numbers)
    return stored.model.embed(x, torch.full_like(stored.labels[numbers], UNLABELED))


class _Ways:
    """The rows of K ways to hide labels, as numbers way · N + node."""

    def __init__(self, reach: Reach, count: int) -> None:
        self.reach, self.num_nodes = reach, reach.num_nodes
        self._mask = np.zeros(count * self.num_nodes, dtype=bool)
        self._place = np.full(count * self.num_nodes, -1, dtype=np.int32)

    def keys(self, nodes: Sequence[Tensor], limit: int) -> Nodes:
        """Check that all nodes are below `limit`; return the numbers of the nodes of each way."""
        first = np.arange(len(nodes)) * self.num_nodes
        found: Nodes = checked_numbers(torch.cat(list(nodes)), limit).numpy()
        return np.repeat(first, [len(part) for part in nodes]) + found

    def rows(self, changed: Nodes, wanted: Nodes, layers: int) -> list[Nodes]:
        """Return the rows to compute again, as `Reach.rows` does for one change."""
        reach = self.reach
        forward, backward = {0: self._distinct(changed)}, {layers: wanted}
        low, high = 0, layers
        while low < high:
            out_edges = reach.out_degree[forward[low] % self.num_nodes].sum()
            if out_edges <= reach.in_degree[backward[high] % self.num_nodes].sum():
                forward[low + 1] = self._with_targets(forward[low])
                low += 1
            else:
                backward[high - 1] = self._with_sources(backward[high])
                high -= 1
        rows = {low: self._both(forward[low], backward[low])}
        for layer in range(low, layers):
            rows[layer + 1] = self._both(self._with_targets(rows[layer]), backward[layer + 1])
        for layer in range(low - 1, -1, -1):
            rows[layer] = self._both(forward[layer], self._with_sources(rows[layer + 1]))
        return [self._by_node(rows[layer]) for layer in range(layers + 1)]

    def num_edges(self, rows: Nodes) -> int:
        return int(self.reach.in_degree[rows % self.num_nodes].sum())

    def hop(
        self, inputs: Nodes, rows: Nodes, first: int, num_sources: int, stored: Stored
    ) -> tuple[Tensor, Hop]:
        """Return the row of each target among the sources, and the in-edges of the targets.

        The sources are stored rows, and the new rows of `inputs`, which start at `first`.
        """
        nodes = rows % self.num_nodes
        count, slots = pick_entries(self.reach.in_indptr, nodes)
        source = self.reach.source[slots]
        found = self.place(inputs, np.repeat(rows - nodes, count) + source)
        own = self.place(inputs, rows)
        source = np.where(found >= 0, found + first, source)
        attr = stored.graph.edge_attr_of(torch.from_numpy(slots))
        targets = torch.from_numpy(np.where(own >= 0, own + first, nodes))
        return targets, hop_of(count, source, num_sources, attr)

    def place(self, rows: Nodes, keys: Nodes) -> npt.NDArray[np.int32]:
        """The position of each key among the rows; −1 if it is none of them."""
        self._place[rows] = np.arange(len(rows))
        found: npt.NDArray[np.int32] = self._place[keys]
        self._place[rows] = -1
        return found

    def _with_targets(self, rows: Nodes) -> Nodes:
        return self._along(rows, self.reach.out_indptr, self.reach.target)

    def _with_sources(self, rows: Nodes) -> Nodes:
        return self._along(rows, self.reach.in_indptr, self.reach.source)

    def _along(self, rows: Nodes, indptr: Nodes, ends: Nodes) -> Nodes:
        """The rows, and those to which their edges lead, in the same way."""
        nodes = rows % self.num_nodes
        count, slots = pick_entries(indptr, nodes)
        return self._distinct(np.repeat(rows - nodes, count) + ends[slots], rows)

    def _by_node(self, rows: Nodes) -> Nodes:
        """Sort rows by node, so that targets with the same sources are computed in succession."""
        ordered: Nodes = rows[np.argsort(rows % self.num_nodes, kind="stable")]
        return ordered

    def _both(self, one: Nodes, other: Nodes) -> Nodes:
        self._mask[one] = True
        found: Nodes = other[self._mask[other]]
        self._mask[one] = False
        return found

    def _distinct(self, *parts: Nodes) -> Nodes:
        for part in parts:
            self._mask[part] = True
        found = np.flatnonzero(self._mask)
        self._mask[found] = False
        return found
