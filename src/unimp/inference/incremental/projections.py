"""Stored projections of all rows: queries, keys, values and residuals of attention layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from unimp.data.memory import available_memory
from unimp.inference.incremental.assembly import Assembly, Planned
from unimp.model.node_model import NodeModel

SHARE = 0.5
"""The share of the free memory that stored projections may use if they are chosen automatically."""

ROWS = 65_536
"""Rows that are projected at a time."""

SCRATCH = 8192
"""Rows behind those of the nodes, for new rows of changes that are computed together."""


def with_room(count: int) -> int:
    """Return a number of rows that leaves room for more nodes. Rows that are not used take no
    memory, and without room the first new node would wait until everything is copied."""
    return count + count // 8 + 64


class Computed(NamedTuple):
    """New rows of a layer, and the new projections that they were computed from."""

    rows: Tensor
    projected: Tensor


class Projections:
    """One row [q|r|k|v] per node and layer.

    The attention kernel reads the stored rows in place: nothing is gathered, and only rows that a
    change affects are projected again. While a change is computed, its new rows replace stored
    ones, which are restored afterwards. Only one thread may use the engine at a time.
    """

    def __init__(self, model: NodeModel, layers: Sequence[Tensor]) -> None:
        self._model, self._layers = model, list(layers)

    @classmethod
    @torch.no_grad()
    def of(
        cls, model: NodeModel, states: Sequence[Tensor], *, wanted: bool | None
    ) -> Projections | None:
        """Project the stored states, if this model can; wanted=None: if memory allows it, too."""
        if wanted is False or not model.num_layers:
            return None
        sample = [model.project(h[:1], index) for index, h in enumerate(states[:-1])]
        widths = [row.shape[1] for row in sample if row is not None]
        if len(widths) < len(sample):
            return None
        size = len(states[0]) * sum(widths) * states[0].element_size()
        if wanted is None and size > SHARE * available_memory("cpu"):
            return None
        layers = []
        for index, (h, width) in enumerate(zip(states, widths, strict=False)):
            rows = h.new_empty(with_room(len(h)) + SCRATCH, width)
            for begin in range(0, len(h), ROWS):
                found = model.project(h[begin : begin + ROWS], index)
                assert found is not None
                rows[begin : begin + len(found)] = found
            layers.append(rows)
        return cls(model, layers)

    @property
    def nbytes(self) -> int:
        return sum(rows.nbytes for rows in self._layers)

    def reserve(self, num_nodes: int) -> None:
        """Make room for the rows of more nodes."""
        for index, rows in enumerate(self._layers):  # one at a time, to save memory
            if (missing := num_nodes + SCRATCH - len(rows)) > 0:
                more = rows.new_empty(missing, rows.shape[1])
                self._layers[index] = torch.cat((rows, more))

    def with_scratch(self, h: Tensor, index: int) -> tuple[Tensor, int]:
        """Project new rows h of layer `index` behind the stored rows; return all rows, and the
        number of the first new one. There may be at most `SCRATCH` new rows."""
        stored = self._layers[index]
        first = len(stored) - SCRATCH
        projected = self._model.project(h, index)
        assert projected is not None
        stored[first : first + len(h)] = projected
        return stored, first

    def computed(self, assembly: Assembly, one: Planned, h: Tensor, index: int) -> Computed:
        """Compute layer `index` of the planned rows from their new inputs h and stored rows."""
        stored, nodes = self._layers[index], torch.from_numpy(one.rows[index])
        projected = stored[:0]
        if len(nodes):
            found = self._model.project(h, index)
            assert found is not None
            projected, before = found, stored.index_select(0, nodes)
            stored.index_copy_(0, nodes, projected)
        try:
            parts = [
                self._model.propagate_projected(stored, targets, hop, index)
                for targets, hop in assembly.hops(one, index)
            ]
        finally:
            if len(nodes):
                stored.index_copy_(0, nodes, before)
        return Computed(torch.cat(parts) if parts else h[:0], projected)

    def store(self, one: Planned, projected: Sequence[Tensor]) -> None:
        """Store the projections of a change that becomes permanent."""
        for stored, nodes, rows in zip(self._layers, one.rows, projected, strict=False):
            stored.index_copy_(0, torch.from_numpy(nodes), rows)
