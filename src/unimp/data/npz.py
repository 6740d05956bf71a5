"""Tasks in one `.npz` file, which is also the format for arrays from other programs.

    edge_index   [2, E] int    source row, target row
    directed     scalar 0 / 1  1: edges as listed; 0: undirected edges, each listed once
    x            [N, F]        node features; in CSR: x_indptr, x_indices, x_data, x_shape
    edge_attr    [E, D]        edge features, optional
    y            [N] int       class number, −1 unknown; or [N, T] of 0 / 1, −1 missing
    train, val, test           node indices; or splits [S, N]: 0 train, 1 val, 2 test, −1 none

Optional arrays, which `save_npz` writes: `num_classes`, `metric`, `class_names`, `node_names`,
`groups` [N] (group numbers; the split keeps groups together) and `positions` [N, 2] (places on a
map). Other arrays are ignored, except the one that `features` names. Names may also be lines of
UTF-8 as uint8, separated by the byte 255 if a name contains a line break. Nothing is unpickled.
"""

from itertools import combinations
from pathlib import Path
from typing import cast

import numpy as np
import torch

from unimp.config.arguments import FilePath, checked
from unimp.config.choices import Metric
from unimp.data.array_file import BETWEEN_NAMES, Array, ArrayFile, npz_bytes
from unimp.data.files import write_atomically
from unimp.data.outputs import check_output
from unimp.graph.features import SparseFeatures
from unimp.graph.graph import Graph
from unimp.tasks.known import SEVERAL_CLASSES, one_class
from unimp.tasks.labels import IS_MASK, UNLABELED, Split
from unimp.tasks.task import Task

_CSR = ("x_indptr", "x_indices", "x_data", "x_shape")
_PARTS = ("train", "val", "test")
_OPTIONAL = ("num_classes", "metric", "class_names", "node_names", "groups", "positions")
_KEYS = ("edge_index", "directed", "edge_attr", "y", "splits", *_PARTS, *_OPTIONAL)
_MOST_CLASSES = 1_000_000
_MOST_PADDED = 1 << 24  # the most bytes of names in an array of strings


def load_npz(
    path: Path,
    *,
    split: int = 0,
    name: str | None = None,
    features: str | None = None,
    metric: Metric | None = None,
) -> Task:
    """Read a task from one `.npz` file; a TaskError lists everything that is wrong with the file.

    `split` selects a row of `splits`. `name` is the stem of the file unless given. `metric` is the
    one in the file; without it, accuracy for classes and rocauc for binary tasks.

    `features` names another array to use instead of `x`. A float array [N, F] is used unchanged. An
    integer array [N, K] contains ranked class guesses per node, best first, −1 for none. It becomes
    sparse [N, K·C]: guess c of rank k is a 1 in column k·C + c, so that a model can learn the value
    of a guess at each rank.
    """
    path = Path(path)
    features = None if features == "x" else features
    file = ArrayFile(path, [*_KEYS, *([features] if features else ["x", *_CSR])])
    labels, num_classes = _labels(file)
    x, num_rows = _node_features(file, features, num_classes)
    num_nodes = num_rows if labels is None or num_rows is not None else len(labels)
    if labels is not None and len(labels) != num_nodes:
        file.note(
            f"y: {len(labels)} rows, but the node features have {num_rows}. Give one row per node,"
            f" {UNLABELED} if the label is unknown."
        )
    edge_index = _edge_index(file, num_nodes)
    edge_attr = _edge_features(file, edge_index)
    file.require("directed", "0 (add the reverse of each edge) or 1 (use edges as they are)")
    directed = file.integer("directed", 0, 1)
    parts = _parts(file, num_nodes, split)
    _check_known(file, parts, labels)
    chosen_metric = _metric(file, metric, labels, num_classes)
    class_names = file.texts("class_names", num_classes or None)
    node_names = file.texts("node_names", num_nodes)
    groups = _groups(file, num_nodes)
    positions = _positions(file, num_nodes)

    if file.problems or labels is None or edge_index is None or parts is None:
        raise file.refusal()
    graph = Graph.from_edges(edge_index, num_nodes=num_nodes, x=x, edge_attr=edge_attr)
    return Task(
        name=path.stem if name is None else name,
        graph=graph if directed else graph.symmetrize(),
        labels=torch.from_numpy(labels),
        split=Split(**{part: torch.from_numpy(nodes) for part, nodes in parts.items()}),
        metric=chosen_metric,
        num_classes=num_classes,
        class_names=class_names,
        node_names=node_names,
        groups=None if groups is None else torch.from_numpy(groups),
        positions=None if positions is None else torch.from_numpy(positions),
    )


