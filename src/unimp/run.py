"""One seeded experiment on one page: recipe → task → batches → model → training → scores → folder.

Read this file first. Each step is one call to the stage that does it:

    task     what is asked          tasks.catalog.load_task
    model    what answers           recipe.build_model
    graph    nodes in memory order  graph.reorder.reorder
    regime   what fits in memory    estimate.estimate
    batches  how the graph is cut   training.batching.make_batches
    fit      masked label training  fitting.train, training.loop.fit
    predict  logits, given labels   inference.logits.predict_logits
    smooth   if the recipe says so  inference.correct_and_smooth
    trust    one temperature        inference.calibrate
    folder   what is kept           run_folder.write_run
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unimp import run_folder, unfinished
from unimp.errors import RecipeError, RunError
from unimp.fitting import train, typical_epoch, with_estimate
from unimp.graph.graph import Graph
from unimp.graph.tables import UnknownIds
from unimp.inference.calibrate import as_logits, calibrate, measured
from unimp.inference.changes import Whole
from unimp.inference.correct_and_smooth import correct_and_smooth
from unimp.inference.live import Live
from unimp.inference.logits import probabilities
from unimp.model.node_model import NodeModel, count_parameters
from unimp.model.propagation import propagate_labels
from unimp.predictions import keep_observed, predictions_table, suggestions
from unimp.preparation import (
    choose_device,
    graph_for,
    groups_of,
    preparation,
    refuse_nothing_hidden,
    refuse_smoothing,
    seeded,
    tables_of,
    task_of,
)
from unimp.presets import recipe_with_preset
from unimp.progress import Shown, shown_progress
from unimp.recipe import Recipe, Settings
from unimp.scoring import logits_of, score_split
from unimp.sinks import Sink, opened_sinks, tell_epoch, tell_scores
from unimp.tasks.catalog import prepare
from unimp.tasks.label_file import Given, later_labels
from unimp.tasks.labels import PROTOCOLS, mask_labels, mask_of, reveal_only
from unimp.tasks.tables import extend_task
from unimp.tasks.task import Sizes, Task
from unimp.training.checkpoint import load_weights
from unimp.training.loop import Epoch, Fit

if TYPE_CHECKING:
    import pyarrow as pa


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
        reordered = graph_for(self.recipe, self.model, self.task, self.device)
        return logits_of(
            self.model, self.recipe, reordered, observed, seed=self.seed, device=self.device
        )

    def scores(self, observed: Tensor) -> Tensor:
        """What nodes are scored by: logits, or probabilities if the recipe smooths them."""
        options, logits = self.recipe.smooth.model_dump(), self.logits(observed)
        if options["form"] == "none":
            return logits
        chances = probabilities(logits, multilabel=False)
        return correct_and_smooth(self.task.graph, chances, observed, **options)

    def hold(
        self, labels: Mapping[int, int] | Tensor | None = None, *, around: Tensor | None = None
    ) -> Live | Whole:
        """What answers for scores after a change, without computing everything again.

        labels: as of `predict`. around: the only nodes that will be asked about. A model that
        cannot be run one layer at a time, label propagation and smoothed scores are computed anew.
        """
        observed, smoothed = self.observed_with(labels), self.recipe.smooth.form != "none"
        if self.model is None or not self.model.by_layer or smoothed:

            def scores(graph: Graph, observed: Tensor) -> Tensor:
                return replace(self, task=self.task.with_graph(graph)).scores(observed)

            return Whole(scores, self.task.graph, observed)
        return Live(
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

    def predict(self, labels: Given | None = None) -> Tensor:
        """Probabilities of each class for all nodes, [N, classes], without retraining.

        Train labels are inputs, and so are `labels`: those that arrived since, as {node: class}
        by names or numbers, as a tensor like the task's own (−1 where nothing new is known), or
        as the path of a label file. What was an input is kept: its probability is 1. Where it was
        not, probabilities are calibrated.
        """
        observed = self.observed_with(labels)
        return keep_observed(self.chances(self.scores(observed)), observed)

    def predictions(
        self, labels: Given | None = None, *, probabilities: bool | None = None
    ) -> pa.Table:
        """What `predict` says as an Arrow table under the task's names, one row a node.

        It is what `unimp predict` writes; its columns are told by `predictions_table`.
        """
        chances, observed = self.predict(labels), self.observed_with(labels)
        return predictions_table(self.task, chances, observed, every_class=probabilities)

    def suggest(self, number: int = 50, labels: Given | None = None) -> pa.Table:
        """The unknown nodes whose label would teach most, as an Arrow table, best first.

        `labels` arrived since: they are inputs, and not asked for again.
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

    def observed_with(self, labels: Given | None) -> Tensor:
        """The train labels, with labels that arrived since laid over them."""
        observed = reveal_only(self.task.split.train, self.task.labels)
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
            lines.append(f"  {protocol} labels revealed: {text}")
        return "\n".join(lines + ([f"  in {self.folder}"] if self.folder else []))


