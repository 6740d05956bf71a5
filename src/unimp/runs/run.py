"""A run once it is trained: its model, its task, and all that it can be asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unimp.analysis.predictions import keep_observed, predictions_table, suggestions
from unimp.analysis.table import Table
from unimp.config.choices import Reveal, UnknownIds
from unimp.config.recipe import Recipe
from unimp.data.catalog import prepare
from unimp.data.tables.label_file import Given, later_labels
from unimp.data.tables.more_rows import extend_task
from unimp.errors import RunError
from unimp.graph.graph import Graph
from unimp.inference.calibration import as_logits, calibrate, measured
from unimp.inference.correct_and_smooth import correct_and_smooth
from unimp.inference.incremental.changes import FullRecomputation
from unimp.inference.incremental.logits import IncrementalLogits
from unimp.inference.logits import probabilities
from unimp.model.label_propagation import propagate_labels
from unimp.model.node_model import NodeModel
from unimp.runs.folder import files as run_folder
from unimp.runs.preparation import (
    choose_device,
    graph_for,
    groups_of,
    never_smoothed,
    preparation,
    refuse_smoothing,
    task_of,
)
from unimp.runs.scoring import logits_of, score_split
from unimp.tasks.labels import PROTOCOLS, is_known, mask_labels, mask_of, reveal_only
from unimp.tasks.metrics import FEW_NODES, score
from unimp.tasks.task import Sizes, Task
from unimp.training.checkpoint import load_weights


@dataclass(frozen=True)
class Run:
    """A trained model with its task, and the folder that holds both."""

    recipe: Recipe
    seed: int
    task: Task
    model: NodeModel | None  # None: label propagation, which has no parameters
    metrics: Mapping[str, Any]
    device: str
    folder: Path | None = None

    @property
    def takes_labels(self) -> bool:
        """Whether labels are inputs: of an X,A model or an MLP they are if its answers are
        smoothed."""
        smoothed = self.recipe.smooth.form != "none"
        return self.model is None or self.model.takes_labels or smoothed

    @property
    def protocols(self) -> tuple[str, ...]:
        """The protocols that differ: without label inputs, revealing more means nothing."""
        return PROTOCOLS if self.takes_labels else ("train",)

    def logits(self, observed: Tensor) -> Tensor:
        """Logits of all nodes, given the labels that may be seen: [N, classes]."""
        if self.model is None:
            options = self.recipe.model
            return propagate_labels(
                self.task.graph,
                observed,
                self.task.num_classes,
                normalization=options.normalization,
                steps=options.steps,
                restart=options.restart,
                clamp=options.clamp,
            )
        graph = graph_for(self.recipe, self.model, self.task, self.device)
        return logits_of(
            self.model, self.recipe, graph, observed, seed=self.seed, device=self.device
        )

    def scores(self, observed: Tensor) -> Tensor:
        """What nodes are scored by: logits, or probabilities if the recipe smooths them."""
        return self.scores_of(self.logits(observed), observed)

    def scores_of(self, logits: Tensor, observed: Tensor) -> Tensor:
        """The same of logits that the model gave already."""
        options = self.recipe.smooth.model_dump()
        if options["form"] == "none":
            return logits
        chances = probabilities(logits, multilabel=False)
        return correct_and_smooth(self.task.graph, chances, observed, **options)

    def hold(
        self, labels: Mapping[int, int] | Tensor | None = None, *, around: Tensor | None = None
    ) -> IncrementalLogits | FullRecomputation:
        """What answers for scores after a change, without computing everything again.

        labels: as of `predict`. around: the only nodes that will be asked about. A model that
        cannot be run one layer at a time, label propagation and smoothed scores are computed anew.
        """
        observed, smoothed = self.observed_with(labels), self.recipe.smooth.form != "none"
        if self.model is None or not self.model.by_layer or smoothed:

            def scores(graph: Graph, observed: Tensor) -> Tensor:
                return replace(self, task=self.task.with_graph(graph)).scores(observed)

            return FullRecomputation(scores, self.task.graph, observed)
        return IncrementalLogits(
            self.model,
            graph_for(self.recipe, self.model, self.task, self.device),
            observed,
            around=around,
            device=self.device,
            precision=self.recipe.train.precision,
        )

    def evaluate(self, reveal: str = "train") -> dict[str, float]:
        """Scores under a protocol: with train labels as inputs, or train and validation labels.

        A set whose labels are inputs is not scored, as the model would be told the answers.
        """
        known = self.task.split.known(reveal)
        return score_split(self.scores(reveal_only(known, self.task.labels)), self.task, reveal)

    @property
    def temperature(self) -> float:
        """What logits are divided by before they become probabilities; 1: as they are."""
        return float(self.metrics.get("calibration", {}).get("temperature", 1.0))

    def chances(self, scores: Tensor) -> Tensor:
        """Calibrated probabilities [N, classes], of scores."""
        if self.model is None and not self.task.is_multilabel:
            # Propagated labels are shares already; a node that none reaches is even.
            even = torch.full_like(scores, 1.0 / self.task.num_classes)
            total = scores.sum(1, keepdim=True)
            return torch.where(total > 0, scores / total.clamp(min=1e-30), even)
        logits = scores if self.recipe.smooth.form == "none" else as_logits(scores)
        return probabilities(logits / self.temperature, multilabel=self.task.is_multilabel)

    def calibrate(self, scores: Tensor) -> dict[str, Any]:
        """A temperature fitted on validation, of scores with train labels as inputs, and the
        calibration error with and without it: what metrics.json keeps."""
        if self.model is None:
            why = "label propagation gives shares of labels, not logits"
            return measured(as_logits(self.chances(scores)), self.task, 1.0, why)
        return calibrate(
            scores if self.recipe.smooth.form == "none" else as_logits(scores), self.task
        )

    def predict(self, labels: Given | None = None, *, reveal: Reveal = "train") -> Tensor:
        """Probabilities of each class for all nodes, [N, classes], without retraining.

        Train labels are inputs (with reveal="train+val" validation's too, with "known" every label
        that the task has), and so are `labels`: those that arrived since, as {node: class}
        by names (numbers where there are none), as a tensor like the task's own (−1 where nothing
        new is known), or as the path of a label file. What was an input is kept: its probability
        is 1. Where it was not, probabilities are calibrated.
        """
        observed = self.observed_with(labels, reveal)
        return keep_observed(self.chances(self.scores(observed)), observed)

    def smoothed(self) -> Run:
        """This run with Correct & Smooth after its model: the same weights, calibrated anew."""
        observed = self.observed_with(None)
        return self._smoothed(self.logits(observed), observed)[0]

    def _smoothed(self, logits: Tensor, observed: Tensor) -> tuple[Run, Tensor]:
        """The same of the logits that the train labels give, and its scores."""
        recipe = self.recipe.with_settings(["smooth.form=correct-and-smooth"])
        refuse_smoothing(recipe, self.task, own_model=self.model is not None)
        smooth = replace(self, recipe=recipe)
        scores = smooth.scores_of(logits, observed)
        metrics = {**self.metrics, "calibration": smooth.calibrate(scores)}
        return replace(smooth, metrics=metrics), scores

    def smoothed_if_better(self) -> Run:
        """This run with Correct & Smooth after its model if that scores better on validation, and
        else as it is.

        Train labels are inputs; the test set has no say. `metrics["smoothing"]` tells whether it is
        `smoothed` now, both validation scores, and in `note` why nothing was compared.
        """
        labels = self.task.labels[self.task.split.val]
        known = int(is_known(labels).sum())
        note = never_smoothed(self.recipe, self.task, own_model=self.model is not None)
        if self.recipe.smooth.form != "none":
            note = "its recipe smooths already"
        elif not note and known < FEW_NODES:
            note = f"{known} validation labels are too few to choose by, {FEW_NODES} would do"
        chosen, scores = self, {}
        if not note:
            observed = self.observed_with(None)
            logits = self.logits(observed)
            smooth, answers = self._smoothed(logits, observed)
            for form, given in (("none", logits), (smooth.recipe.smooth.form, answers)):
                scores[form] = score(self.task.metric, given[self.task.split.val], labels)
            before, after = scores.values()
            chosen = smooth if after > before else self
            if math.isnan(before):  # an area under a curve, where one class alone is there
                note = "there is no validation score to choose by"
        found = {"smoothed": chosen is not self, "val": scores, "note": note}
        return replace(chosen, metrics={**chosen.metrics, "smoothing": found})

    def predictions(
        self,
        labels: Given | None = None,
        *,
        reveal: Reveal = "train",
        probabilities: bool | None = None,
    ) -> Table:
        """What `predict` says as a table under the task's names, one row a node.

        It is what `unimp predict` writes; its columns are told by `predictions_table`.
        """
        chances = self.predict(labels, reveal=reveal)
        observed = self.observed_with(labels, reveal)
        return predictions_table(self.task, chances, observed, every_class=probabilities)

    def suggest(self, number: int = 50, labels: Given | None = None) -> Table:
        """The unknown nodes whose label would teach most, as a table, best first.

        `labels` arrived since: they are inputs, and not asked for again. `unimp suggest` asks
        `smoothed_if_better()`.
        """
        observed = self.observed_with(labels)
        return suggestions(self.task, self.chances(self.scores(observed)), observed, number)

    def observed_share(self, rate: float) -> Tensor:
        """A random share of the train labels, as the model may see them; smaller ones lie in
        larger."""
        task = self.task
        mask = mask_labels(
            mask_of(task.split.train, len(task.labels)),
            rate,
            generator=torch.Generator().manual_seed(self.seed),
            groups=groups_of(self.recipe, task, self.takes_labels),
        )
        return mask.reveal(task.labels)

    def observed_with(self, labels: Given | None, reveal: Reveal = "train") -> Tensor:
        """The labels that are inputs, with labels that arrived since laid over them."""
        observed = self.task.labels.clone()
        if reveal != "known":
            observed = reveal_only(self.task.split.known(reveal), self.task.labels)
        if labels is None:
            return observed
        later = later_labels(labels, self.task)
        return torch.where(later >= 0, later, observed)

    def extended(
        self, nodes: Any = None, edges: Any = None, *, unknown_ids: UnknownIds = "refuse"
    ) -> Run:
        """This run on a larger graph, without retraining: old nodes keep their numbers, new ones
        follow.

        Paths, frames of pandas or polars, Arrow tables or dicts of arrays, with the columns of the
        tables that the run was made from; its transforms encode them. Ids that are known already
        are refused; with unknown_ids="skip", edges that name an unknown id are left out.
        """
        task = extend_task(self.task, nodes, edges, unknown_ids=unknown_ids)
        return replace(self, task=prepare(task, **preparation(self.recipe)))

    def __repr__(self) -> str:
        lines = [f"Run({self.recipe.name!r}, seed {self.seed}, {self.task.metric})"]
        for protocol, scores in self.metrics["scores"].items():
            text = ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
            lines.append(f"  {protocol if self.takes_labels else 'no'} labels revealed: {text}")
        return "\n".join(lines + ([f"  in {self.folder}"] if self.folder else []))


def load_run(
    folder: Path | str,
    *,
    device: str = "auto",
    model: Callable[[Sizes], NodeModel] | None = None,
) -> Run:
    """A run from its folder, once its data and weights are seen to be those it was made with.

    `model` is what `run` was given to make a model of your own.
    """
    folder = Path(folder)
    recipe, metrics, manifest = run_folder.read_run(folder)
    task = task_of(recipe, manifest["seed"])
    if task.data_hash() != manifest["data_hash"]:
        raise RunError(
            f"{folder} was made with other data than {recipe.task.name!r} gives now; restore the "
            "data, or train again"
        )
    task = run_folder.with_transforms(task, folder)
    device = choose_device(device)
    if manifest.get("model") and model is None:
        raise RunError(
            f"{folder} was made with a model of your own ({manifest['model']}); load it with "
            "unimp.load_run(folder, model=…), given what made the model then"
        )
    loaded = None
    if recipe.model.name != "label-propagation" or model is not None:
        loaded = (model or recipe.build_model)(task.sizes)
        load_weights(loaded, folder / "model.safetensors")
        loaded = loaded.to(device).eval()
    return Run(recipe, manifest["seed"], task, loaded, metrics, device, folder)
