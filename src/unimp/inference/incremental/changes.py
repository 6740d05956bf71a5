"""Changes after training: labels, features, new nodes, and edges that are added or removed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from unimp.errors import GraphError, TaskError
from unimp.graph.changed import changed_graph
from unimp.graph.features import SparseFeatures, as_float
from unimp.graph.graph import Graph, checked_numbers
from unimp.tasks.labels import UNLABELED, checked_labels


@dataclass(frozen=True, eq=False)
class Change:
    """New labels and features of some nodes, more nodes, and edges to remove and to add.

    New nodes get the numbers N, N + 1, …, where N is the number of nodes before the change. If
    nodes have features, `featured` must contain every new node. Edges are directed; a change of a
    graph in which each edge has a reverse lists both. First the edges `without` are removed, with
    all duplicates. Then each of `edges` exists once: an edge that exists already is replaced.
    """

    nodes: Tensor | None = None  # [k] distinct nodes whose labels change
    labels: Tensor | None = None  # [k] or [k, T]: the new labels; None: hide them
    without: Tensor | None = None  # [2, m] directed edges to remove: sources above targets
    new_nodes: int = 0  # number of nodes that are added
    featured: Tensor | None = None  # [r] distinct nodes whose features are set
    x: Tensor | SparseFeatures | None = None  # [r, F] their features
    edges: Tensor | None = None  # [2, a] distinct directed edges to add: sources above targets
    edge_attr: Tensor | None = None  # [a, d_e] their features

    @classmethod
    def hide(cls, nodes: Any) -> Change:
        """Hide the labels of `nodes`."""
        return cls(nodes=torch.as_tensor(nodes, dtype=torch.int64).reshape(-1))

    @classmethod
    def remove_edges(cls, pairs: Any, *, both: bool = False) -> Change:
        """Remove the edge from the first to the second node of each pair; both: and its reverse."""
        edges = _pairs(pairs)
        return cls(without=torch.cat((edges, edges.flip(0)), 1) if both else edges)

    @classmethod
    def add_edges(cls, pairs: Any, edge_attr: Any = None, *, both: bool = False) -> Change:
        """Add the edge from the first to the second node of each pair, or replace it.

        both: also the reverse of each edge, with the same features, as in a symmetrized graph.
        """
        edges, attr = _pairs(pairs), None if edge_attr is None else torch.as_tensor(edge_attr)
        if both:
            other = edges[0] != edges[1]  # a self-loop is its own reverse
            edges = torch.cat((edges, edges[:, other].flip(0)), 1)
            attr = None if attr is None else torch.cat((attr, attr[other]))
        return cls(edges=edges, edge_attr=attr)

    @classmethod
    def add_nodes(cls, num_nodes: int, x: Tensor | SparseFeatures | int) -> Change:
        """Add one node per row of x, or x nodes without features, to a graph of `num_nodes`."""
        if isinstance(x, int):
            return cls(new_nodes=x)
        count = int(x.shape[0])
        return cls(new_nodes=count, featured=torch.arange(num_nodes, num_nodes + count), x=x)

    @classmethod
    def joined(cls, changes: Sequence[Change]) -> Change:
        """Return one change that has the same result as these changes, one after the other."""
        if len(changes) == 1:
            return changes[0]
        nodes, labels = _last_labels(changes)
        featured, x = _last_features(changes)
        without, edges, edge_attr = _last_edges(changes)
        count = sum(change.new_nodes for change in changes)
        return cls(nodes, labels, without, count, featured, x, edges, edge_attr)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is changed."""
        return not self.changes_graph and (self.nodes is None or not self.nodes.numel())

    @property
    def changes_graph(self) -> bool:
        """Whether nodes, features or edges are changed, and not only labels."""
        return self.changes_edges or (self.featured is not None and bool(self.featured.numel()))

    @property
    def changes_edges(self) -> bool:
        """Whether nodes are added, or edges are added or removed."""
        parts = (self.without, self.edges)
        return bool(self.new_nodes) or any(part is not None and part.numel() for part in parts)

    def graph_from(self, graph: Graph) -> Graph:
        """Apply a checked change to the graph."""
        if not self.changes_graph:
            return graph
        return changed_graph(
            graph,
            num_nodes=graph.num_nodes + self.new_nodes,
            without=self.without,
            edges=self.edges,
            edge_attr=self.edge_attr,
            nodes=self.featured,
            x=self.x,
        )

    def labels_from(self, observed: Tensor) -> Tensor:
        """Apply a checked change to a copy of the labels; new nodes have none unless it gives
        them one."""
        more = observed.new_full((self.new_nodes, *observed.shape[1:]), UNLABELED)
        observed = torch.cat((observed, more))
        if self.nodes is not None:
            observed[self.nodes] = UNLABELED if self.labels is None else self.labels.to(observed)
        return observed


