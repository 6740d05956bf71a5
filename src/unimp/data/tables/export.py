"""Write any task as two tables, for users who want to try the table format."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from unimp.data.outputs import check_output
from unimp.data.tables.writing import write_table
from unimp.errors import TaskError, nearest_names
from unimp.graph.features import SparseFeatures
from unimp.tasks.labels import UNLABELED
from unimp.tasks.names import class_names
from unimp.tasks.task import Task

Form = Literal["csv", "parquet"]
_WIDEST = 4096
_ROWS_AT_A_TIME = 50_000  # the number of vectors converted to text at once


def export_tables(
    task: Task, folder: Path, form: Form = "parquet", *, force: bool = False
) -> tuple[Path, Path]:
    """Write the nodes and edges of a task into a folder and return the paths of both files.

    nodes: id, label (or a column label_<name> for each binary task), set, group if there are
    groups, and features as a vector. edges: source, target and features. Edges in both directions
    are written in both directions. force: replace existing files.
    """
    if form not in get_args(Form):
        raise TaskError(f"no format {form!r}; {nearest_names(form, get_args(Form))}")
    paths = folder / f"nodes.{form}", folder / f"edges.{form}"
    for path in paths:
        check_output(path, (path.suffix,), force=force)
    for path, table in zip(paths, (_nodes(task, form), _edges(task, form)), strict=True):
        write_table(path, table)
    return paths


def _nodes(task: Task, form: Form) -> Any:
    import pyarrow as pa

    columns: dict[str, Any] = {"id": pa.array(_ids(task))}
    names = class_names(task)
    if task.is_multilabel:
        for number, name in enumerate(names):
            column = task.labels[:, number].numpy()
            columns[f"label_{name}"] = pa.array(column, mask=column == UNLABELED)
    else:
        label = task.labels.numpy()
        words = np.array([*names, ""], dtype=object)[label]
        columns["label"] = pa.array(words, pa.string(), mask=label == UNLABELED)
    sets = task.split.names(task.graph.num_nodes)
    columns["set"] = pa.array(sets, pa.string(), mask=sets == "")
    if task.groups is not None:
        columns["group"] = pa.array(task.groups.numpy())
    if task.graph.x is not None:
        columns["features"] = _vectors(_dense(task.graph.x, task.name), form)
    return pa.table(columns)


def _edges(task: Task, form: Form) -> Any:
    import pyarrow as pa

    ids = pa.array(_ids(task))
    source, target = task.graph.edge_index.numpy()
    columns = {"source": ids.take(pa.array(source)), "target": ids.take(pa.array(target))}
    attr = task.graph.edge_attr_of(None)
    if attr is not None:
        columns["features"] = _vectors(attr.numpy(), form)
    return pa.table(columns)


def _ids(task: Task) -> list[str]:
    return list(task.node_names or (str(node) for node in range(task.graph.num_nodes)))


def _dense(x: Any, name: str) -> NDArray[np.float32]:
    if not isinstance(x, SparseFeatures):
        return np.asarray(x.numpy())
    if x.shape[1] > _WIDEST:
        raise TaskError(
            f"{name} has {x.shape[1]:,} sparse features; tables can contain at most {_WIDEST:,}. "
            "Use an .npz file for such a task."
        )
    return np.asarray(x.to_scipy().toarray())


def _vectors(rows: NDArray[np.float32], form: Form) -> Any:
    """Return one vector per row: a list, or in CSV numbers separated by spaces."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if form == "parquet":
        flat = pa.array(np.ascontiguousarray(rows).reshape(-1))
        return pa.FixedSizeListArray.from_arrays(flat, rows.shape[1])
    chunks = []
    for first in range(0, len(rows), _ROWS_AT_A_TIME):
        some = rows[first : first + _ROWS_AT_A_TIME]
        numbers = pa.array(np.ascontiguousarray(some).reshape(-1)).cast(pa.string())
        ends = pa.array(np.arange(0, some.size + 1, some.shape[1]), pa.int32())
        chunks.append(pc.binary_join(pa.ListArray.from_arrays(ends, numbers), " "))
    return pa.chunked_array(chunks, pa.string())
