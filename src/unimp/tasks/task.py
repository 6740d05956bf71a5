"""A task: a graph, its labels, a split and the metric that scores it."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, get_args

from torch import Tensor

from unimp.config.arguments import check_argument, check_fields
from unimp.config.choices import Metric
from unimp.errors import TaskError, nearest_names
from unimp.graph.features import SparseFeatures, as_tensor
from unimp.graph.graph import Graph
from unimp.tasks.known import SEVERAL_CLASSES, one_class
from unimp.tasks.labels import UNLABELED, Split, checked_labels, is_known, whole_numbers

METRICS: tuple[str, ...] = get_args(Metric)


@dataclass(frozen=True)
class Sizes:
    """The sizes of a task, from which a model is built."""

    features: int  # width of x; 0 without node features
    edge_features: int  # width of edge_attr; 0 without edge features
    classes: int  # classes, or binary tasks
    multilabel: bool
    sparse: bool = False  # x is SparseFeatures

    def with_width(self, features: int) -> Sizes:
        """Return these sizes with dense features of another width, for a nested model."""
        return replace(self, features=features, sparse=False)


class TableSource(Protocol):
    """How rows of a user's tables become nodes, edges and labels of a task.

    `data.tables.transforms.Transforms` implements it; a run stores it beside its task.
    """

    @property
    def whole_ids(self) -> bool:
        """Whether the user's ids are whole numbers."""

    @property
    def label_separator(self) -> str:
        """The text between several labels in one cell; empty if a cell contains one label."""

    def save(self, path: Path) -> None:
        """Write it as JSON."""


def repeated_name(names: Sequence[str]) -> str:
    """Return the first name that occurs twice, in quotes; empty if all differ.

    Names are looked up without spaces around them, so they are compared in the same way.
    """
    counts = Counter(str(name).strip() for name in names)
    return next((repr(name) for name, count in counts.items() if count > 1), "")


def _checked_names(key: str, given: Any) -> tuple[str, ...]:
    """Return names from any ordered collection, such as a list, an array or a column."""
    # A set has no order, and a table or a mapping would be read as the names of its columns.
    several = isinstance(given, str | set | frozenset | Mapping) or getattr(given, "ndim", 1) != 1
    if not several:
        with suppress(TypeError):
            given = tuple(given)
    check_argument("Task", key, given, Sequence[str])
    _refuse_surrogates(key, given)
    return tuple(map(str, given))


def _refuse_surrogates(key: str, names: Sequence[str]) -> None:
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise TaskError(
                f"{key} contains {name!r}, which cannot be stored as UTF-8. Remove the characters "
                "from \\ud800 to \\udfff."
            ) from None


