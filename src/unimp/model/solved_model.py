"""Models whose weights are computed from the known labels at once, without gradient descent."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from unimp.config.choices import Metric
from unimp.graph.graph import Graph
from unimp.model.node_model import NodeModel


@dataclass(frozen=True, eq=False)
class KnownLabels:
    """The labels that a model may be computed from, and what each may be used for.

    The label of a node in neither set is UNLABELED, so test labels cannot reach a model.
    """

    labels: Tensor  # [N] or [N, T]
    train: Tensor  # node numbers: labels to fit, and the labels that are inputs of predictions
    val: Tensor  # node numbers: labels to choose settings by; may be empty
    metric: Metric
    groups: Tensor | None = None  # [N] group numbers; folds keep groups together


class SolvedModel(NodeModel):
    """A model that computes its weights in one step.

    The labels of `known.train` are inputs of its predictions, as they are after training. A label
    that is an input must not be visible where the same label is fitted: such a model uses folds.
    """

    @abstractmethod
    def solve(self, graph: Graph, known: KnownLabels, *, seed: int) -> str:
        """Compute the weights on the graph that `prepare` returned, and state how in one line."""

    def take_shapes(self, tensors: Mapping[str, Tensor]) -> None:
        """Prepare weights whose shapes depend on the data for stored ones, which are checked here.

        ModelError states what is wrong with them. The caller then copies the stored weights.
        """
