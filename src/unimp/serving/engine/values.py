"""What a run knows about a node, in the words of the person who made the table."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unimp.data.tables.encoding import Categorical, Encoder, Numeric
from unimp.data.tables.problems import Problems
from unimp.data.tables.reading import open_table
from unimp.errors import UnimpError
from unimp.serving.engine.applied import Applied

SHOWN_FEATURES = 20
DIGITS = 5
"""Significant digits of a number that was computed back from a feature."""
OTHER = "another category"


class NodeValues:
    """The values of nodes: those of the table if it is still there, otherwise the features."""

    def __init__(self, applied: Applied) -> None:
        self._applied = applied

    def of(self, node: str) -> dict[str, Any]:
        """The values of a node by the names of their columns."""
        applied = self._applied
        if node in applied.added:
            return dict(applied.added[node].values)
        number = applied.number_of(node)
        if self._table is not None:
            row = self._table.slice(number, 1).to_pylist()[0]
            return {name: v if _is_plain(v) else str(v) for name, v in row.items()}
        if applied.graph.x is None:
            return {}
        chosen = applied.graph.x[torch.tensor([number])]
        row = (chosen if isinstance(chosen, Tensor) else chosen.to_dense())[0]
        if applied.additions.transforms is not None:
            scaled = applied.run.recipe.task.scale_rows
            return {} if scaled else _decoded(applied.additions.transforms.nodes, row)
        # Features without names are numbered; only those that are not zero describe a node.
        places = torch.nonzero(row).flatten()[:SHOWN_FEATURES].tolist()
        return {str(place + 1): _rounded(float(row[place])) for place in places}

    @cached_property
    def _table(self) -> Any:
        """The table of nodes that the run was trained on, if it is still where it was."""
        applied = self._applied
        path = applied.run.recipe.tables.nodes
        if not path or not Path(path).is_file():
            return None
        transforms = applied.additions.transforms
        hidden = transforms.layout.label_columns if transforms else []
        try:
            table = open_table(path, "nodes", Problems())
        except (UnimpError, OSError):
            return None
        if table is None or table.arrow.num_rows != len(applied.base):
            return None
        return table.arrow.drop_columns([c for c in hidden if c in table.arrow.column_names])


def _decoded(encoders: tuple[Encoder, ...], row: Tensor) -> dict[str, Any]:
    """Numbers and categories from features; words and vectors cannot be computed back."""
    found: dict[str, Any] = {}
    widths = [encoder.width for encoder in encoders]
    for encoder, part in zip(encoders, torch.split(row, widths), strict=True):
        if isinstance(encoder, Numeric):
            missing = encoder.indicator and part[1] > 0
            value = encoder.mean + encoder.std * float(part[0])
            found[encoder.column] = None if missing else _rounded(value)
        elif isinstance(encoder, Categorical):
            names = [*encoder.categories, *[OTHER] * encoder.other, *[None] * encoder.missing]
            place = torch.nonzero(part).flatten().tolist()
            found[encoder.column] = names[place[0]] if place else None
    return found


def _rounded(value: float) -> float | int:
    """A number without the digits that float32 does not have."""
    number = float(f"{value:.{DIGITS}g}")
    return int(number) if number.is_integer() else number


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool | list)
