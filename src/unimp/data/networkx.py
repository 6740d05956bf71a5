"""Graphs and tasks from NetworkX and back.

An edge u → v carries messages from u to v; an undirected edge carries them in both directions.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unimp.errors import GraphError, TaskError, nearest_names
from unimp.graph.features import SparseFeatures
from unimp.graph.graph import Graph
from unimp.tasks.classes import encode_classes
from unimp.tasks.labels import UNLABELED, Split
from unimp.tasks.task import Task

PARTS = ("train", "val", "test")


def graph_from_networkx(
    network: Any, *, features: str | Sequence[str] = (), edge_features: str | Sequence[str] = ()
) -> Graph:
    """Return the graph of a NetworkX graph; node i is list(network)[i].

    `features` and `edge_features` name attributes. Each is a number, or a vector of the same length
    on every node or edge. Concatenated, they become x and edge_attr.
    """
    if not hasattr(network, "is_directed") or not hasattr(network, "edges"):
        raise GraphError(f"expected a networkx graph, got a {type(network).__name__}.")
    keys = list(network)
    place = {key: number for number, key in enumerate(keys)}
    edges = list(network.edges(data=True))
    ends = np.array([(place[u], place[v]) for u, v, _ in edges], dtype=np.int64).reshape(-1, 2).T
    nodes = [network.nodes[key] for key in keys]
    x = _matrix(nodes, _names(features), lambda row: f"node {keys[row]!r}")
    attr = _matrix(
        [attributes for _, _, attributes in edges],
        _names(edge_features),
        lambda row: f"edge {edges[row][0]!r} → {edges[row][1]!r}",
    )
    if not network.is_directed():
        other = np.flatnonzero(ends[0] != ends[1])  # a self-loop is its own reverse
        ends = np.concatenate((ends, ends[::-1, other]), axis=1)
        attr = None if attr is None else np.concatenate((attr, attr[other]))
    return Graph.from_edges(ends, num_nodes=len(keys), x=x, edge_attr=attr)


def graph_to_networkx(graph: Graph, *, names: Sequence[Hashable] | None = None) -> Any:
    """Return a directed NetworkX graph; features are the attributes `x` and `edge_attr`.

    The nodes are numbers, or `names`. If the graph has duplicate edges, the result is a multigraph.
    """
    try:
        import networkx
    except ImportError as error:
        raise GraphError("networkx is not installed. Run pip install 'unimp[networkx]'.") from error
    keys = list(range(graph.num_nodes)) if names is None else list(names)
    if len(set(keys)) != graph.num_nodes:
        raise GraphError(
            f"names contains {len(set(keys))} different names for {graph.num_nodes} nodes; each "
            "node needs its own name."
        )
    graph = graph.to("cpu")
    has_duplicates = graph.deduplicate("first").num_edges < graph.num_edges
    network = networkx.MultiDiGraph() if has_duplicates else networkx.DiGraph()
    network.add_nodes_from(keys)
    if graph.x is not None:
        rows = graph.nodes.features
        dense = rows.toarray() if isinstance(graph.x, SparseFeatures) else rows
        networkx.set_node_attributes(network, dict(zip(keys, dense.tolist(), strict=True)), "x")
    attr = graph.edge_attr_of(None)
    values = None if attr is None else attr.tolist()
    for slot, (source, target) in enumerate(graph.edge_index.T.tolist()):
        attributes = {} if values is None else {"edge_attr": values[slot]}
        network.add_edge(keys[source], keys[target], **attributes)
    return network


def task_from_networkx(
    network: Any,
    *,
    label: str = "label",
    split: str = "split",
    features: str | Sequence[str] = (),
    edge_features: str | Sequence[str] = (),
    name: str = "networkx",
) -> Task:
    """Return the task of a NetworkX graph with labels and a split in its node attributes.

    The attribute `label` is the class of a node. If it is missing, None, NaN, "" or −1, the label
    is unknown. The attribute `split` is train, val or test. If no node has it, the train set
    contains all nodes with a known label. The keys of the nodes, as text, become their names.
    """
    graph = graph_from_networkx(network, features=features, edge_features=edge_features)
    keys = list(network)
    values = np.empty(len(keys), dtype=object)
    values[:] = [network.nodes[key].get(label) for key in keys]
    codes, classes = encode_classes(values)
    if not len(classes):
        attributes = {name for key in keys for name in network.nodes[key]}
        hint = f"; {nearest_names(label, attributes)}" if attributes else ""
        raise TaskError(f"no node has a label in its attribute {label!r}{hint}")
    node_names = tuple(str(key) for key in keys)
    if len(set(node_names)) < len(keys):
        raise TaskError(
            "two nodes have the same name as text, such as 1 and '1'. Rename one of them with "
            "networkx.relabel_nodes."
        )
    parts: dict[str, list[int]] = {part: [] for part in PARTS}
    for number, key in enumerate(keys):
        part = network.nodes[key].get(split)
        if part is None:
            continue
        if part not in parts:
            raise TaskError(
                f"attribute {split!r} of node {key!r} is {part!r}; it must be train, val or test."
            )
        parts[part].append(number)
    if not any(parts.values()):
        parts["train"] = np.flatnonzero(codes != UNLABELED).tolist()
    return Task(
        name=name,
        graph=graph,
        labels=torch.from_numpy(codes),
        split=Split(*(torch.tensor(parts[part], dtype=torch.int64) for part in PARTS)),
        metric="accuracy",
        num_classes=len(classes),
        class_names=tuple(str(value) for value in classes.tolist()),
        node_names=node_names,
    )


def task_to_networkx(task: Task) -> Any:
    """Return a NetworkX graph with the node attributes x, label, split and the edge_attr of edges.

    A label is the name of its class, or the number if classes have no names. Unknown labels are
    omitted.
    """
    if task.is_multilabel:
        raise TaskError(
            "a task with binary tasks has several labels per node. Use "
            "graph_to_networkx(task.graph) for the graph alone."
        )
    network = graph_to_networkx(task.graph, names=task.node_names)
    keys = list(network)
    for key, code in zip(keys, task.labels.tolist(), strict=True):
        if code != UNLABELED:
            named = code if task.class_names is None else task.class_names[code]
            network.nodes[key]["label"] = named
    for part in PARTS:
        for number in getattr(task.split, part).tolist():
            network.nodes[keys[number]]["split"] = part
    return network


def _names(names: str | Sequence[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _matrix(
    attributes: Sequence[Mapping[str, Any]], names: Sequence[str], describe: Callable[[int], str]
) -> NDArray[np.float64] | None:
    """Concatenate the named attributes, one row per node or edge; None if there are no names."""
    if not names:
        return None
    columns = []
    for name in names:
        rows: list[NDArray[Any]] = []
        for row, present in enumerate(attributes):
            value = present.get(name)
            if value is None:
                missing = sum(others.get(name) is None for others in attributes)
                hint = f" ({nearest_names(name, present)})" if present else ""
                raise GraphError(
                    f"{describe(row)} has no attribute {name!r}{hint}; it is missing {missing} "
                    "times. Give it a value everywhere."
                )
            array = np.asarray(value)
            if array.dtype.kind not in "fiub" or array.ndim > 1:
                raise GraphError(
                    f"attribute {name!r} of {describe(row)} is {value!r}; it must be a number or a "
                    "list of numbers. Encode text and categories as numbers first."
                )
            rows.append(array.reshape(-1))
            if len(rows[-1]) != len(rows[0]):
                raise GraphError(
                    f"attribute {name!r} of {describe(row)} has {len(rows[-1])} numbers, but that "
                    f"of {describe(0)} has {len(rows[0])}. Give all the same length."
                )
        columns.append(np.stack(rows) if rows else np.empty((0, 1)))
    return np.concatenate(columns, axis=1)
