"""Tasks of other libraries and back: labels and splits beside the graphs of `graph.interop`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unimp.config.choices import Metric
from unimp.data.graph_interop import (
    graph_from_networkx,
    graph_from_pyg,
    graph_to_networkx,
    graph_to_pyg,
    stored,
)
from unimp.errors import TaskError, nearest_names
from unimp.graph.features import as_tensor
from unimp.tasks.classes import encode_classes
from unimp.tasks.labels import UNLABELED, Split, is_known, mask_of
from unimp.tasks.task import Task

PARTS = ("train", "val", "test")


def task_from_pyg(
    data: Any, *, split: int = 0, metric: Metric | None = None, name: str = "pyg"
) -> Task:
    """The task in a `torch_geometric.data.Data`: its graph, y, and train_mask, val_mask, test_mask.

    y has one class a node (−1: unknown), or a row of 0 and 1 (−1 or NaN: missing). Of masks with
    several columns, `split` names one. Without train_mask every known label is trained on. What
    `task_to_pyg` adds (num_classes, class_names, node_names, groups) is taken where it is there.
    """
    graph, told = graph_from_pyg(data), stored(data)
    labels = _labels(told.get("y"), graph.num_nodes, one_task=told.get("num_classes") == 1)
    masks = {part: _mask(told, part, split, graph.num_nodes) for part in PARTS}
    if told.get("train_mask") is None:
        masks["train"] = is_known(labels) & ~masks["val"] & ~masks["test"]
    class_names, node_names = (
        None if told.get(key) is None else tuple(told[key]) for key in ("class_names", "node_names")
    )
    count = int(labels.max()) + 1 if labels.ndim == 1 else labels.shape[1]
    return Task(
        name=name,
        graph=graph,
        labels=labels,
        split=Split(*(torch.nonzero(masks[part]).squeeze(1) for part in PARTS)),
        metric=metric or ("accuracy" if labels.ndim == 1 else "rocauc"),
        num_classes=told.get("num_classes") or max(count, 1),
        groups=told.get("groups"),
        class_names=class_names,
        node_names=node_names,
    )


def task_to_pyg(task: Task) -> Any:
    """A `torch_geometric.data.Data` with y and masks, and what else the task says of its nodes."""
    data = graph_to_pyg(task.graph)
    data.y = task.labels
    for part in PARTS:
        data[f"{part}_mask"] = mask_of(getattr(task.split, part), len(task.labels))
    data.num_classes = task.num_classes
    for key in ("class_names", "node_names"):
        if (names := getattr(task, key)) is not None:
            data[key] = list(names)
    if task.groups is not None:
        data.groups = task.groups
    return data


def task_from_networkx(
    network: Any,
    *,
    label: str = "label",
    split: str = "split",
    features: str | Sequence[str] = (),
    edge_features: str | Sequence[str] = (),
    name: str = "networkx",
) -> Task:
    """The task in a NetworkX graph, whose node attributes hold labels and the split.

    A node without the attribute `label` (or with None, NaN, "" or −1 there) is unknown; any other
    value is its class. The attribute `split` is train, val or test; where no node has one, every
    known label is trained on. Names of nodes are their keys, as text.
    """
    graph = graph_from_networkx(network, features=features, edge_features=edge_features)
    keys = list(network)
    values = np.empty(len(keys), dtype=object)
    values[:] = [network.nodes[key].get(label) for key in keys]
    codes, classes = encode_classes(values)
    if not len(classes):
        have = {told for key in keys for told in network.nodes[key]}
        hint = f"; {nearest_names(label, have)}" if have else ""
        raise TaskError(f"no node has a label in its attribute {label!r}{hint}")
    node_names = tuple(str(key) for key in keys)
    if len(set(node_names)) < len(keys):
        raise TaskError("two nodes have the same name as text, such as 1 and '1'; relabel them")
    parts: dict[str, list[int]] = {part: [] for part in PARTS}
    for number, key in enumerate(keys):
        part = network.nodes[key].get(split)
        if part is None:
            continue
        if part not in parts:
            raise TaskError(
                f"attribute {split!r} of node {key!r} is {part!r}; it takes train, val or test"
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
    """A NetworkX graph with the attributes x, label, split of nodes and edge_attr of edges.

    Unknown labels are left out; known ones are the names of their classes, or else numbers.
    """
    if task.is_multilabel:
        raise TaskError("binary tasks have no one label a node; take graph_to_networkx(task.graph)")
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


def _labels(y: Any, num_nodes: int, *, one_task: bool) -> Tensor:
    """y as a task's labels: [N], or [N, T] of 0, 1 and −1."""
    if not isinstance(y, Tensor) or y.ndim == 0 or len(y) != num_nodes:
        shape = "none" if not isinstance(y, Tensor) else f"one of shape {tuple(y.shape)}"
        raise TaskError(
            f"a task needs y with a label for each of {num_nodes} nodes; data has {shape}. For the "
            "graph alone take unimp.data.graph_interop.graph_from_pyg"
        )
    labels: Tensor = y.detach().cpu()
    if labels.ndim == 2 and labels.shape[1] == 1 and not one_task:  # as OGB stores classes
        labels = labels[:, 0]
    if labels.is_floating_point():
        labels = torch.where(labels.isnan(), UNLABELED, labels)
        if not bool((labels == labels.round()).all()):
            raise TaskError("y holds numbers that are no classes; regression is not supported")
    if labels.ndim == 1:
        return labels.long()
    if labels.ndim > 2 or not bool(((labels >= UNLABELED) & (labels <= 1)).all()):
        raise TaskError(
            f"y is of shape {tuple(labels.shape)}; with a column for each binary task it holds 0, "
            "1 and -1, and this one something else"
        )
    return labels.to(torch.int8)


def _mask(told: Mapping[str, Any], part: str, split: int, num_nodes: int) -> Tensor:
    """Who stands in a part of the split: [N] bool; nobody where nothing is said."""
    mask = told.get(f"{part}_mask")
    if mask is None:
        return torch.zeros(num_nodes, dtype=torch.bool)
    given: Tensor = as_tensor(mask, f"{part}_mask")
    if given.ndim == 2:
        if not 0 <= split < given.shape[1]:
            raise TaskError(f"split {split} was asked for; data has 0..{given.shape[1] - 1}")
        given = given[:, split]
    if given.dtype != torch.bool or given.shape != (num_nodes,):
        raise TaskError(
            f"{part}_mask is {given.dtype} of shape {tuple(given.shape)}; it needs true or false "
            f"for each of {num_nodes} nodes"
        )
    return given
