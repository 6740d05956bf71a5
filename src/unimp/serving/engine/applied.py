"""The run with all events up to a version, and the change that later events are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unimp.analysis.predictions import keep_observed
from unimp.data.structure import without_structure
from unimp.errors import UnknownNodeError
from unimp.graph.changed import entries_of_pairs
from unimp.graph.graph import Graph
from unimp.inference.incremental.changes import Change, Update, nothing
from unimp.runs.run import Run
from unimp.serving.engine.additions import Additions
from unimp.serving.events import NewNode
from unimp.serving.reader import Current, EdgeNow, Reader
from unimp.tasks.labels import UNLABELED, is_known
from unimp.tasks.names import class_names
from unimp.tasks.task import Task

Pair = tuple[str, str]


@dataclass(frozen=True)
class Pending:
    """The events after the applied version, as one change."""

    version: int
    change: Change
    labels: Mapping[str, Current]
    edges: Mapping[Pair, EdgeNow]
    nodes: tuple[NewNode, ...]
    points: NDArray[np.float64] | None = None  # of all new nodes, also of earlier ones
    near_edges: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True)
class Rows:
    """Answers for some nodes at a version."""

    nodes: Tensor  # [k] numbers
    probabilities: Tensor  # [k, classes], of an observed label 1
    confidence: Tensor  # [k] NaN where everything was observed
    observed: Tensor  # [k] bool

    def some(self, chosen: Tensor) -> Rows:
        """The chosen rows; chosen: [k] bool."""
        parts = (self.nodes, self.probabilities, self.confidence, self.observed)
        return Rows(*(part[chosen] for part in parts))


class Applied:
    """A run, the events that were applied to it, and the engine that follows them.

    The answers depend only on the events in force, not on the order in which they were applied.
    If a run has several edges between two nodes, removing them and undoing that restores one.
    """

    def __init__(self, run: Run, reader: Reader, *, hold_projections: bool | None = None) -> None:
        """hold_projections: as in `Run.live`."""
        self.run, self._reader = run, reader
        self.base = run.observed_labels()
        self.observed = self.base.clone()
        graph = run.task.graph
        self.graph = without_structure(graph) if run.recipe.task.structure else graph
        self._original = self.graph
        self.additions = Additions(run, self.graph)
        names = run.task.node_names or [str(n) for n in range(graph.num_nodes)]
        self.ids: list[str] = list(names)
        self.numbers = {name: number for number, name in enumerate(self.ids)}
        self.classes = class_names(run.task)
        self._class_numbers = {name: number for number, name in enumerate(self.classes)}
        self.labels: dict[str, Current] = {}
        self.added: dict[str, NewNode] = {}
        self._edges: dict[Pair, EdgeNow] = {}
        self._points: NDArray[np.float64] | None = None
        self._near_edges: frozenset[tuple[int, int]] = frozenset()
        self.version = 0
        self._pending: Pending | None = None
        self.live = run.live(self.base, hold_projections=hold_projections)

    @property
    def several(self) -> bool:
        """Whether a label is a set of names, as in binary tasks."""
        return self.run.task.is_multilabel

    @property
    def pending(self) -> Pending:
        """The events that were stored but not applied when `refresh` was called."""
        return self._pending or self.refresh()

    def refresh(self) -> Pending:
        """Read the events that were stored since."""
        if self._pending is None or self._pending.version != self._reader.head():
            self._pending = self._plan()
        return self._pending

    def apply(self, between: Callable[[], None] = nothing) -> tuple[Pending, Update, list[str]]:
        """Apply all stored events; return them, their effect and the ids of new nodes.

        between: called between steps of the computation; it may ask for answers.
        """
        pending = self.refresh()
        update = self.live.commit(pending.change, between)
        self.graph = pending.change.graph_from(self.graph)
        self.observed = pending.change.labels_from(self.observed)
        fresh = [node.node for node in pending.nodes]
        for node in pending.nodes:
            self.numbers[node.node] = len(self.ids)
            self.ids.append(node.node)
            self.added[node.node] = node
        self.labels.update(pending.labels)
        self._edges.update(pending.edges)
        self._points, self._near_edges = pending.points, pending.near_edges
        self.version, self._pending = pending.version, None
        self.__dict__.pop("task", None)
        return pending, update, fresh

    def number_of(self, node: str) -> int:
        """The number of an applied node; raises UnknownNodeError."""
        if node not in self.numbers:
            raise UnknownNodeError(node)
        return self.numbers[node]

    def numbers_of(self, ids: Iterable[str]) -> list[int]:
        """The numbers of nodes, also of those that are pending; raises UnknownNodeError."""
        added = {node.node: len(self.ids) + n for n, node in enumerate(self.pending.nodes)}
        found = []
        for name in ids:
            number = self.numbers.get(name, added.get(name))
            if number is None:
                raise UnknownNodeError(name)
            found.append(number)
        return found

    def answer(self, nodes: Tensor, change: Change | None = None) -> Rows:
        """Exact answers after all stored events, and after a further change."""
        joined = self.pending.change
        if change is not None:
            joined = Change.joined([joined, change])
        if joined.is_empty:
            return self.rows(nodes, self.live.logits[nodes], self.observed[nodes])
        (logits,) = self.live.after([joined], [nodes])
        return self.rows(nodes, logits, joined.labels_from(self.observed)[nodes])

    def rows(self, nodes: Tensor, logits: Tensor, observed: Tensor) -> Rows:
        """Answers from logits and the labels that were inputs."""
        chances = keep_observed(self.run.probabilities_of(logits), observed)
        seen = is_known(observed)
        if self.several:
            left = observed == UNLABELED
            right = torch.maximum(chances, 1.0 - chances)
            # 0 / 0 is NaN: nothing was predicted.
            confidence = (right * left).sum(1) / left.sum(1)
        else:
            confidence = torch.where(seen, torch.nan, chances.max(1).values)
        return Rows(nodes, chances.float(), confidence.float(), seen)

    def label_of(self, name: str, *, pending: bool = False) -> tuple[Any, int]:
        """The label of an event on a node, and its version; (None, 0) if no event decides.

        pending: also look at events that are not applied.
        """
        current = self.labels.get(name)
        if pending:
            current = self.pending.labels.get(name, current)
        if current is None:
            return None, 0
        label = list(current.label) if isinstance(current.label, tuple) else current.label
        return label, current.version

    def change_of_labels(self, labels: Mapping[str, Any]) -> Change:
        """The change that sets labels, of which None hides one; for labels that nobody stores."""
        values = [self._as_tensor(label) for label in labels.values()]
        return Change(torch.tensor(self.numbers_of(labels)), torch.stack(values))

    @cached_property
    def task(self) -> Task:
        """The task as it is now, with its names and its graph; ids are texts.

        Its labels state which nodes have a label. The values of labels are in `observed`: events
        may give all nodes the same label, and a task refuses this, because it cannot be learned.
        """
        return replace(
            self.run.task,
            graph=self.graph,
            labels=self._labels_of_task(),
            node_names=tuple(self.ids),
            groups=None,
            positions=None,
            tables=None,
        )

    def _labels_of_task(self) -> Tensor:
        """The labels of the run, and the observed labels of nodes without a label in the run."""
        more = len(self.observed) - len(self.run.task.labels)
        unknown = self.observed.new_full((more, *self.observed.shape[1:]), UNLABELED)
        labels = torch.cat((self.run.task.labels, unknown))
        return torch.where(labels >= 0, labels, self.observed)

    def _as_tensor(self, label: str | Sequence[str] | None) -> Tensor:
        """A label in the form of the task's labels; None is an unknown label."""
        shape, dtype = self.observed.shape[1:], self.observed.dtype
        if label is None:
            return torch.full(shape, UNLABELED, dtype=dtype)
        if isinstance(label, str):
            return torch.tensor(self._class_numbers[label], dtype=dtype)
        row = torch.zeros(shape, dtype=dtype)
        row[[self._class_numbers[name] for name in label]] = 1
        return row

    def _plan(self) -> Pending:
        """The change from the applied events to all stored ones."""
        changes = self._reader.changes(self.version)
        first = len(self.ids)
        numbers = {node.node: first + n for n, node in enumerate(changes.nodes)}

        def number(name: str) -> int:
            return self.numbers[name] if name in self.numbers else numbers[name]

        parts = []
        points, near_edges = self._points, self._near_edges
        if changes.nodes:
            ids, values = [n.node for n in changes.nodes], [n.values for n in changes.nodes]
            x, more = self.additions.one_by_one(ids, values)
            parts.append(Change.add_nodes(first, len(ids) if x is None else x))
            if self.additions.self_loops:
                loops = [(n, n) for n in range(first, first + len(ids))]
                parts.append(self._edges_change(loops, None, []))
            if more is not None:
                points = more if points is None else np.concatenate((points, more))
                near_edges = frozenset(self.additions.near_edges(points))
                there, gone = near_edges - self._near_edges, self._near_edges - near_edges
                parts.append(self._edges_change(sorted(there), None, sorted(gone)))
        edges = {(edge.node, edge.target): edge for edge in changes.edges}
        if edges:
            parts.append(self._changed_edges(edges, number))
        labels = {current.node: current for current in changes.labels}
        if labels:
            nodes = [number(name) for name in labels]
            rows = [
                self._label_row(current, n)
                for current, n in zip(labels.values(), nodes, strict=True)
            ]
            parts.append(Change(torch.tensor(nodes), torch.stack(rows)))
        joined = Change.joined(parts) if parts else Change()
        return Pending(changes.version, joined, labels, edges, changes.nodes, points, near_edges)

    def _label_row(self, current: Current, number: int) -> Tensor:
        if current.version == 0 and number < len(self.base):
            return self.base[number]
        return self._as_tensor(current.label)

    def _changed_edges(self, edges: Mapping[Pair, EdgeNow], number: Any) -> Change:
        """The edges that follow from all events in force, for the pairs that changed."""
        known = {**self._edges, **edges}
        added: dict[Pair, EdgeNow] = {}
        restored, gone = [], []
        for a, b in dict.fromkeys(edges):
            ways = [(a, b), (b, a)] if self.additions.both_ways else [(a, b)]
            decided = [known[way] for way in ways if way in known and known[way].version]
            # The last event decides about both directions.
            last = max(decided, key=lambda edge: edge.version, default=None)
            for way in ways:
                if last is None:
                    restored.append((number(way[0]), number(way[1])))
                elif last.present:
                    added[way] = last
                else:
                    gone.append((number(way[0]), number(way[1])))
        attr = None
        pairs = [(number(a), number(b)) for a, b in added]
        if added and self.additions.edge_columns:
            rows = [edge.write.values if edge.write else {} for edge in added.values()]
            found = [
                self.additions.edge_features([pair], [row])
                for pair, row in zip(added, rows, strict=True)
            ]
            attr = torch.cat([row for row in found if row is not None])
        changes = [self._edges_change(list(dict.fromkeys(pairs)), attr, gone)]
        if restored:
            changes.append(self._restored(list(dict.fromkeys(restored))))
        return Change.joined(changes)

    def _restored(self, pairs: list[tuple[int, int]]) -> Change:
        """The change after which edges are as the run has them."""
        old, graph = len(self.base), self._original
        there, attrs, gone = [], [], []
        for pair in pairs:
            slots = np.empty(0, np.int64)
            if max(pair) < old:
                given = np.array(pair, dtype=np.int64)[:, None]
                slots = entries_of_pairs(graph.indptr.numpy(), graph.source.numpy(), given)[1]
            if not len(slots):
                gone.append(pair)
                continue
            there.append(pair)
            attr = graph.edge_attr_of(torch.from_numpy(slots[:1]))
            if attr is not None:
                attrs.append(attr)
        return self._edges_change(there, torch.cat(attrs) if attrs else None, gone)

    def _edges_change(
        self, pairs: Sequence[tuple[int, int]], attr: Tensor | None, gone: Sequence[tuple[int, int]]
    ) -> Change:
        edges = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).t()
        without = torch.tensor(gone, dtype=torch.int64).reshape(-1, 2).t()
        if attr is None and self._original.num_edge_features and len(pairs):
            attr = torch.zeros(len(pairs), self._original.num_edge_features)
        return Change(edges=edges, edge_attr=attr, without=without)


def neighbors_of(graph: Graph, number: int) -> dict[int, str]:
    """The nodes at the other end of the edges of a node, with the direction of the edge."""
    begin, end = int(graph.indptr[number]), int(graph.indptr[number + 1])
    found = {int(n): "in" for n in graph.source[begin:end].tolist()}
    out = torch.nonzero(graph.source == number).squeeze(1)
    for target in torch.searchsorted(graph.indptr.long(), out, right=True).sub(1).tolist():
        found[target] = "both" if target in found else "out"
    found.pop(number, None)
    return found