@dataclass(frozen=True, eq=False)
class Update:
    """The effect of a change on the logits of all nodes.

    `apply` makes the change permanent; everything that it stores was computed before. `nodes` are
    the nodes whose logits differ, in increasing order; those of new nodes were NaN before.
    """

    nodes: Tensor  # [m]
    before: Tensor  # [m, classes]
    after: Tensor  # [m, classes]
    apply: Callable[[], None]

    def applied(self) -> Update:
        """Apply the change, and return its effect without the rows that are stored now."""
        self.apply()
        return replace(self, apply=nothing)

    def sizes(self, chances: Callable[[Tensor], Tensor] = lambda logits: logits) -> Tensor:
        """The largest absolute difference of each node, [m]; infinite for new nodes.

        chances: a function from logits to the numbers to compare, such as probabilities.
        """
        sizes = torch.full((len(self.nodes),), torch.inf)
        old = ~self.before.isnan().any(1)
        if bool(old.any()):
            sizes[old] = (chances(self.after[old]) - chances(self.before[old])).abs().amax(1)
        return sizes


def nothing() -> None:
    """Do nothing: a change is applied already, or nobody waits between two steps."""


class ChangeableLogits(Protocol):
    """Logits of the present state and after changes; nodes have the numbers of the task."""

    @property
    def logits(self) -> Tensor:
        """The logits of all nodes in the present state: [N, classes]."""

    @property
    def without_labels(self) -> Tensor:
        """The logits of all nodes with every label hidden: [N, classes]."""

    def after(self, changes: Sequence[Change], targets: Sequence[Tensor]) -> list[Tensor]:
        """Return the logits of targets[k] after changes[k] alone: [len(targets[k]), classes]."""

    @property
    def is_local(self) -> bool:
        """Whether a change affects a part of the graph only, so that `after` is usually much
        faster than `prepare`."""

    def prepare(self, change: Change, between: Callable[[], None] = nothing) -> Update:
        """Compute the logits of all nodes after a change, which is not yet applied.

        No other change may be applied before it. between: called between steps of a long
        computation; it may call `after`.
        """

    def commit(self, change: Change, between: Callable[[], None] = nothing) -> Update:
        """Apply a change permanently, and return its effect."""


@dataclass(frozen=True)
class Limits:
    """What a change must fit: the sizes of a task."""

    num_nodes: int
    observed: Tensor  # labels in the form of the task's labels
    num_classes: int
    features: int  # columns of x; 0 if nodes have no features
    sparse: bool  # x is SparseFeatures
    edge_features: int | None  # columns of edge_attr; None: they are not used


def limits_of(graph: Graph, observed: Tensor, num_classes: int) -> Limits:
    """Return the limits of changes of a graph and its observed labels."""
    sparse, edge_features = isinstance(graph.x, SparseFeatures), graph.num_edge_features
    return Limits(graph.num_nodes, observed, num_classes, graph.num_features, sparse, edge_features)


