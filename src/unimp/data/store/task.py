"""A store as a task: arrays are mapped, so that loading takes no time and little memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from unimp.config.choices import Metric
from unimp.data.store.manifest import read_manifest
from unimp.data.store.mapping import map_array, map_bytes
from unimp.errors import TaskError
from unimp.graph.graph import Graph
from unimp.tasks.labels import Split
from unimp.tasks.splitting import split_classes, split_of
from unimp.tasks.task import Task


class StoredNames(Sequence[str]):
    """The ids of nodes in a mapped Arrow file; they become Python texts one by one."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.ipc

        opened = pyarrow.ipc.open_file(pa.py_buffer(map_bytes(path)))
        self._ids = opened.get_batch(0).column(0)

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return [str(name) for name in self._ids[index].to_pylist()]
        return str(self._ids[index].as_py())

    def __iter__(self) -> Iterator[str]:
        for begin in range(0, len(self), 1 << 16):
            yield from self[begin : begin + (1 << 16)]

    def __arrow_array__(self, type: Any = None) -> Any:
        return self._ids if type is None else self._ids.cast(type)

    def number_of(self, name: str) -> int | None:
        """The number of the node with an id; reads the ids from the start, without a copy."""
        import pyarrow as pa
        import pyarrow.compute as pc

        try:
            wanted = pa.scalar(name, pa.large_string()).cast(self._ids.type)
        except pa.ArrowInvalid:  # not an integer
            return None
        found = pc.index(self._ids, wanted).as_py()
        return None if found < 0 else int(found)


@dataclass(frozen=True, eq=False)
class StoredTask(Task):
    """A task whose arrays are mapped from a store; the build checked them."""

    content: str = ""  # the hash of the store

    def __post_init__(self) -> None:
        """Check nothing: each check would read all nodes."""

    def data_hash(self) -> str:
        """Return the hash of the store and of what was chosen when it was opened."""
        digest = hashlib.sha256(json.dumps([self.content, self.metric]).encode())
        for nodes in (self.split.train, self.split.val, self.split.test):
            digest.update(nodes.numpy().data)
        return digest.hexdigest()


def open_store(folder: Path, *, split: int = 0, metric: Metric | None = None) -> StoredTask:
    """Open a store as a task.

    split: the number of the split, if the tables state none and it is drawn by shares.
    """
    manifest = read_manifest(folder)
    arrays = {
        n.removesuffix(".npy"): map_array(folder / n) for n in manifest["files"] if "npy" in n
    }
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    names = tuple(manifest["class_names"])
    multilabel = manifest["is_multilabel"]
    asked = metric or manifest["metric"] or ("rocauc" if multilabel else "accuracy")
    if asked == "rocauc" and not multilabel and len(names) != 2:
        raise TaskError(
            f"rocauc needs two classes or binary tasks; there are {len(names)} classes."
        )
    if "split" in arrays:
        nodes = np.flatnonzero(arrays["split"] >= 0)
        parts = split_of(nodes, arrays["split"][nodes])
    else:
        shares = {"train_share": manifest["train_share"], "val_share": manifest["val_share"]}
        parts = split_classes(arrays["y"], seed=split, **shares)
    return StoredTask(
        name=folder.stem,
        graph=_graph(tensors),
        labels=tensors["y"],
        split=Split.of(parts),
        metric=asked,
        num_classes=len(names),
        class_names=names,
        node_names=StoredNames(folder / "ids.arrow"),
        content=manifest["content"],
    )


def _graph(tensors: dict[str, Tensor]) -> Graph:
    x, edge_attr = tensors.get("x"), tensors.get("edge_attr")
    return Graph(tensors["indptr"], tensors["source"], None, x, edge_attr)


def is_symmetric(folder: Path) -> bool:
    """Whether every edge of a store has its reverse."""
    return not read_manifest(folder)["directed"]