@checked
def save_npz(task: Task, path: FilePath, *, force: bool = False) -> None:
    """Write a task to one `.npz` file, from which `load_npz` reads the same task.

    All edges of the graph are written, with both directions if it has both (directed = 1). force:
    replace an existing file.
    """
    path = Path(path)
    check_output(path, (".npz",), force=force)
    write_atomically(path, npz_of(task))


def npz_of(task: Task) -> bytes:
    """The bytes that `save_npz` writes; equal tasks give equal bytes."""
    graph = task.graph
    arrays: dict[str, Array] = {
        "edge_index": _narrow(graph.edge_index.numpy()),
        "directed": np.array(1, dtype=np.uint8),
        "y": task.labels.numpy() if task.labels.ndim == 2 else _narrow(task.labels.numpy()),
        "num_classes": np.array(task.num_classes, dtype=np.int32),
        "metric": np.array(task.metric),
        **{part: _narrow(getattr(task.split, part).numpy()) for part in _PARTS},
    }
    if isinstance(graph.x, SparseFeatures):
        arrays["x_indptr"] = graph.x.indptr.numpy()
        arrays["x_indices"] = _narrow(graph.x.column.numpy())
        arrays["x_data"] = graph.x.value.numpy()
        arrays["x_shape"] = np.array(graph.x.shape, dtype=np.int64)
    elif graph.x is not None:
        arrays["x"] = graph.x.numpy()
    if graph.edge_attr is not None:
        # In the order of the written edges, which may differ from the order of the rows.
        arrays["edge_attr"] = graph.edge_attr[graph.edge_rows().long()].numpy()
    for key in ("class_names", "node_names"):
        if (names := getattr(task, key)) is not None:
            arrays[key] = _names(names)
    if task.groups is not None:
        arrays["groups"] = _narrow(task.groups.numpy())
    if task.positions is not None:
        arrays["positions"] = task.positions.numpy()
    return npz_bytes(arrays)


def _names(names: tuple[str, ...]) -> Array:
    """Return names as an array of strings, or as lines of text where that is better.

    Strings are padded to the longest one, with four bytes per letter: one long id among a million
    would take gigabytes. The padding is NUL, so a NUL at the end of a name would be lost.
    """
    padded = 4 * len(names) * max(map(len, names), default=0)
    if padded < _MOST_PADDED and not any(name.endswith("\0") for name in names):
        return np.array(names, dtype=np.str_)
    between = BETWEEN_NAMES if any("\n" in name for name in names) else b"\n"
    return np.frombuffer(between.join(name.encode() for name in names), dtype=np.uint8)


def _narrow(numbers: Array) -> Array:
    """Return the same integers in 32 bits if they fit."""
    limits = np.iinfo(np.int32)
    fits = numbers.size == 0 or (limits.min <= numbers.min() and numbers.max() <= limits.max)
    return numbers.astype(np.int32) if fits else numbers


def _labels(file: ArrayFile) -> tuple[Array | None, int]:
    """Return labels, and the number of classes or binary tasks (0 if unknown)."""
    raw = file.require("y", "class numbers [N], or 0 / 1 [N, T]")
    if raw is None:
        return None, 0
    y = file.integers("y", "[N, T]" if raw.ndim == 2 else "[N]")
    if y is None:
        return None, 0
    if y.size == 0:
        file.note(f"y: empty, shape {y.shape}; expected one row per node")
        return None, 0
    if y.ndim == 2:
        fix = "a missing entry is −1 in an int8 array (in uint8 it becomes 255)"
        return (y.astype(np.int8) if file.within("y", y, -1, 1, fix) else None), y.shape[1]
    # With num_classes, a file may have classes without nodes. Without it, there are at most as many
    # classes as nodes: ids instead of class numbers would need a model of that width.
    stated = file.integer("num_classes", 1, _MOST_CLASSES) if file.has("num_classes") else None
    fix = f"classes count from 0, {UNLABELED} is unknown" + (
        "" if stated else ", and there are at most as many as nodes"
    )
    if not file.within("y", y, UNLABELED, (stated or len(y)) - 1, fix):
        return None, 0
    count = stated or int(y.max()) + 1
    if count == 0:
        file.note(f"y: every label is {UNLABELED}. Some labels must be known.")
        return None, 0
    if what_is_wrong := one_class(torch.from_numpy(y), count):
        file.note(f"y: {what_is_wrong}. {SEVERAL_CLASSES}.")
    return y, count


