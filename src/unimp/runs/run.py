"""A trained run: its model, its task, and everything it can be asked."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unimp.analysis.audit import Audit, audit
from unimp.analysis.explain import BUDGET, EXACT, Explanation, explain
from unimp.analysis.predictions import keep_observed, predictions_table, suggestions
from unimp.analysis.table import Table
from unimp.config.arguments import Seed, check_fields, checked_methods
from unimp.config.choices import Reveal, UnknownIds
from unimp.config.recipe import Recipe
from unimp.data.catalog import prepare
from unimp.data.tables.extending import extend_task
from unimp.data.tables.label_files import Given, later_labels
from unimp.errors import NonFiniteError, RunError, TaskError
from unimp.graph.graph import Graph
from unimp.inference.calibration import as_logits, calibrate, checked_temperature, measured
from unimp.inference.correct_and_smooth import correct_and_smooth
from unimp.inference.incremental.changes import FullRecomputation
from unimp.inference.incremental.logits import IncrementalLogits
from unimp.inference.logits import (
    non_finite_error,
    non_finite_rows,
    predict_logits,
    probabilities,
)
from unimp.model.node_model import NodeModel
from unimp.runs.preparation import (
    cannot_smooth,
    choose_device,
    graph_for,
    groups_of,
    inference_options,
    preparation,
    refuse_smoothing,
)
from unimp.runs.scoring import score_split
from unimp.tasks.labels import (
    PROTOCOLS,
    checked_labels,
    is_known,
    mask_labels,
    mask_of,
    reveal_only,
)
from unimp.tasks.metrics import FEW_NODES, score
from unimp.tasks.names import classes_of, node_ids, nodes_of
from unimp.tasks.task import Task

UNLIMITED = 2**60
LOWER_RATE = "Try a smaller train.lr, or scale the features."


@checked_methods
@dataclass(frozen=True)
class Run:
    """A trained model with its task, and the folder that stores both."""

    recipe: Recipe
    seed: Seed
    task: Task
    model: NodeModel
    metrics: Mapping[str, Any]
    device: str
    folder: Path | None = None

    def __post_init__(self) -> None:
        check_fields(self, "recipe", "seed", "task", "model", "metrics", "device", "folder")
        choose_device(self.device)
        _ = self.temperature  # refuses one that would spoil every probability

    def evaluate(self, reveal: str = "train") -> dict[str, float]:
        """Scores under a protocol: train labels are inputs, or train and validation labels.

        A set whose labels are inputs is not scored, because the model would see the answers.
        """
        known = self.task.split.known(reveal)
        return score_split(self.outputs(reveal_only(known, self.task.labels)), self.task, reveal)

    def predict(self, labels: Given | None = None, *, reveal: Reveal | None = None) -> Tensor:
        """Probabilities of each class for all nodes, [N, classes], without training.

        reveal: the labels of the task that are inputs: `train`, `train+val`, or `known` for all.
        By default all known labels of your own graph are inputs, and the train labels of a task
        with a name, whose other labels are there for scoring.
        labels: labels that arrived later, which are inputs too: {node: class} by names (by numbers
        if there are no names), a tensor like the task's labels (−1 where nothing is new), or the
        path of a label file.

        A label that was an input is returned with probability 1. All other probabilities are
        calibrated on the validation set.
        """
        observed = self.observed_labels(labels, reveal)
        return keep_observed(self.probabilities_of(self.outputs(observed)), observed)

    def predictions(
        self,
        labels: Given | None = None,
        *,
        reveal: Reveal | None = None,
        probabilities: bool | None = None,
    ) -> Table:
        """The result of `predict` as a table with one row per node, under the task's names.

        `unimp predict` writes this table; `predictions_table` describes its columns.
        """
        observed = self.observed_labels(labels, reveal)
        given = keep_observed(self.probabilities_of(self.outputs(observed)), observed)
        return predictions_table(self.task, given, observed, every_class=probabilities)

    def explain(
        self,
        node: Any,
        *,
        about: Any = None,
        labels: Given | None = None,
        reveal: Reveal | None = None,
        top: int = 10,
        exact: int = EXACT,
        budget: int | None = BUDGET,
    ) -> Explanation:
        """The neighbors and known labels behind the prediction of a node.

        node and about: the node and the class (or binary task), by name, or by number if there are
        no names; by default the most likely class. labels and reveal: as for `predict`. The `exact`
        labels and edges with the largest shares are removed one by one, as far as `budget` (edges
        to compute; None: no limit) allows.
        """
        for name, value, least in (("top", top, 1), ("exact", exact, 0), ("budget", budget, 0)):
            if value is not None and not least <= value <= UNLIMITED:
                raise RunError(f"{name} is {value}; it must be from {least} to {UNLIMITED}")
        number = nodes_of(self.task).find(node)
        target = None if about is None else classes_of(self.task).find(about)
        observed = self.observed_labels(labels, reveal)
        started = time.perf_counter()
        with self._nodes_named():
            engine = self.incremental(observed, around=torch.tensor([number]))
            prepared = time.perf_counter() - started
            found = explain(
                engine,
                self.task,
                observed,
                number,
                chances=self.probabilities_of,
                takes_labels=self.takes_labels,
                target=target,
                top=top,
                exact=exact,
                budget=UNLIMITED if budget is None else budget,
            )
        took = time.perf_counter() - started - prepared
        computed = f"every change was computed on the whole graph, in {took:.1f} s"
        if isinstance(engine, IncrementalLogits):
            computed = (
                f"the states of {len(engine.held):,} of {self.task.graph.num_nodes:,} nodes were "
                f"computed in {prepared:.1f} s, and the changes in {took:.1f} s"
            )
        if self.recipe.inference.regime != "exact":
            computed += "; inference was exact here, but the run's own predictions use parts"
        return replace(found, smooth=self.recipe.smooth.form, computed=computed)

    def audit(
        self,
        labels: Given | None = None,
        *,
        reveal: Reveal | None = None,
        folds: int | None = None,
        by_group: bool = False,
        on_part: Callable[[int, int], None] = lambda done, total: None,
    ) -> Audit:
        """Known labels that the model doubts when it sees all the others, the most doubtful first.

        labels and reveal: as for `predict`; these labels are hidden in turn. folds: 0 hides each
        label alone; k hides the k-th part of them at a time; None chooses by the size of the graph.
        by_group: a label is hidden together with its group.
        """
        observed = self.observed_labels(labels, reveal)
        known = torch.nonzero(is_known(observed)).squeeze(1)
        labels_now = torch.where(observed >= 0, observed, self.task.labels)
        with self._nodes_named():
            return audit(
                self.incremental(observed),
                replace(self.task, labels=labels_now),
                known,
                chances=self.probabilities_of,
                folds=folds,
                by_group=by_group,
                on_part=on_part,
            )

    def suggest(
        self,
        number: int = 50,
        labels: Given | None = None,
        *,
        reveal: Reveal | None = None,
        smooth: bool | None = None,
    ) -> Table:
        """The unknown nodes whose labels would help most, best first.

        labels and reveal: as for `predict`; nodes with such a label are not suggested. smooth:
        whether Correct & Smooth follows the model; None: if it scores better on validation
        (`smoothed_if_better`).
        """
        if smooth is None or smooth:
            chosen = self.smoothed() if smooth else self.smoothed_if_better()
            return chosen.suggest(number, labels, reveal=reveal, smooth=False)
        observed = self.observed_labels(labels, reveal)
        outputs = self.outputs(observed)
        return suggestions(self.task, self.probabilities_of(outputs), observed, number)

    def report(self) -> Path:
        """Write report.html into the run's folder again, and return its path."""
        from unimp.runs.reporting import write_report

        if self.folder is None:
            raise RunError("the run has no folder for its report; pass out=… to unimp.run")
        return write_report(self.folder, self)

    def extended(
        self, nodes: Any = None, edges: Any = None, *, unknown_ids: UnknownIds = "refuse"
    ) -> Run:
        """This run on a larger graph, without training: new nodes follow the old ones.

        nodes and edges are paths, frames of pandas or polars, Arrow tables or dictionaries of
        arrays with the columns of the tables that the run was trained on; its transforms encode
        them. An id that exists already is refused. unknown_ids="skip" leaves out edges with an
        unknown id.
        """
        task = extend_task(self.task, nodes, edges, unknown_ids=unknown_ids)
        return replace(self, task=prepare(task, **preparation(self.recipe)))

    @property
    def failure(self) -> str:
        """Why training failed, and which state the model has; empty if training succeeded."""
        if not self.metrics.get("failed"):
            return ""
        state = "in the last good state" if self.metrics["epochs"] else "untrained"
        return f"training failed: {self.metrics['stopped']}, so the model is {state}. {LOWER_RATE}"

    @property
    def takes_labels(self) -> bool:
        """Whether labels are inputs, of the model or of smoothing after it."""
        return self.model.takes_labels or self.smooths

    @property
    def smooths(self) -> bool:
        """Whether Correct & Smooth follows the model."""
        return self.recipe.smooth.form != "none"

    @property
    def protocols(self) -> tuple[str, ...]:
        """The label protocols; without labels as inputs there is only one."""
        return PROTOCOLS if self.takes_labels else ("train",)

    @property
    def default_reveal(self) -> Reveal:
        """The labels that are inputs of predictions unless stated otherwise."""
        return "known" if self.recipe.is_of_own_data else "train"

    def observed_labels(self, labels: Given | None = None, reveal: Reveal | None = None) -> Tensor:
        """The labels that are inputs: those of the task that `reveal` names, and later ones."""
        reveal = reveal or self.default_reveal
        observed = self.task.labels.clone()
        if reveal != "known":
            observed = reveal_only(self.task.split.known(reveal), self.task.labels)
        if labels is None:
            return observed
        later = later_labels(labels, self.task)
        return torch.where(later >= 0, later, observed)

    def observed_share(self, rate: float) -> Tensor:
        """A random share of the train labels as the model may see them; shares are nested."""
        task = self.task
        mask = mask_labels(
            mask_of(task.split.train, len(task.labels)),
            rate,
            generator=torch.Generator().manual_seed(self.seed),
            groups=groups_of(self.recipe, task, self.model),
        )
        return mask.reveal(task.labels)

    def logits(self, observed: Tensor) -> Tensor:
        """The model's outputs for all nodes, given the labels that it may see: [N, classes]."""
        observed = self._checked(observed)
        graph = graph_for(self.recipe, self.model, self.task, self.device)
        options = inference_options(self.recipe)
        with self._nodes_named():
            return predict_logits(
                self.model, graph, observed, seed=self.seed, device=self.device, **options
            )

    def _checked(self, observed: Tensor) -> Tensor:
        """Labels as inputs; refused if they are not in the form of the task's labels."""
        labels = checked_labels(observed, self.task.graph.num_nodes, self.task.num_classes)
        if labels.ndim != self.task.labels.ndim:
            raise TaskError(
                f"observed has shape {tuple(labels.shape)}; it must have the shape "
                f"{tuple(self.task.labels.shape)} of the task's labels."
            )
        return labels

    @contextmanager
    def _nodes_named(self) -> Iterator[None]:
        """In an error about scores that are not finite, name nodes as the user does."""
        try:
            yield
        except NonFiniteError as error:
            ids = node_ids(self.task)
            raise non_finite_error(error.nodes, self.model, self.task.graph, ids) from None

    def outputs(self, observed: Tensor) -> Tensor:
        """What nodes are ranked by, [N, classes]: logits, or probabilities after smoothing."""
        return self.smoothed_outputs(self.logits(observed), observed)

    def smoothed_outputs(self, logits: Tensor, observed: Tensor) -> Tensor:
        """The same from logits that were computed before."""
        if not self.smooths:
            return logits
        given = probabilities(logits, multilabel=False)
        options = self.recipe.smooth.model_dump()
        outputs = correct_and_smooth(self.task.graph, given, observed, **options)
        with self._nodes_named():
            if rows := non_finite_rows(outputs):
                raise NonFiniteError("smoothed probabilities are not finite", rows)
        return outputs

    def probabilities_of(self, outputs: Tensor) -> Tensor:
        """Calibrated probabilities [N, classes] from outputs."""
        multilabel, temperature = self.task.is_multilabel, self.temperature
        if outputs.ndim != 2 or outputs.shape[1] != self.task.num_classes:
            raise TaskError(
                f"outputs have shape {tuple(outputs.shape)}; they must have {self.task.num_classes}"
                " columns, one per class."
            )
        if self.smooths:
            return probabilities(as_logits(outputs) / temperature, multilabel=multilabel)
        return self.model.to_probabilities(outputs, multilabel=multilabel, temperature=temperature)

    @property
    def temperature(self) -> float:
        """The number that logits are divided by before they become probabilities."""
        return checked_temperature(self.metrics.get("calibration", {}).get("temperature", 1.0))

    def calibrate(self, outputs: Tensor) -> dict[str, Any]:
        """The temperature fitted on validation, from outputs with train labels as inputs, and the
        calibration error with and without it."""
        if not self.model.learns:
            why = "label propagation gives shares of labels, not logits"
            return measured(as_logits(self.probabilities_of(outputs)), self.task, 1.0, why)
        return calibrate(as_logits(outputs) if self.smooths else outputs, self.task)

    def incremental(
        self, observed: Tensor | None = None, *, around: Tensor | None = None
    ) -> IncrementalLogits | FullRecomputation:
        """An engine that computes outputs after a change without computing everything again.

        observed: the labels that are inputs; None: `observed_labels()`. around: the only nodes that
        will be asked for. A model that cannot run one layer at a time, and smoothed outputs, are
        computed as a whole after each change.
        """
        observed = self.observed_labels() if observed is None else self._checked(observed)
        if around is not None:
            around = self.task.graph.checked_nodes(around.reshape(-1))
        if not self.model.by_layer or self.smooths:

            def outputs(graph: Graph, observed: Tensor) -> Tensor:
                return replace(self, task=self.task.with_graph(graph)).outputs(observed)

            return FullRecomputation(outputs, self.task.graph, observed)
        return IncrementalLogits(
            self.model,
            graph_for(self.recipe, self.model, self.task, self.device),
            observed,
            around=around,
            device=self.device,
            precision=self.recipe.train.precision,
        )

    def smoothed(self) -> Run:
        """This run with Correct & Smooth after its model: same weights, calibrated again."""
        observed = self.observed_labels(reveal="train")
        return self._smoothed(self.logits(observed), observed)[0]

    def _smoothed(self, logits: Tensor, observed: Tensor) -> tuple[Run, Tensor]:
        """The smoothed run and its outputs, from the logits with train labels as inputs."""
        recipe = self.recipe.with_settings(["smooth.form=correct-and-smooth"])
        refuse_smoothing(recipe, self.task, self.model)
        smooth = replace(self, recipe=recipe)
        outputs = smooth.smoothed_outputs(logits, observed)
        metrics = {**self.metrics, "calibration": smooth.calibrate(outputs)}
        return replace(smooth, metrics=metrics), outputs

    def smoothed_if_better(self) -> Run:
        """This run with Correct & Smooth after its model if that scores better on validation.

        Train labels are inputs, and the test set is not used. `metrics["smoothing"]` states whether
        the returned run is `smoothed`, both validation scores, and in `note` why nothing was
        compared.
        """
        labels = self.task.labels[self.task.split.val]
        known = int(is_known(labels).sum())
        note = cannot_smooth(self.task, self.model)
        if self.smooths:
            note = "its recipe smooths already"
        elif not note and known < FEW_NODES:
            note = f"there are only {known} validation labels to compare by; {FEW_NODES} are needed"
        chosen, scores = self, {}
        if not note:
            observed = self.observed_labels(reveal="train")
            logits = self.logits(observed)
            smooth, outputs = self._smoothed(logits, observed)
            for form, given in (("none", logits), (smooth.recipe.smooth.form, outputs)):
                scores[form] = score(self.task.metric, given[self.task.split.val], labels)
            before, after = scores.values()
            chosen = smooth if after > before else self
            if math.isnan(before):  # ROC-AUC is not defined if only one class is present
                note = "there is no validation score to compare by"
        found = {"smoothed": chosen is not self, "val": scores, "note": note}
        return replace(chosen, metrics={**chosen.metrics, "smoothing": found})

    def __repr__(self) -> str:
        lines = [f"Run({self.recipe.name!r}, seed {self.seed}, {self.task.metric})"]
        lines += [f"  {self.failure}"] if self.failure else []
        for protocol, scores in self.metrics["scores"].items():
            text = ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
            inputs = f"{protocol} labels" if self.takes_labels else "no labels"
            lines.append(f"  {inputs} as inputs: {text}")
        return "\n".join(lines + ([f"  stored in {self.folder}"] if self.folder else []))
