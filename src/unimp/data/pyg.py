"""Graphs and tasks from PyTorch Geometric (PyG) and back.

Messages pass from `edge_index[0]` to `edge_index[1]`, as in PyG.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from unimp.config.choices import Metric
from unimp.errors import GraphError, TaskError
from unimp.graph.features import SparseFeatures, as_tensor
from unimp.graph.graph import Graph
from unimp.tasks.labels import UNLABELED, Split, is_known, mask_of
from unimp.tasks.task import Task

PARTS = ("train", "val", "test")


def graph_from_pyg(data: Any) -> Graph:
    """Return the graph of a `torch_geometric.data.Data`: x, edge_index, edge_attr or edge_weight.

    A batch of several graphs becomes one graph with several components. Other attributes are
    ignored.
    """
    attributes = _attributes(data)
    if attributes.get("edge_index") is None:
        found = "adj_t instead of edge_index" if "adj_t" in attributes else "no edge_index"
        raise GraphError(
            f"this {type(data).__name__} has {found}. Pass a torch_geometric Data with an "
            "edge_index of shape (2, E), without the transform ToSparseTensor."
        )
    x, y, num_nodes = attributes.get("x"), attributes.get("y"), attributes.get("num_nodes")
    if isinstance(x, Tensor) and x.layout != torch.strided:
        x = _sparse_features(x)
    if x is None and num_nodes is None and isinstance(y, Tensor) and y.ndim:
        num_nodes = len(y)  # the largest number among the edges would omit nodes without edges
    edge_attr = attributes.get("edge_attr")
    return Graph.from_edges(
        attributes["edge_index"],
        num_nodes=num_nodes,
        x=x,
        edge_attr=attributes.get("edge_weight") if edge_attr is None else edge_attr,
    )


def graph_to_pyg(graph: Graph) -> Any:
    """Return a `torch_geometric.data.Data`; sparse features become a sparse COO tensor."""
    try:
        from torch_geometric.data import Data
    except ImportError as error:
        raise GraphError(
            "torch_geometric is not installed. Run pip install 'unimp[pyg]'."
        ) from error
    graph = graph.to("cpu")
    x = graph.x
    if isinstance(x, SparseFeatures):
        rows = torch.repeat_interleave(torch.arange(x.shape[0]), (x.indptr[1:] - x.indptr[:-1]))
        x = torch.sparse_coo_tensor(
            torch.stack((rows, x.column.long())), x.value, x.shape, check_invariants=True
        ).coalesce()
    return Data(
        x=x,
        edge_index=graph.edge_index.long(),
        edge_attr=graph.edge_attr_of(None),
        num_nodes=graph.num_nodes,
    )


def task_from_pyg(
    data: Any, *, split: int = 0, metric: Metric | None = None, name: str = "pyg"
) -> Task:
    """Return the task of a `torch_geometric.data.Data`: graph, y and the masks train_mask, ….

    y contains one class per node (−1: unknown), or one row of 0 and 1 per node (−1 or NaN:
    missing). If masks have several columns, `split` selects one. Without train_mask, the train set
    contains every known label that is in no other set. The attributes that `task_to_pyg` adds
    (num_classes, class_names, node_names, groups, positions) are used if they exist.
    """
    graph, attributes = graph_from_pyg(data), _attributes(data)
    one_task = attributes.get("num_classes") == 1
    labels = _labels(attributes.get("y"), graph.num_nodes, one_task=one_task)
    masks = {part: _mask(attributes, part, split, graph.num_nodes) for part in PARTS}
    if attributes.get("train_mask") is None:
        masks["train"] = is_known(labels) & ~masks["val"] & ~masks["test"]
    class_names, node_names = (
        None if attributes.get(key) is None else tuple(attributes[key])
        for key in ("class_names", "node_names")
    )
    count = int(labels.max()) + 1 if labels.ndim == 1 else labels.shape[1]
    return Task(
        name=name,
        graph=graph,
        labels=labels,
        split=Split(*(torch.nonzero(masks[part]).squeeze(1) for part in PARTS)),
        metric=metric or ("accuracy" if labels.ndim == 1 else "rocauc"),
        num_classes=attributes.get("num_classes") or max(count, 1),
        groups=attributes.get("groups"),
        positions=attributes.get("positions"),
        class_names=class_names,
        node_names=node_names,
    )


def task_to_pyg(task: Task) -> Any:
    """Return a `torch_geometric.data.Data` with y, masks, names, groups and positions."""
    data = graph_to_pyg(task.graph)
    data.y = task.labels
    for part in PARTS:
        data[f"{part}_mask"] = mask_of(getattr(task.split, part), len(task.labels))
    data.num_classes = task.num_classes
    for key in ("class_names", "node_names", "groups", "positions"):
        if (values := getattr(task, key)) is not None:
            data[key] = list(values) if isinstance(values, tuple) else values
    return data


def _attributes(data: Any) -> dict[str, Any]:
    """Return the attributes of a PyG object by name; refuse several types of nodes or edges."""
    if hasattr(data, "node_types"):
        raise GraphError(
            "this graph has several types of nodes or edges. Convert it with "
            "data.to_homogeneous(), and add the types to the features if they matter."
        )
    if not hasattr(data, "to_dict") or not hasattr(data, "edge_index"):
        raise GraphError(f"expected a torch_geometric Data, got a {type(data).__name__}.")
    return dict(data.to_dict())


def _sparse_features(x: Tensor) -> SparseFeatures:
    from scipy.sparse import coo_array

    entries = x.detach().cpu().to_sparse(layout=torch.sparse_coo).coalesce()
    row, column = entries.indices().numpy()
    shape = (int(x.shape[0]), int(x.shape[1]))
    return SparseFeatures.from_scipy(coo_array((entries.values().numpy(), (row, column)), shape))


def _labels(y: Any, num_nodes: int, *, one_task: bool) -> Tensor:
    """Return y as the labels of a task: [N], or [N, T] of 0, 1 and −1."""
    if not isinstance(y, Tensor) or y.ndim == 0 or len(y) != num_nodes:
        found = "no y" if not isinstance(y, Tensor) else f"y has shape {tuple(y.shape)}"
        raise TaskError(
            f"a task needs y with one label for each of the {num_nodes} nodes, but there is "
            f"{found}. For the graph alone, use unimp.data.pyg.graph_from_pyg."
        )
    labels: Tensor = y.detach().cpu()
    if labels.ndim == 2 and labels.shape[1] == 1 and not one_task:  # as OGB stores classes
        labels = labels[:, 0]
    if labels.is_floating_point():
        labels = torch.where(labels.isnan(), UNLABELED, labels)
        if not bool((labels == labels.round()).all()):
            raise TaskError(
                "y contains fractions. Labels are classes; regression is not supported."
            )
    if labels.ndim == 1:
        return labels.long()
    if labels.ndim > 2 or not bool(((labels >= UNLABELED) & (labels <= 1)).all()):
        raise TaskError(
            f"y has shape {tuple(labels.shape)} and contains other values than 0, 1 and -1. Give "
            "one class number per node, or one column of 0 and 1 per binary task."
        )
    return labels.to(torch.int8)


def _mask(attributes: Mapping[str, Any], part: str, split: int, num_nodes: int) -> Tensor:
    """Return the nodes of one set as a mask [N]; all False if there is no such mask."""
    mask = attributes.get(f"{part}_mask")
    if mask is None:
        return torch.zeros(num_nodes, dtype=torch.bool)
    given: Tensor = as_tensor(mask, f"{part}_mask")
    if given.ndim == 2:
        if not 0 <= split < given.shape[1]:
            raise TaskError(f"split is {split}, but {part}_mask has 0..{given.shape[1] - 1}.")
        given = given[:, split]
    if given.dtype != torch.bool or given.shape != (num_nodes,):
        raise TaskError(
            f"{part}_mask is {given.dtype} of shape {tuple(given.shape)}; it must contain True or "
            f"False for each of the {num_nodes} nodes."
        )
    return given