def _node_features(
    file: ArrayFile, features: str | None, num_classes: int
) -> tuple[Array | SparseFeatures | None, int | None]:
    """Return node features, and the number of their rows; None if it is unknown."""
    if features in _KEYS:
        # Labels or the split as inputs would reveal the answers.
        file.note(f"{features}: the format reserves this array. Use another array as features.")
        return None, None
    if features is not None:
        there = f"an array of the file; its other arrays are: {', '.join(file.others)}"
        array = file.require(features, there)
        if array is not None and array.dtype.kind in "iu":
            return _ranked_guesses(file, features, num_classes)
    elif csr := [key for key in _CSR if file.has(key)]:
        if not file.has("x"):
            return _sparse_features(file)
        file.note(
            f"x: the file also contains {', '.join(csr)}. Keep the dense or the CSR form, not both."
        )
    x = file.floats(features or "x", "[N, F]")
    return x, (None if x is None else len(x))


def _ranked_guesses(
    file: ArrayFile, key: str, num_classes: int
) -> tuple[SparseFeatures | None, int | None]:
    guesses = file.integers(key, "[N, K]")
    if guesses is None or not num_classes:
        return None, None
    fix = "guesses are class numbers, −1 for none; save other numbers as floats"
    if not file.within(key, guesses, UNLABELED, num_classes - 1, fix):
        return None, len(guesses)
    made = guesses != UNLABELED
    column = guesses + num_classes * np.arange(guesses.shape[1])
    indptr = np.concatenate(([0], np.cumsum(made.sum(1))))
    x = SparseFeatures(
        indptr=torch.from_numpy(indptr),
        column=torch.from_numpy(column[made].astype(np.int64)),
        value=torch.ones(int(indptr[-1])),
        shape=(len(guesses), num_classes * guesses.shape[1]),
    )
    return x, len(guesses)


def _sparse_features(file: ArrayFile) -> tuple[SparseFeatures | None, int | None]:
    for key in _CSR:
        file.require(key, f"an array; sparse features consist of {', '.join(_CSR)}")
    indptr = file.integers("x_indptr", "[N + 1]")
    column = file.integers("x_indices", "[nonzeros]")
    value = file.floats("x_data", "[nonzeros]")
    shape = file.integers("x_shape", "[nodes and features]")
    if indptr is None or column is None or value is None or shape is None:
        return None, None
    num_nodes = len(indptr) - 1
    # The rows are nodes in either order of the shape: some published files state (features, nodes)
    # with an indptr over nodes.
    if num_nodes < 1 or len(shape) != 2 or num_nodes not in shape or shape.min() < 0:
        file.note(
            f"x_shape: {shape.tolist()}, but x_indptr has {len(indptr)} entries; expected"
            " [N, F] and an x_indptr of N + 1 entries"
        )
        return None, None
    width = int(shape[1] if shape[0] == num_nodes else shape[0])
    if len(column) != len(value):
        file.note(
            f"x_indices, x_data: {len(column)} and {len(value)} entries; the numbers must be equal"
        )
        return None, num_nodes
    falls = np.flatnonzero(np.diff(indptr) < 0)
    if len(falls) or indptr[0] != 0 or indptr[-1] != len(column):
        where = f" and decreases after x_indptr[{falls[0]}]" if len(falls) else ""
        file.note(
            f"x_indptr: runs from {indptr[0]} to {indptr[-1]}{where}; it must increase from 0 to"
            f" {len(column)}, the length of x_indices"
        )
        return None, num_nodes
    fix = "columns are features, counted from 0; check x_shape"
    if not file.within("x_indices", column, 0, width - 1, fix):
        return None, num_nodes
    x = SparseFeatures(
        indptr=torch.from_numpy(indptr),
        column=torch.from_numpy(column),
        value=torch.from_numpy(value),
        shape=(num_nodes, width),
    )
    return x, num_nodes


def _edge_index(file: ArrayFile, num_nodes: int | None) -> Array | None:
    file.require("edge_index", "integers [2, E]: sources, targets")
    edge_index = file.integers("edge_index", "[2, E]")
    if edge_index is None:
        return None
    if len(edge_index) != 2:
        fix = "; transpose it" if edge_index.shape[1] == 2 else ""
        file.note(f"edge_index: {edge_index.shape}; expected [2, E]: sources, targets{fix}")
        return None
    if num_nodes is not None:
        fix = "nodes are counted from 0, and y (and x) need one row per node"
        file.within("edge_index", edge_index, 0, num_nodes - 1, fix)
    return edge_index


def _edge_features(file: ArrayFile, edge_index: Array | None) -> Array | None:
    edge_attr = file.floats("edge_attr", "[E, D]")
    if edge_attr is None or edge_index is None:
        return None
    if len(edge_attr) != edge_index.shape[1]:
        file.note(
            f"edge_attr: {len(edge_attr)} rows for {edge_index.shape[1]} edges; expected one row"
            " per column of edge_index"
        )
    return edge_attr