def checked_change(change: Change, limits: Limits) -> Change:
    """Return a change that is valid for the task; refuse any other.

    The edge from a node to itself cannot be removed, because some models add it on their own.
    """
    if change.new_nodes < 0:
        raise GraphError(f"a change adds {change.new_nodes} nodes; give 0 or more")
    count = limits.num_nodes + change.new_nodes
    nodes = _distinct(change.nodes, count)
    labels = _checked_labels(change, nodes, limits)
    without = _checked_edges(change.without, count)
    if without is not None:
        loops = without[0][without[0] == without[1]]
        if loops.numel():
            raise GraphError(f"the edge of node {int(loops[0])} to itself cannot be removed")
    edges = _checked_edges(change.edges, count)
    if edges is not None and torch.unique(edges, dim=1).shape[1] < edges.shape[1]:
        raise GraphError("a change adds an edge twice; list each edge once")
    featured, x = _checked_features(change, count, limits)
    attr = _checked_edge_attr(change, edges, limits)
    return Change(nodes, labels, without, change.new_nodes, featured, x, edges, attr)


def _distinct(nodes: Tensor | None, num_nodes: int) -> Tensor | None:
    if nodes is None:
        return None
    nodes = checked_numbers(nodes.reshape(-1), num_nodes)
    refuse_repeated(nodes, num_nodes)
    return nodes


def refuse_repeated(keys: Tensor, num_nodes: int) -> None:
    """Refuse a node that occurs twice in one change; keys: number of the change · N + node."""
    found, counts = torch.unique(keys, return_counts=True)
    if len(found) < len(keys):
        node = int(found[counts > 1][0]) % num_nodes
        raise GraphError(f"node {node} occurs twice in a change; list each node once")


def _checked_labels(change: Change, nodes: Tensor | None, limits: Limits) -> Tensor | None:
    if change.labels is None:
        return None
    if nodes is None:
        raise TaskError("a change contains labels, but no nodes; give the node of each label")
    labels = checked_labels(change.labels, len(nodes), limits.num_classes, nodes)
    if labels.ndim != limits.observed.ndim:
        raise TaskError(
            f"the labels of a change have shape {tuple(labels.shape)}; they must have the form "
            f"of the task's labels, {tuple(limits.observed.shape)}"
        )
    return labels


def _checked_edges(edges: Tensor | None, num_nodes: int) -> Tensor | None:
    if edges is None or not edges.numel():
        return None
    if edges.ndim != 2 or len(edges) != 2:
        raise GraphError(
            f"the edges of a change have shape {tuple(edges.shape)}; they must be [2, m], "
            "sources above targets"
        )
    return checked_numbers(edges.reshape(-1), num_nodes).reshape(2, -1)


def _checked_features(
    change: Change, num_nodes: int, limits: Limits
) -> tuple[Tensor | None, Tensor | SparseFeatures | None]:
    featured, x = _distinct(change.featured, num_nodes), change.x
    rows = 0 if featured is None else len(featured)
    if not limits.features:
        if rows or x is not None:
            raise GraphError("a change contains features, but the nodes have none; omit them")
        return None, None
    if x is None:
        x = torch.empty(0, limits.features)
    if limits.sparse and isinstance(x, Tensor):
        from scipy.sparse import csr_array

        x = SparseFeatures.from_scipy(csr_array(as_float(x, "node features").numpy()))
    elif isinstance(x, SparseFeatures) and not limits.sparse:
        x = x.to_dense()
    elif isinstance(x, Tensor):
        x = _checked_rows(x, "node features")
    if tuple(x.shape) != (rows, limits.features):
        raise GraphError(
            f"the features of a change have shape {tuple(x.shape)}; they must have shape "
            f"{(rows, limits.features)}: one row per node of `featured`"
        )
    new = torch.arange(limits.num_nodes, num_nodes)
    missing = new if featured is None else new[~torch.isin(new, featured)]
    if len(missing):
        raise GraphError(f"new node {int(missing[0])} has no features; give a row for each")
    return (featured, x) if rows else (None, None)


