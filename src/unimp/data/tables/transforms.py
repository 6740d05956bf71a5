"""The meaning of the columns of two tables, and the encoders fitted on them, as plain data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from unimp.config.choices import Decimal, UnknownIds
from unimp.data.files import write_atomically
from unimp.data.tables.encoding import Encoder, fit_and_encode, to_plain
from unimp.data.tables.near import Places

FORMAT = 1
_WIDE = 64  # columns; with fewer, features are dense
_FILLED = 0.25  # share of nonzero entries; with more, features are dense


@dataclass(frozen=True)
class Layout:
    """The meaning of the columns of both tables: the options of [tables] in a recipe."""

    id: str = "id"  # a column; empty if ids are row numbers
    source: str = "source"
    target: str = "target"
    directed: bool = False
    label: str | Sequence[str] = ""  # one column, or a column of 0 / 1 for each binary task
    label_separator: str = ""  # between several labels in one cell
    features: Mapping[str, str] = field(default_factory=dict)  # column: kind
    edge_features: Mapping[str, str] = field(default_factory=dict)
    decimal: Decimal = "."  # decimal separator of numbers in text
    text_width: int = 4096
    split: str = ""  # a column; or by the files of ids; or by the shares
    train_share: float = 0.6
    val_share: float = 0.2
    group: str = ""
    train_ids: str = ""
    val_ids: str = ""
    test_ids: str = ""
    unknown_ids: UnknownIds = "refuse"
    # columns; edges come from nearest neighbors instead of a table
    near: Sequence[str] = field(default_factory=list)
    neighbors: int | Literal["auto"] = "auto"

    @property
    def label_columns(self) -> list[str]:
        return [self.label] if isinstance(self.label, str) else list(self.label)

    def columns_in_words(self, kinds: Mapping[str, str]) -> list[str]:
        """Return the columns that are read from CSV as text."""
        return [c for c, kind in kinds.items() if kind != "numeric" or self.decimal == ","]

    @property
    def is_multilabel(self) -> bool:
        return not isinstance(self.label, str) or bool(self.label_separator)

    @property
    def split_files(self) -> dict[str, str]:
        files = {"train": self.train_ids, "val": self.val_ids, "test": self.test_ids}
        return {part: file for part, file in files.items() if file}


@dataclass(frozen=True)
class Transforms:
    """How rows become features, fitted on the tables of training."""

    layout: Layout
    nodes: tuple[Encoder, ...]
    edges: tuple[Encoder, ...]
    sparse: bool  # node features are sparse
    whole_ids: bool = False  # ids are integers, although stored as text
    near: Places | None = None  # where nodes are, if edges come from nearest neighbors

    @property
    def label_separator(self) -> str:
        return self.layout.label_separator

    @classmethod
    def fitted(
        cls,
        layout: Layout,
        nodes: Mapping[str, Any],
        edges: Mapping[str, Any],
        *,
        whole_ids: bool = False,
        near: Places | None = None,
    ) -> tuple[Transforms, Any, Any]:
        """Fit on the values of each column; return transforms, node features and edge features."""
        made: list[list[Encoder]] = []
        blocks: list[list[Any]] = []
        for kinds, values in ((layout.features, nodes), (layout.edge_features, edges)):
            found = [
                fit_and_encode(c, kind, values[c], text_width=layout.text_width)
                for c, kind in kinds.items()
            ]
            made.append([each[0] for each in found if each is not None])
            blocks.append([each[1] for each in found if each is not None])
        sparse = _is_sparse(blocks[0])
        transforms = cls(layout, tuple(made[0]), tuple(made[1]), sparse, whole_ids, near)
        return transforms, transforms._joined(blocks[0]), _dense(blocks[1])

    def node_features(self, values: Mapping[str, Any]) -> Any:
        """Return the features of nodes, [N, F], an array or a csr_array; None if there are none."""
        return self._joined([encoder.encode(values[encoder.column]) for encoder in self.nodes])

    def edge_features(self, values: Mapping[str, Any]) -> Any:
        """Return the features of edges, [E, d]; None if there are none."""
        return _dense([encoder.encode(values[encoder.column]) for encoder in self.edges])

    def _joined(self, blocks: list[Any]) -> Any:
        if not self.sparse:
            return _dense(blocks)
        from scipy import sparse

        joined = sparse.hstack([sparse.csr_array(b) for b in blocks], format="csr")
        return joined.astype(np.float32)

    def save(self, path: Path) -> None:
        """Write the transforms as JSON."""
        plain = {
            "format": FORMAT,
            "tables": asdict(self.layout),
            "nodes": [to_plain(encoder) for encoder in self.nodes],
            "edges": [to_plain(encoder) for encoder in self.edges],
            "sparse": self.sparse,
            "whole_ids": self.whole_ids,
            "near": None if self.near is None else self.near.to_plain(),
        }
        write_atomically(path, (json.dumps(plain, ensure_ascii=False) + "\n").encode())


def _dense(blocks: list[Any]) -> Any:
    if not blocks:
        return None
    rows = [b.toarray() if hasattr(b, "toarray") else b for b in blocks]
    return np.hstack(rows).astype(np.float32, copy=False)


def _is_sparse(blocks: list[Any]) -> bool:
    width = sum(block.shape[1] for block in blocks)
    filled = sum(b.nnz if hasattr(b, "nnz") else b.size for b in blocks)
    return bool(width > _WIDE and filled < _FILLED * width * blocks[0].shape[0])
