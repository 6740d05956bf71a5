"""Questions to the model about the applied state; each returns values ready for JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from unimp.analysis.audit import audit
from unimp.analysis.explain import explain
from unimp.analysis.predictions import suggestions
from unimp.analysis.suggest import unknown_nodes
from unimp.errors import TaskError
from unimp.report.drawing import standalone
from unimp.report.explanation import LAYOUTS, picture
from unimp.serving.engine.applied import Applied, Rows, neighbors_of
from unimp.serving.engine.values import NodeValues
from unimp.serving.events import MOVED
from unimp.tasks.labels import is_known

ALONE = 2_000
"""Up to so many labels, the audit hides each label alone."""
LARGEST = 20
"""The number of effects that what-if returns."""
MOST_NEIGHBORS = 100


class Questions:
    """Answers about the applied events; pending ones are not taken into account."""

    def __init__(self, applied: Applied) -> None:
        self._applied, self._values = applied, NodeValues(applied)

    def population(self) -> Tensor:
        """The numbers of nodes for which the run has no label: random items come from these."""
        applied = self._applied
        unknown = unknown_nodes(applied.run.task, applied.base)
        more = torch.ones(len(applied.ids) - len(unknown), dtype=torch.bool)
        return torch.nonzero(torch.cat((unknown, more))).squeeze(1)

    def suggest(self, number: int) -> list[dict[str, Any]]:
        """The nodes whose labels would help most."""
        applied = self._applied
        chances = applied.run.probabilities_of(applied.live.logits)
        still = is_known(applied.observed[: len(applied.base)])
        removed = torch.nonzero(is_known(applied.base) & ~still).squeeze(1)
        found = suggestions(applied.task, chances, applied.observed, number, removed).to_pylist()
        for row in found:
            del row["label"]
            if applied.several:
                above = chances[applied.numbers[row["node"]]] > 0.5
                row["prediction"] = [applied.classes[c] for c in torch.nonzero(above).flatten()]
        return found

    def audit(self) -> dict[str, Any]:
        """Known labels that the model doubts, the most doubtful first."""
        applied = self._applied
        known = torch.nonzero(is_known(applied.observed)).squeeze(1)
        if not len(known):
            return {"disagreements": 0, "folds": 0, "doubts": []}
        found = audit(
            applied.live,
            applied.task,
            known,
            chances=applied.run.probabilities_of,
            folds=0 if len(known) <= ALONE else None,
            given=applied.observed,
        )
        rows = [
            {name: str(v) if name in ("given", "suggested") else v for name, v in row.items()}
            for row in found.to_pylist()
        ]
        return {"disagreements": found.disagreements, "folds": found.folds, "doubts": rows}

    def explain(self, node: str, about: str | None) -> dict[str, Any]:
        """The neighbors and labels behind a prediction."""
        applied = self._applied
        if about is not None and about not in applied.classes:
            raise TaskError(f"there is no class {about!r}")
        found = explain(
            applied.live,
            applied.task,
            applied.observed,
            applied.number_of(node),
            chances=applied.run.probabilities_of,
            takes_labels=applied.run.takes_labels,
            target=None if about is None else applied.classes.index(about),
        )
        return found.to_dict()

    def picture(self, node: str, about: str | None, layout: str) -> str:
        """The explanation as an SVG file; empty if the node has no edges.

        layout: "wide", or "narrow" for a column or a phone.
        """
        found = self.explain(node, about)
        if not found["links"]:
            return ""
        return standalone(picture(found, LAYOUTS[layout]), "dark.css", "explanation.css")

    def what_if(
        self, labels: Mapping[str, Any], nodes: list[str]
    ) -> tuple[dict[str, Any], Rows, Rows]:
        """The effect of labels that nobody stores: counts, and the rows of nodes before and after.

        The rows are those of `nodes`, then those with the largest effects.
        """
        applied = self._applied
        change = applied.change_of_labels(labels)
        update = applied.live.prepare(change)
        observed = change.labels_from(applied.observed)
        chances = applied.run.probabilities_of
        others = torch.nonzero(~torch.isin(update.nodes, _given(change.nodes))).squeeze(1)
        sizes = update.sizes(chances)[others]
        before, after = (
            applied.rows(update.nodes[others], logits[others], seen[update.nodes[others]])
            for logits, seen in ((update.before, applied.observed), (update.after, observed))
        )
        if applied.several:
            turned = ((before.probabilities > 0.5) != (after.probabilities > 0.5)).any(1)
        else:
            turned = before.probabilities.argmax(1) != after.probabilities.argmax(1)
        largest = others[sizes.argsort(descending=True, stable=True)[:LARGEST]]
        asked = applied.numbers_of(nodes)
        shown = list(dict.fromkeys([*asked, *update.nodes[largest].tolist()]))
        wanted = torch.tensor(shown, dtype=torch.int64)
        now = applied.live.logits[wanted]
        later = now.clone()
        place = {int(n): k for k, n in enumerate(update.nodes.tolist())}
        for row, number in enumerate(shown):
            if number in place:
                later[row] = update.after[place[number]]
        counts = {"changed": int(turned.sum()), "moved": int((sizes > MOVED).sum())}
        first = applied.rows(wanted, now, applied.observed[wanted])
        return counts, first, applied.rows(wanted, later, observed[wanted])

    def details(self, node: str) -> dict[str, Any]:
        """The values of a node's columns, and its neighbors with the direction of the edge."""
        applied = self._applied
        found = neighbors_of(applied.graph, applied.number_of(node))
        shown = [[applied.ids[n], way] for n, way in list(found.items())[:MOST_NEIGHBORS]]
        return {
            "columns": self._values.of(node),
            "neighbors": shown,
            "num_neighbors": len(found),
        }


def _given(nodes: Tensor | None) -> Tensor:
    assert nodes is not None
    return nodes
