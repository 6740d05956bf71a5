"""A trained model on its task: logits, outputs and calibrated probabilities."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from unimp.analysis.predictions import keep_observed
from unimp.config.arguments import Seed, check_fields, checked
from unimp.config.choices import Reveal
from unimp.config.recipe import Recipe
from unimp.data.structure import with_structure, without_structure
from unimp.data.tables.label_files import Given, later_labels
from unimp.ensemble.model import Ensemble, EnsembleLogits
from unimp.ensemble.portfolio import member_recipe
from unimp.errors import NonFiniteError, TaskError
from unimp.graph.graph import Graph
from unimp.inference.calibration import as_logits, calibrate, checked_temperature, measured
from unimp.inference.correct_and_smooth import correct_and_smooth
from unimp.inference.incremental.changes import ChangeableLogits
from unimp.inference.incremental.logits import IncrementalLogits
from unimp.inference.incremental.recomputation import FullRecomputation
from unimp.inference.logits import non_finite_error, predict_logits, probabilities
from unimp.inference.ranges import ALONE, SharedWork
from unimp.inference.row_files import map_rows, memory_limit
from unimp.model.node_model import NodeModel
from unimp.runs.preparation import (
    cannot_smooth,
    choose_device,
    graph_for,
    groups_of,
    inference_options,
    member_task,
    preparation,
    refuse_smoothing,
)
from unimp.tasks.labels import (
    PROTOCOLS,
    UNLABELED,
    checked_labels,
    is_known,
    mask_labels,
    mask_of,
    reveal_only,
)
from unimp.tasks.means import FEW_NODES
from unimp.tasks.metrics import refuse_non_finite, score
from unimp.tasks.names import node_ids
from unimp.tasks.task import Task
from unimp.training.precision import inference_precision


@dataclass(frozen=True)
class TrainedModel:
    """A trained model with its task, and the folder that stores both.

    shared: the part of this process if several processes compute logits together; all of them must
    then call `logits` equally often, with the same labels.
    """

    recipe: Recipe
    seed: Seed
    task: Task
    model: NodeModel
    metrics: Mapping[str, Any]
    device: str
    folder: Path | None = None
    shared: SharedWork = ALONE

    def __post_init__(self) -> None:
        check_fields(self, "recipe", "seed", "task", "model", "metrics", "device", "folder")
        object.__setattr__(self, "seed", int(self.seed))  # may be a numpy number
        choose_device(self.device)
        _ = self.temperature  # an invalid one is refused here

    @property
    def takes_labels(self) -> bool:
        """Whether labels are inputs, of the model or of smoothing after it."""
        return self.model.takes_labels or self.smooths

    @property
    def smooths(self) -> bool:
        """Whether Correct & Smooth follows the model."""
        return self.recipe.smooth.form != "none"

    @property
    def is_refitted(self) -> bool:
        """Whether the members of the ensemble were trained again on validation labels."""
        return bool((self.metrics.get("ensemble") or {}).get("refitted"))

    @property
    def protocols(self) -> tuple[str, ...]:
        """The label protocols; without labels as inputs there is only one."""
        return PROTOCOLS if self.takes_labels else ("train",)

    @property
    def default_reveal(self) -> Reveal:
        """The labels that are inputs of predictions unless stated otherwise."""
        return "known" if self.recipe.is_of_own_data else "train"

    @checked
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

    @checked
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

    @cached_property
    def members(self) -> tuple[TrainedModel, ...]:
        """The members of an ensemble as trained models on this task; empty for a single model."""
        if not isinstance(self.model, Ensemble):
            return ()
        found, tasks = [], {}  # members with the same preparation share a task
        for entry, model in zip(self.model.entries, self.model.members, strict=True):
            assert isinstance(model, NodeModel)
            recipe = member_recipe(self.recipe, entry.name, entry.settings)
            key = tuple(sorted(preparation(recipe).items()))
            if key not in tasks:
                tasks[key] = member_task(self.recipe, recipe, self.task)
            task = tasks[key]
            metrics = {"calibration": {"temperature": entry.temperature}}
            found.append(TrainedModel(recipe, self.seed, task, model, metrics, self.device))
        return tuple(found)

    def logits(self, observed: Tensor) -> Tensor:
        """The model's outputs for all nodes, given the labels that it may see: [N, classes]."""
        observed = self._checked(observed)
        if isinstance(self.model, Ensemble):
            outputs = [member.outputs(observed) for member in self.members]
            return self.model.combine(outputs, multilabel=self.task.is_multilabel)
        graph = graph_for(self.recipe, self.model, self.task, self.device)
        options = inference_options(self.recipe, self.device)
        with self._nodes_named():
            return predict_logits(
                self.model,
                graph,
                observed,
                seed=self.seed,
                device=self.device,
                shared=self.shared,
                **options,
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

    @checked
    def smoothed_outputs(self, logits: Tensor, observed: Tensor) -> Tensor:
        """The outputs from logits that were computed before."""
        refuse_non_finite(logits, "logits")
        if not self.smooths:
            return logits
        given = probabilities(logits, multilabel=False)
        options = self.recipe.smooth.model_dump()
        outputs = correct_and_smooth(self.task.graph, given, observed, **options)
        with self._nodes_named():
            refuse_non_finite(outputs, "smoothed probabilities")
        return outputs

    @checked
    def probabilities_of(self, outputs: Tensor) -> Tensor:
        """Calibrated probabilities [N, classes] from outputs."""
        multilabel, temperature = self.task.is_multilabel, self.temperature
        if outputs.ndim != 2 or outputs.shape[1] != self.task.num_classes:
            raise TaskError(
                f"outputs have shape {tuple(outputs.shape)}; they must have {self.task.num_classes}"
                " columns, one per class."
            )
        refuse_non_finite(outputs, "outputs")
        if self.smooths:
            return probabilities(as_logits(outputs) / temperature, multilabel=multilabel)
        return self.model.to_probabilities(outputs, multilabel=multilabel, temperature=temperature)

    def answers(self, outputs: Tensor, observed: Tensor) -> Tensor:
        """Calibrated probabilities [N, classes] from outputs; observed labels are kept.

        Rows of large outputs are computed one slice after the other.
        """

        def answered(outputs: Tensor, observed: Tensor) -> Tensor:
            return keep_observed(self.probabilities_of(outputs), observed)

        limit = memory_limit(self.recipe.inference.memory)
        return map_rows(answered, outputs, observed, memory=limit)

    @property
    def temperature(self) -> float:
        """The number that logits are divided by before they become probabilities."""
        return checked_temperature(self.metrics.get("calibration", {}).get("temperature", 1.0))

    @checked
    def calibrate(self, outputs: Tensor) -> dict[str, Any]:
        """The temperature fitted on validation, from outputs with train labels as inputs, and the
        calibration error with and without it."""
        if not self.model.learns:
            why = "label propagation gives shares of labels, not logits"
            return measured(as_logits(self.probabilities_of(outputs)), self.task, 1.0, why)
        if self.is_refitted:
            why = "the ensemble was refitted on the validation labels"
            return measured(as_logits(self.probabilities_of(outputs)), self.task, 1.0, why)
        return calibrate(as_logits(outputs) if self.smooths else outputs, self.task)

    @checked
    def incremental(
        self,
        observed: Tensor | None = None,
        *,
        around: Tensor | None = None,
        hold_projections: bool | None = False,
    ) -> ChangeableLogits:
        """An engine that computes outputs after a change without computing everything again.

        observed: the labels that are inputs; None: `observed_labels()`. around: the only nodes that
        will be asked for. hold_projections: as for `IncrementalLogits`. A model that cannot run one
        layer at a time, and smoothed outputs, are computed as a whole after each change.
        """
        observed = self.observed_labels() if observed is None else self._checked(observed)
        if around is not None:
            around = self.task.graph.checked_nodes(around.reshape(-1))
        if isinstance(self.model, Ensemble) and not self.smooths:
            engines = [
                member.incremental(observed, around=around, hold_projections=hold_projections)
                for member in self.members
            ]
            return EnsembleLogits(self.model, engines, multilabel=self.task.is_multilabel)
        if not self.model.by_layer or self.smooths:
            return self._recomputed(observed, False, self.recipe, self)
        return IncrementalLogits(
            self.model,
            graph_for(self.recipe, self.model, self.task, self.device),
            observed,
            around=around,
            hold_projections=hold_projections,
            device=self.device,
            precision=inference_precision(self.recipe.train.precision, self.device),
        )

    @checked
    def live(
        self, observed: Tensor | None = None, *, hold_projections: bool | None = None
    ) -> ChangeableLogits:
        """An engine that follows labels, features, nodes and edges as a cold prediction would.

        Edges and features of a change are those of the task's prepared graph: if the recipe
        symmetrizes, adds self-loops or scales rows, a change contains reverse edges, the self-loops
        of new nodes, or scaled rows. Structural columns are not part of the features of a change;
        they are computed again when nodes or edges change, which `incremental` does not do.
        hold_projections: store projections of attention layers; None: if memory allows it. Logits
        are exact, also if the recipe predicts in parts.
        """
        observed = self.observed_labels() if observed is None else self._checked(observed)
        return self._live(observed, self.recipe.task.structure, hold_projections)

    def _live(
        self, observed: Tensor, structure: bool, hold_projections: bool | None
    ) -> ChangeableLogits:
        """`live`; structure: whether the last features of the task are structural columns."""
        if isinstance(self.model, Ensemble) and not self.smooths:
            engines = []
            for member in self.members:
                if _differs_in_structure_alone(self.recipe, member.recipe):
                    both = structure or member.recipe.task.structure
                    engines.append(member._live(observed, both, hold_projections))
                else:
                    engines.append(self._recomputed(observed, structure, member.recipe, member))
            return EnsembleLogits(self.model, engines, multilabel=self.task.is_multilabel)
        if not self.model.by_layer or self.smooths:
            return self._recomputed(observed, structure, self.recipe, self)
        return IncrementalLogits(
            self.model,
            graph_for(self.recipe, self.model, self.task, self.device),
            observed,
            structure=structure,
            hold_projections=hold_projections,
            device=self.device,
            precision=inference_precision(self.recipe.train.precision, self.device),
        )

    def _recomputed(
        self, observed: Tensor, structure: bool, recipe: Recipe, answering: TrainedModel
    ) -> FullRecomputation:
        """Compute the outputs of `answering`, this model or a member, on the whole graph.

        recipe: prepares the graph of this task further.
        """

        def outputs(graph: Graph, observed: Tensor) -> Tensor:
            task = _on_graph(self.task, with_structure(graph) if structure else graph)
            task = member_task(self.recipe, recipe, task)
            return replace(answering, task=task).outputs(observed)

        graph = without_structure(self.task.graph) if structure else self.task.graph
        return FullRecomputation(outputs, graph, observed, self.task.num_classes)

    def smoothed(self) -> Self:
        """This run with Correct & Smooth after its model: same weights, calibrated again."""
        observed = self.observed_labels(reveal="train")
        return self._smoothed(self.logits(observed), observed)[0]

    def _smoothed(self, logits: Tensor, observed: Tensor) -> tuple[Self, Tensor]:
        """The smoothed run and its outputs, from the logits with train labels as inputs."""
        recipe = self.recipe.with_settings(["smooth.form=correct-and-smooth"])
        refuse_smoothing(recipe, self.task, self.model)
        smooth = replace(self, recipe=recipe)
        outputs = smooth.smoothed_outputs(logits, observed)
        metrics = {**self.metrics, "calibration": smooth.calibrate(outputs)}
        return replace(smooth, metrics=metrics), outputs

    def smoothed_if_better(self) -> Self:
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
        elif self.is_refitted:
            note = "it was refitted on the validation labels, so they cannot be used to compare"
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


def _differs_in_structure_alone(recipe: Recipe, member: Recipe) -> bool:
    """Whether a member runs on the graph of the ensemble's recipe, apart from structure."""
    return all(
        name == "structure" or not on or preparation(recipe)[name]
        for name, on in preparation(member).items()
    )


def _on_graph(task: Task, graph: Graph) -> Task:
    """The task on a changed graph; new nodes come last and have no labels and no names."""
    count = graph.num_nodes - task.graph.num_nodes
    if not count:
        return task.with_graph(graph)
    more = task.labels.new_full((count, *task.labels.shape[1:]), UNLABELED)
    labels = torch.cat((task.labels, more))
    return replace(task, graph=graph, labels=labels, node_names=None, groups=None, positions=None)