def _checked_edge_attr(change: Change, edges: Tensor | None, limits: Limits) -> Tensor | None:
    if edges is None or not limits.edge_features:
        return None
    attr, wanted = change.edge_attr, (edges.shape[1], limits.edge_features)
    if attr is not None:
        attr = _checked_rows(attr, "edge features")
    if attr is None or tuple(attr.shape) != wanted:
        found = None if attr is None else tuple(attr.shape)
        raise GraphError(
            f"the edge features of a change have shape {found}; they must have shape {wanted}: one "
            "row per added edge"
        )
    return attr


def _checked_rows(rows: Tensor, what: str) -> Tensor:
    """Return finite rows, in double precision only if they are given so."""
    finite = as_float(rows, what)
    return rows.detach().cpu() if rows.dtype == torch.float64 else finite


def _pairs(pairs: Any) -> Tensor:
    return torch.as_tensor(pairs, dtype=torch.int64).reshape(-1, 2).t()


def _last_of(keys: Tensor) -> Tensor:
    """Return the position of the last occurrence of each key, in increasing order of keys."""
    _, inverse = torch.unique(keys, return_inverse=True)
    last = torch.full((int(inverse.max()) + 1 if len(inverse) else 0,), -1)
    return last.scatter_reduce_(0, inverse, torch.arange(len(keys)), "amax")


def _last_labels(changes: Sequence[Change]) -> tuple[Tensor | None, Tensor | None]:
    given = [change for change in changes if change.nodes is not None and change.nodes.numel()]
    if not given:
        return None, None
    nodes = torch.cat([change.nodes.reshape(-1) for change in given if change.nodes is not None])
    form = next((change.labels for change in given if change.labels is not None), None)
    last = _last_of(nodes)
    if form is None:
        return nodes[last], None
    parts = [
        form.new_full((change.nodes.numel(), *form.shape[1:]), UNLABELED)
        if change.labels is None
        else change.labels
        for change in given
        if change.nodes is not None
    ]
    return nodes[last], torch.cat(parts)[last]


def _last_features(
    changes: Sequence[Change],
) -> tuple[Tensor | None, Tensor | SparseFeatures | None]:
    rows, values = [], []
    for change in changes:
        if change.featured is not None and change.x is not None and change.featured.numel():
            rows.append(change.featured.reshape(-1))
            values.append(change.x)
    if not rows:
        return None, None
    last, nodes = _last_of(torch.cat(rows)), torch.cat(rows)
    dense = [part for part in values if isinstance(part, Tensor)]
    if len(dense) == len(values):
        return nodes[last], torch.cat(dense)[last]
    from scipy.sparse import csr_array, vstack

    matrices = [csr_array(v.numpy()) if isinstance(v, Tensor) else v.to_scipy() for v in values]
    return nodes[last], SparseFeatures.from_scipy(vstack(matrices, format="csr"))[last]


def _last_edges(changes: Sequence[Change]) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the edges to remove, those to add, and their features: the last step decides."""
    pairs, adds, attrs = [], [], []
    width = next((c.edge_attr.shape[1] for c in changes if c.edge_attr is not None), 0)
    for change in changes:
        for given, is_added in ((change.without, False), (change.edges, True)):
            if given is None or not given.numel():
                continue
            pairs.append(given)
            adds.append(torch.full((given.shape[1],), is_added))
            attr = change.edge_attr if is_added else None
            if is_added and width and attr is None:
                raise GraphError("some added edges have features and others do not; give all some")
            attrs.append(torch.zeros(given.shape[1], width) if attr is None else attr)
    if not pairs:
        return None, None, None
    ends, adding, rows = torch.cat(pairs, 1).long(), torch.cat(adds), torch.cat(attrs)
    last = _last_of(ends[0] * (int(ends.max()) + 1) + ends[1])
    kept, added = last[~adding[last]], last[adding[last]]
    return ends[:, kept], ends[:, added], rows[added] if width else None