@dataclass(frozen=True, eq=False)
class Task:
    """A graph with labels, a split and a metric, checked completely.

    Arrays are copied, so a later change of yours does not change the task.
    """

    name: str
    graph: Graph
    labels: Tensor  # [N] int64 class, −1 unknown; or [N, T] int8 of 0/1, −1 missing
    split: Split
    metric: Metric
    num_classes: int  # classes, or T binary tasks
    class_names: tuple[str, ...] | None = None
    node_names: Sequence[str] | None = None
    groups: Tensor | None = None  # [N] group numbers; the split keeps groups together
    positions: Tensor | None = None  # [N, 2] x and y, for maps only
    tables: TableSource | None = None  # where the task comes from

    def __post_init__(self) -> None:
        check_fields(self, "name", "graph", "split", "num_classes")
        if not 1 <= self.num_classes < 2**31:
            raise TaskError(
                f"num_classes is {self.num_classes}; there must be at least one class, and fewer "
                "than 2**31."
            )
        object.__setattr__(self, "num_classes", int(self.num_classes))  # may be a numpy number
        labels = checked_labels(self.labels, self.graph.num_nodes, self.num_classes)
        object.__setattr__(self, "labels", labels)
        check_argument("Task", "metric", self.metric, str)
        if self.metric not in METRICS:
            raise TaskError(f"no metric {self.metric!r}; {nearest_names(self.metric, METRICS)}")
        if self.metric == "rocauc" and labels.ndim == 1 and self.num_classes != 2:
            raise TaskError(
                f"rocauc needs two classes or binary tasks; there are {self.num_classes} classes."
            )
        _refuse_surrogates("name", (self.name,))
        for key in ("class_names", "node_names"):
            if (given := getattr(self, key)) is not None:
                object.__setattr__(self, key, _checked_names(key, given))
        for names, count, what in (
            (self.class_names, self.num_classes, "class"),
            (self.node_names, self.graph.num_nodes, "node"),
        ):
            if names is not None and len(names) != count:
                raise TaskError(f"there are {len(names)} {what} names, but {count} are needed.")
            if names is not None and (twice := repeated_name(names)):
                raise TaskError(
                    f"two {what} names are {twice}. Give each a different name; spaces around a "
                    "name do not count."
                )
        if what_is_wrong := one_class(labels, self.num_classes, self.class_names):
            raise TaskError(f"{what_is_wrong}. {SEVERAL_CLASSES}.")
        self._check_groups()
        self._check_positions()
        known = is_known(labels)
        for name in ("train", "val", "test"):
            nodes: Tensor = getattr(self.split, name)
            if nodes.numel() and not 0 <= int(nodes.min()) <= int(nodes.max()) < len(labels):
                raise TaskError(f"the {name} set contains a node outside of 0..{len(labels) - 1}.")
            if name != "test" and not bool(known[nodes].all()):
                node = int(nodes[~known[nodes]][0])
                raise TaskError(
                    f"node {node} is in the {name} set, but its label is unknown. Remove it."
                )
        if self.split.train.numel() == 0:
            raise TaskError("the train set is empty. Add at least one node with a known label.")

    def _check_groups(self) -> None:
        if self.groups is None:
            return
        groups = whole_numbers(self.groups, "groups")
        if groups.shape != (self.graph.num_nodes,):
            raise TaskError(
                f"groups are {groups.dtype} of shape {tuple(groups.shape)}; give one integer for "
                f"each of the {self.graph.num_nodes} nodes, equal within a group."
            )
        object.__setattr__(self, "groups", groups.long())

    def _check_positions(self) -> None:
        if self.positions is None:
            return
        positions = as_tensor(self.positions, "positions").float()
        expected = (self.graph.num_nodes, 2)
        if positions.shape != expected:
            raise TaskError(
                f"positions have shape {tuple(positions.shape)}; they must have shape {expected}: "
                "x and y of each node."
            )
        wrong = (~positions.isfinite().all(1)).nonzero()
        if len(wrong):
            node = int(wrong[0])
            raise TaskError(
                f"the position of node {node} is {tuple(positions[node].tolist())} ({len(wrong):,} "
                "nodes have no finite position). Give x and y of every node as finite numbers, or "
                "no positions at all; they are used only for maps."
            )
        object.__setattr__(self, "positions", positions)

    @property
    def is_multilabel(self) -> bool:
        return self.labels.ndim == 2

    @property
    def sizes(self) -> Sizes:
        return Sizes(
            features=self.graph.num_features,
            edge_features=self.graph.num_edge_features,
            classes=self.num_classes,
            multilabel=self.is_multilabel,
            sparse=isinstance(self.graph.x, SparseFeatures),
        )

    @property
    def homophily(self) -> float:
        """The share of edges between known nodes whose labels are equal; NaN without such edges."""
        source = self.labels[self.graph.source.long()]
        target = self.labels[self.graph.target.long()]
        both = (source != UNLABELED) & (target != UNLABELED)
        return float((source == target)[both].double().mean())

    def with_graph(self, graph: Graph) -> Task:
        """Return the task with another graph on the same nodes."""
        return replace(self, graph=graph)

    def data_hash(self) -> str:
        """Return the SHA-256 of everything a result depends on.

        These are the graph, labels, split and groups, and what predictions are reported under: the
        metric, and the names of classes and nodes.
        """
        digest = hashlib.sha256()
        names = [self.metric, self.num_classes, self.class_names, self.node_names]
        digest.update(json.dumps(names).encode())
        parts = self.graph.arrays
        parts += [self.labels, self.split.train, self.split.val, self.split.test]
        parts += [] if self.groups is None else [self.groups]
        for part in parts:
            if part is None:
                digest.update(b"none")
                continue
            digest.update(f"{part.dtype}{tuple(part.shape)}".encode())
            digest.update(part.contiguous().cpu().numpy().data)
        return digest.hexdigest()

    def __repr__(self) -> str:
        kind = "binary tasks" if self.is_multilabel else "classes"
        sizes = (self.split.train.numel(), self.split.val.numel(), self.split.test.numel())
        return (
            f"Task({self.name!r}, {self.graph!r}, {self.num_classes} {kind}, "
            f"train/val/test {'/'.join(f'{s:,}' for s in sizes)}, metric {self.metric})"
        )
