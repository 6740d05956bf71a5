"""The values that a report shows: everything that is known about one run.

The files of a run give scores, curves, and for classes the predictions beside the labels. The task
adds in-edges, known in-neighbors, positions, and for binary tasks the labels; the model adds the
label-rate curve. A part that is not available is empty, and the page states why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unimp.config.recipe import Recipe
from unimp.report.measures import Array


@dataclass(frozen=True)
class ScoredNodes:
    """The nodes of the test set with known labels (of the validation set, if there are none).

    Classes: label, prediction and probability are [n]. Binary tasks: label and probability are
    [n, T].
    """

    part: str  # "test" or "val"
    names: tuple[str, ...]  # of classes or binary tasks
    label: Array
    probability: Array
    prediction: Array | None = None  # None: binary tasks
    in_edges: Array | None = None  # [n]; None: the task is not available
    known_neighbors: Array | None = None  # [n]; in-neighbors whose label is observed


@dataclass(frozen=True)
class PlacedNodes:
    """All nodes of a task whose nodes have positions and classes."""

    positions: NDArray[np.float32]  # [N, 2]; x to the east, y to the north
    names: tuple[str, ...]  # of classes, in the order of the task
    known: NDArray[np.int64]  # [N] class of each train label; −1: the node has none
    prediction: NDArray[np.int64]  # [N] class; −1: nothing predicted, its label was an input
    confidence: NDArray[np.float32]  # [N] probability of the prediction; NaN if there is none
    right: NDArray[np.int64]  # [N] 1 right, 0 wrong, −1 not scored


@dataclass(frozen=True)
class StoredExplanation:
    """One answer of `unimp explain`."""

    found: Mapping[str, Any]  # `Explanation.to_dict`
    asked: str  # date and time
    given: Mapping[str, str] = field(default_factory=dict)  # files added after training, by option


@dataclass(frozen=True)
class Explanations:
    """The stored explanations of a run, the newest first."""

    stored: Sequence[StoredExplanation] = ()
    stale: int = 0  # how many belong to an earlier state of the run
    damaged: int = 0  # how many cannot be read


@dataclass(frozen=True)
class Evidence:
    """Everything that is known about one run."""

    folder: Path
    recipe: Recipe
    metrics: Mapping[str, Any]
    manifest: Mapping[str, Any]
    history: Sequence[Mapping[str, Any]]
    sizes: Mapping[str, int] = field(default_factory=dict)  # nodes, train, val and test
    classes: int = 0  # or binary tasks; 0: unknown, because the task is not available
    nodes: ScoredNodes | None = None
    places: PlacedNodes | None = None
    label_rates: Sequence[tuple[float, float]] = ()  # share of train labels revealed, score
    missing: str = ""  # why the task is not available
    no_label_rates: str = ""  # why there is no label-rate curve
    explanations: Explanations = field(default_factory=Explanations)

    @property
    def takes_labels(self) -> bool:
        """Whether labels are inputs; only then is there a second protocol."""
        return "train+val" in self.metrics["scores"]

    @property
    def own_model(self) -> str:
        """The name of a custom model that the recipe does not describe; else empty."""
        return str(self.manifest.get("model") or "")

    @property
    def cut_short(self) -> bool:
        """Whether a time limit ended training, or no epoch was scored.

        Ensembles, and models that the training loop does not train, have no epochs.
        """
        unscored = self.metrics["best_epoch"] is None and self.metrics["epochs"] > 0
        return unscored or bool(self.metrics.get("cut_short"))

    def score(self, part: str, protocol: str = "train") -> float | None:
        """A score; None if there is none."""
        value = self.metrics["scores"].get(protocol, {}).get(part)
        return None if value is None else float(value)