def _parts(file: ArrayFile, num_nodes: int | None, split: int) -> dict[str, Array] | None:
    """Return the nodes of train, val and test."""
    given = [part for part in _PARTS if file.has(part)]
    if file.has("splits"):
        if given:
            file.note(
                f"splits: the file also contains {', '.join(given)}. Keep one of the two forms."
            )
        return _parts_of_splits(file, num_nodes, split)
    if not given:
        file.note("train, val, test: missing; expected node indices, or splits [S, N]")
        return None
    if split != 0:
        file.note(f"split is {split}, but the file has only split 0")
    parts = {}
    for part in _PARTS:
        found = file.require(part, "node indices; the array may be empty")
        if found is not None and found.dtype == np.bool_ and found.size:
            file.note(f"{part}: {IS_MASK}")
            continue
        nodes = file.integers(part, "[nodes]")
        if nodes is None or num_nodes is None:
            continue
        if not file.within(part, nodes, 0, num_nodes - 1, "nodes are counted from 0"):
            continue
        parts[part] = nodes
    if len(parts) < len(_PARTS):
        return None
    for part, nodes in parts.items():
        values, counts = np.unique(nodes, return_counts=True)
        if len(values) < len(nodes):
            file.note(f"{part}: contains node {values[counts > 1][0]} twice. List each node once.")
    for earlier, later in combinations(_PARTS, 2):
        shared = np.intersect1d(parts[earlier], parts[later])
        if len(shared):
            file.note(
                f"{earlier}, {later}: have {len(shared)} common nodes, such as {shared[0]}. Keep"
                " each node in one of train, val and test."
            )
    return parts


def _parts_of_splits(file: ArrayFile, num_nodes: int | None, split: int) -> dict[str, Array] | None:
    splits = file.integers("splits", "[S, N]")
    if splits is None:
        return None
    if num_nodes is not None and splits.shape[1] != num_nodes:
        file.note(f"splits: {splits.shape} for {num_nodes} nodes; expected [S, N]")
        return None
    if not 0 <= split < len(splits):
        file.note(f"split is {split}; the file has 0..{len(splits) - 1}")
        return None
    if not file.within("splits", splits, -1, 2, "0 train, 1 val, 2 test, −1 none"):
        return None
    return {part: np.flatnonzero(splits[split] == code) for code, part in enumerate(_PARTS)}


def _check_known(file: ArrayFile, parts: dict[str, Array] | None, labels: Array | None) -> None:
    """Check that the nodes of train and val have labels; those of test may be unknown."""
    if parts is None or labels is None:
        return
    known = labels != UNLABELED if labels.ndim == 1 else (labels != UNLABELED).any(axis=1)
    if not len(parts["train"]):
        file.note("train: empty; expected at least one node with a label")
    for part in ("train", "val"):
        nodes = parts[part]
        unknown = nodes[~known[nodes]] if nodes.max(initial=0) < len(known) else nodes[:0]
        if len(unknown):
            file.note(
                f"{part}: {len(unknown)} nodes have no label (y = {UNLABELED}), such as node"
                f" {unknown[0]}. Remove them from the set."
            )


def _positions(file: ArrayFile, num_nodes: int | None) -> Array | None:
    positions = file.floats("positions", "[N, 2]")
    if positions is None or num_nodes is None or positions.shape == (num_nodes, 2):
        return positions
    file.note(f"positions: shape {positions.shape}; expected ({num_nodes}, 2), x and y per node")
    return None


def _groups(file: ArrayFile, num_nodes: int | None) -> Array | None:
    groups = file.integers("groups", "[N]")
    if groups is not None and num_nodes is not None and len(groups) != num_nodes:
        file.note(f"groups: {len(groups)} entries for {num_nodes} nodes; each node needs one")
    return groups


def _metric(
    file: ArrayFile, asked: Metric | None, labels: Array | None, num_classes: int
) -> Metric:
    """Return the requested metric, that of the file, or the usual one for the labels."""
    array = file.get("metric")
    stated = None if array is None else str(array)
    if stated not in (None, "accuracy", "rocauc"):
        file.note(f"metric: {stated}; expected accuracy or rocauc")
        stated = None
    binary = labels is not None and labels.ndim == 2
    metric = cast("Metric", asked or stated or ("rocauc" if binary else "accuracy"))
    if metric == "rocauc" and labels is not None and not binary and num_classes != 2:
        file.note(
            f"metric: rocauc needs two classes or binary tasks, but y has {num_classes} classes"
        )
    if metric == "accuracy" and binary:
        file.note("metric: accuracy needs one class per node, but y has binary tasks. Use rocauc.")
    return metric


def count_splits(path: Path) -> int:
    """Return the number of splits in a file; 1 if it contains train, val and test."""
    file = ArrayFile(Path(path), ["splits"])
    splits = file.get("splits")
    return 1 if splits is None else max(1, len(splits))