def run(
    recipe: Recipe | str | Task,
    *,
    seed: int = 0,
    out: Path | str | None = None,
    settings: Settings = (),
    preset: str | None = None,
    model: Callable[[Sizes], NodeModel] | None = None,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
    progress: bool | None = None,
    log: Sequence[str] = (),
) -> Run:
    """Train and score one seed of a recipe; with `out`, keep it in that folder.

    The recipe is one, or its name or path, or a task of your own, for which the default recipe is
    taken and which is kept in the folder too. `settings` are laid over the recipe:
    {"train.epochs": 50}, or texts "train.epochs=50". A `preset` (quick, good, best) fills in what
    the recipe and the settings leave open. `model` makes a model of your own for the task's
    sizes, such as a `MaskedLabels`, in place of the recipe's; `load_run` needs it again.

    A run that was interrupted goes on from the checkpoint in its folder; one that is finished there
    is loaded. `progress`: a live line on a terminal or in a notebook (None), plain lines elsewhere
    too (True), or nothing (False). `log`: sinks beside the folder (tensorboard, wandb, mlflow).
    """
    if isinstance(model, torch.nn.Module):
        raise RecipeError(
            "model is a module; give what makes it, such as lambda sizes: "
            "MaskedLabels(module, sizes, width=…)"
        )
    own_task = recipe if isinstance(recipe, Task) else None
    if isinstance(recipe, Task):
        recipe = Recipe(name=recipe.name)
    recipe = recipe_with_preset(recipe, settings, preset).with_absolute_paths()
    if seed < 0:
        raise RecipeError(f"seed is {seed}; seeds count from 0")
    if recipe.task.name == "tables" and own_task is None:
        own_task = tables_of(recipe, seed)
    folder = None if out is None else Path(out)
    if own_task is not None and folder is not None:
        recipe = recipe.with_task(folder / "task.npz")
    if folder is None or not unfinished.finished_as(folder, recipe, seed):
        with (
            unfinished.opened(folder),
            seeded(seed, choose_device(recipe.train.device)) as device,
            shown_progress(recipe, seed, progress) as shown,
            opened_sinks(log, recipe, seed, folder) as sinks,
        ):
            # Another process may have finished it before this one held the folder.
            if folder is None or not run_folder.is_finished(folder):
                return _made(recipe, seed, own_task, model, folder, device, shown, sinks, on_epoch)
    found = load_run(folder, device=recipe.train.device, model=model)
    if own_task is not None:
        given = prepare(own_task, **preparation(recipe))
        if given.data_hash() != found.task.data_hash():
            raise RunError(f"{folder} holds a finished run of other data; choose another folder")
    return found


def _made(
    recipe: Recipe,
    seed: int,
    own_task: Task | None,
    model: Callable[[Sizes], NodeModel] | None,
    folder: Path | None,
    device: str,
    shown: Shown,
    sinks: Sequence[Sink],
    on_epoch: Callable[[Epoch], None],
) -> Run:
    """A run that is trained, or trained on, scored and written."""
    started, resume = time.perf_counter(), None
    recipe = unfinished.as_begun(folder, recipe)
    task = task_of(recipe, seed) if own_task is None else prepare(own_task, **preparation(recipe))
    learns = model is not None or recipe.label_rate > 0
    groups_of(recipe, task, learns)  # refused, if it is, before anything is written
    refuse_smoothing(recipe, task, own_model=model is not None)
    if model is None:
        refuse_nothing_hidden(recipe, task.split.train.numel())
    trained, result = None, Fit(stopped="nothing to train")
    if recipe.model.name != "label-propagation" or model is not None:
        trained = (model or recipe.build_model)(task.sizes).to(device)
        if not isinstance(trained, NodeModel):
            raise RecipeError(
                f"model made a {type(trained).__name__}, which does not say what it may look "
                "at; wrap it: MaskedLabels(module, sizes, width=…)"
            )
        recipe = with_estimate(recipe, trained, task, device, shown, own_model=model is not None)
    own_model = type(trained).__name__ if model is not None else None
    data_hash = "" if folder is None else task.data_hash()
    made_with = unfinished.made_with(
        recipe, seed, data=data_hash, device=device.partition(":")[0], model=own_model
    )
    if folder is not None:
        resume = unfinished.found_checkpoint(folder, made_with)
        if own_task is not None and resume is None:
            run_folder.write_task(folder, own_task)
    if trained is not None:
        history = unfinished.History(folder, resume.history if resume else ())

        def keep_epoch(epoch: Epoch) -> None:
            history.add(epoch)
            shown.on_epoch(epoch)
            tell_epoch(sinks, epoch)
            on_epoch(epoch)

        if resume is not None:
            shown.note(f"going on in epoch {resume.position.epoch}, from {folder}")
        with unfinished.checkpoints(folder, made_with, recipe, shown.note) as keep:
            limit = recipe.train.time_limit and max(
                recipe.train.time_limit - (time.perf_counter() - started), 1e-9
            )
            result = train(
                trained,
                recipe.with_settings([f"train.time_limit={limit}"]),
                task,
                seed=seed,
                device=device,
                on_epoch=keep_epoch,
                resume=resume,
                keep=keep,
            )
    scored = Run(recipe, seed, task, trained, {}, device, folder)
    observed = scored.observed_with(None)
    answers = scored.scores(observed)
    earlier = resume.position.spent if resume else 0.0
    metrics = {
        "metric": task.metric,
        "scores": {"train": score_split(answers, task, "train")}
        | {p: scored.evaluate(p) for p in scored.protocols if p != "train"},
        "calibration": scored.calibrate(answers),
        "best_epoch": result.best.epoch if result.best else None,
        "epochs": len(result.history),
        "stopped": result.stopped,
        "failed": result.failed,
        "parameters": count_parameters(trained) if trained else 0,
        "seconds": round(earlier + time.perf_counter() - started, 2),
        "seconds_an_epoch": round(typical_epoch(result), 5),
    }
    finished = Run(recipe, seed, task, trained, metrics, device, folder)
    if folder is not None:
        run_folder.write_run(
            folder,
            recipe=recipe,
            task=task,
            model=trained,
            own_model=own_model,
            metrics=metrics,
            history=result.history,
            probabilities=keep_observed(finished.chances(answers), observed),
            observed=observed,
            seed=seed,
            device=device,
            command=sys.argv,
            data_hash=data_hash,
        )
        unfinished.forget(folder)
    tell_scores(sinks, metrics)
    return finished


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
