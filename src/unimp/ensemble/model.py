"""An ensemble: trained members whose calibrated probabilities are averaged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unimp.ensemble.calibration import Calibration, log_odds
from unimp.errors import ModelError
from unimp.inference.calibration import as_logits
from unimp.inference.incremental.changes import Change, ChangeableLogits, Update, nothing
from unimp.model.node_model import NodeModel


@dataclass(frozen=True)
class Entry:
    """One member of an ensemble: how its recipe differs, and how its answer counts."""

    name: str
    settings: Mapping[str, Any]  # options that differ from the recipe of the ensemble
    weight: float
    temperature: float  # of the member's own run


class Ensemble(NodeModel):
    """A weighted set of members, selected on validation.

        p_i = Σ_m w_m calibrated_m( z_mi )         logits_i = log p_i

    (for binary tasks, logits log p − log(1 − p)). Each member runs on its own preparation of the
    graph, so an ensemble has no hops of its own: `combine` receives the members' outputs.
    """

    by_layer = False

    scale: Tensor
    shift: Tensor

    def __init__(
        self,
        members: Sequence[NodeModel],
        entries: Sequence[Entry],
        calibrations: Sequence[Calibration],
    ) -> None:
        super().__init__()
        self.members, self.entries = nn.ModuleList(members), tuple(entries)
        self.register_buffer("scale", torch.stack([one.scale for one in calibrations]))
        self.register_buffer("shift", torch.stack([one.shift for one in calibrations]))
        self.takes_labels = any(member.takes_labels for member in members)
        self.takes_edge_features = any(member.takes_edge_features for member in members)
        self.attends = any(member.attends for member in members)
        self.num_layers = max(member.num_layers for member in members)

    def combine(self, outputs: Sequence[Tensor], *, multilabel: bool) -> Tensor:
        """Logits of the ensemble from the outputs of all members: [n, C] each."""
        total: Tensor | None = None
        calibrations = zip(self.scale.cpu(), self.shift.cpu(), strict=True)
        parts = zip(self.members, self.entries, calibrations, outputs, strict=True)
        for member, entry, numbers, given in parts:
            assert isinstance(member, NodeModel)
            chances = member.to_probabilities(
                given, multilabel=multilabel, temperature=entry.temperature
            )
            share = entry.weight * Calibration(*numbers).apply(chances, multilabel=multilabel)
            total = share if total is None else total + share
        assert total is not None
        return (log_odds(total) if multilabel else as_logits(total)).float()

    def embed(self, x: Any, observed: Tensor) -> Tensor:
        raise ModelError("an ensemble has no layers; call run.outputs() instead")

    def propagate(self, h: Tensor, hop: Any, index: int) -> Tensor:
        raise ModelError("an ensemble has no layers; call run.outputs() instead")

    def read_out(self, h: Tensor) -> Tensor:
        raise ModelError("an ensemble has no layers; call run.outputs() instead")


class EnsembleLogits:
    """Logits of an ensemble after changes: each member follows the change on its own."""

    def __init__(
        self, ensemble: Ensemble, members: Sequence[ChangeableLogits], *, multilabel: bool
    ) -> None:
        self._ensemble, self._members, self._multilabel = ensemble, members, multilabel

    def _combined(self, outputs: Sequence[Tensor]) -> Tensor:
        return self._ensemble.combine(outputs, multilabel=self._multilabel)

    @property
    def logits(self) -> Tensor:
        return self._combined([member.logits for member in self._members])

    @property
    def without_labels(self) -> Tensor:
        return self._combined([member.without_labels for member in self._members])

    def after(self, changes: Sequence[Change], targets: Sequence[Tensor]) -> list[Tensor]:
        answers = [member.after(changes, targets) for member in self._members]
        return [self._combined(rows) for rows in zip(*answers, strict=True)]

    @property
    def is_local(self) -> bool:
        return all(member.is_local for member in self._members)

    def prepare(self, change: Change, between: Callable[[], None] = nothing) -> Update:
        updates = [member.prepare(change, between) for member in self._members]
        nodes = torch.unique(torch.cat([one.nodes for one in updates]))
        # New nodes are part of the update of every member.
        first = updates[0]
        is_new = torch.isin(nodes, first.nodes[first.before.isnan().any(1)])
        rows_before, rows_after = [], []
        for member, one in zip(self._members, updates, strict=True):
            (stored,) = member.after([Change()], [nodes[~is_new]])
            rows = stored.new_empty(len(nodes), stored.shape[1])
            rows[~is_new] = stored
            rows[torch.searchsorted(nodes, one.nodes)] = one.after
            rows_before.append(stored)
            rows_after.append(rows)
        after = self._combined(rows_after)
        before = torch.full_like(after, torch.nan)
        before[~is_new] = self._combined(rows_before)

        def apply() -> None:
            for one in updates:
                one.apply()

        return Update(nodes, before, after, apply)

    def commit(self, change: Change, between: Callable[[], None] = nothing) -> Update:
        return self.prepare(change, between).applied()
