"""Build a task, whose arrays are tensors, from tables that were read and checked."""

from __future__ import annotations

import numpy as np
import torch

from unimp.config.choices import Metric
from unimp.data.tables.checking import Rows, are_whole
from unimp.data.tables.transforms import Transforms
from unimp.graph.graph import Graph
from unimp.tasks.labels import Split
from unimp.tasks.task import Task


def task_of_rows(rows: Rows, name: str, *, split: int, metric: Metric | None) -> Task:
    """Return the task of rows whose edges are known; transforms are fitted on all rows."""
    transforms, x, edge_attr = Transforms.fitted(
        rows.layout,
        rows.node_values,
        rows.edge_values,
        whole_ids=are_whole(rows.ids),
        near=None if rows.nearest is None else rows.nearest.places,
    )
    edges = np.stack((rows.edges.source, rows.edges.target))
    graph = Graph.from_edges(edges, num_nodes=len(rows.ids), x=x, edge_attr=edge_attr)
    positions = None if rows.nearest is None else rows.nearest.positions
    return Task(
        name=name,
        graph=graph.deduplicate() if rows.layout.directed else graph.symmetrize(),
        labels=torch.from_numpy(rows.labels),
        split=Split.of(rows.split(split)),
        metric=rows.metric(metric),
        num_classes=len(rows.class_names),
        class_names=rows.class_names,
        node_names=tuple(str(name) for name in rows.ids.to_pylist()),
        groups=None if rows.groups is None else torch.from_numpy(rows.groups),
        positions=None if positions is None else torch.from_numpy(positions),
        tables=transforms,
    )
