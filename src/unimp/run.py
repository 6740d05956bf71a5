"""One seeded experiment on one page: recipe → task → batches → model → training → scores → folder.

Read this file first. Each step is one call to the stage that does it:

    task     what is asked          tasks.catalog.load_task
    model    what answers           recipe.build_model
    graph    nodes in memory order  graph.reorder.reorder
    batches  how the graph is cut   training.batching.make_batches
    fit      masked label training  training.loop.fit
    predict  logits, given labels   inference.logits.predict_logits
    smooth   if the recipe says so  inference.correct_and_smooth
    folder   what is kept           run_folder.write_run
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from unimp import run_folder
from unimp.errors import RecipeError, RunError
from unimp.graph.graph import Graph
from unimp.graph.reorder import Reordered
from unimp.inference.changes import Whole
from unimp.inference.correct_and_smooth import correct_and_smooth
from unimp.inference.live import Live
from unimp.inference.logits import predict_logits, probabilities
from unimp.model.node_model import NodeModel, count_parameters
from unimp.model.propagation import propagate_labels
from unimp.preparation import (
    choose_device,
    graph_for,
    groups_of,
    preparation,
    refuse_smoothing,
    seeded,
    task_of,
)
from unimp.recipe import Recipe, load_recipe
from unimp.tasks.catalog import prepare
from unimp.tasks.labels import PROTOCOLS, is_known, mask_labels, mask_of, reveal_only
from unimp.tasks.metrics import score
from unimp.tasks.npz import save_npz
from unimp.tasks.task import Sizes, Task
from unimp.training.batching import Masks, make_batches
from unimp.training.checkpoint import load_weights
from unimp.training.loop import Epoch, Fit, Schedule, fit


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

    def predict(self, labels: Mapping[int, int] | Tensor | None = None) -> Tensor:
        """Probabilities of each class for all nodes, [N, classes], without retraining.

        Train labels are inputs, and so are `labels`: those that arrived since, as a tensor like
        the task's own (−1 where nothing new is known) or as {node: class}.
        """
        return self.chances(self.scores(self.observed_with(labels)))

    def chances(self, scores: Tensor) -> Tensor:
        """Probabilities of each class, from what nodes are scored by: [n, classes]."""
        if self.recipe.smooth.form != "none":
            return scores
        if self.model is None and not self.task.is_multilabel:
            # Propagated labels are shares already; a node that none reaches is even.
            even = torch.full_like(scores, 1.0 / self.task.num_classes)
            total = scores.sum(1, keepdim=True)
            return torch.where(total > 0, scores / total.clamp(min=1e-30), even)
        return probabilities(scores, multilabel=self.task.is_multilabel)

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

    def observed_with(self, labels: Mapping[int, int] | Tensor | None) -> Tensor:
        """The train labels, with labels that arrived since laid over them."""
        observed = reveal_only(self.task.split.train, self.task.labels)
        if labels is None:
            return observed
        top = 1 if self.task.is_multilabel else self.task.num_classes - 1
        if isinstance(labels, Tensor):
            if labels.shape != observed.shape or labels.dtype.is_floating_point:
                raise RunError(
                    f"labels are {labels.dtype} of shape {tuple(labels.shape)}; the task's are "
                    f"whole numbers of shape {tuple(observed.shape)}, -1 where nothing is known"
                )
            if bool((labels > top).any()):
                place = torch.nonzero(labels > top)[0].tolist()
                raise RunError(
                    f"the label of node {place[0]} is {int(labels[tuple(place)])}; the largest "
                    f"is {top}"
                )
            return torch.where(labels >= 0, labels.to(observed.dtype), observed)
        if self.task.is_multilabel:
            raise RunError("this task has several labels a node: give them as a tensor of rows")
        for node, label in labels.items():
            if not 0 <= node < len(observed) or not 0 <= label <= top:
                raise RunError(
                    f"label {label} of node {node}: nodes run from 0 to {len(observed) - 1}, "
                    f"classes from 0 to {top}"
                )
            observed[node] = label
        return observed

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
    settings: Sequence[str] = (),
    model: Callable[[Sizes], NodeModel] | None = None,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
) -> Run:
    """Train and score one seed of a recipe; with `out`, keep it in that folder.

    The recipe is one, or its name or path, or a task of your own, for which the default recipe is
    taken and which is kept in the folder too. `model` makes a model of your own for the task's
    sizes, such as a `MaskedLabels`, in place of the recipe's; `load_run` needs it again.
    """
    if isinstance(model, torch.nn.Module):
        raise RecipeError(
            "model is a module; give what makes it, such as lambda sizes: "
            "MaskedLabels(module, sizes, width=…)"
        )
    own_task = recipe if isinstance(recipe, Task) else None
    if isinstance(recipe, Task):
        recipe = Recipe(name=recipe.name)
    elif isinstance(recipe, str):
        recipe = load_recipe(recipe)
    recipe = recipe.with_settings(settings).with_absolute_paths()
    if seed < 0:
        raise RecipeError(f"seed is {seed}; seeds count from 0")
    if out is not None:
        run_folder.refuse_finished(Path(out))
    started = time.perf_counter()
    task = task_of(recipe, seed) if own_task is None else prepare(own_task, **preparation(recipe))
    device = choose_device(recipe.train.device)
    learns = model is not None or recipe.label_rate > 0
    groups_of(recipe, task, learns)  # refused, if it is, before anything is written
    refuse_smoothing(recipe, task, own_model=model is not None)
    folder = None if out is None else run_folder.claim(Path(out))
    if own_task is not None and folder is not None:
        save_npz(own_task, folder / "task.npz")
        recipe = recipe.with_task(folder / "task.npz")
    with run_folder.not_left_empty(folder), seeded(seed, device):
        if recipe.model.name == "label-propagation" and model is None:
            trained, result = None, Fit(stopped="nothing to train")
        else:
            trained = (model or recipe.build_model)(task.sizes).to(device)
            if not isinstance(trained, NodeModel):
                raise RecipeError(
                    f"model made a {type(trained).__name__}, which does not say what it may look "
                    "at; wrap it: MaskedLabels(module, sizes, width=…)"
                )
            kept: list[Epoch] = []

            def keep(epoch: Epoch) -> None:
                kept.append(epoch)
                if folder is not None and epoch.scores:
                    run_folder.write_history(folder, kept)
                on_epoch(epoch)

            result = train(trained, recipe, task, seed=seed, device=device, on_epoch=keep)
    scored = Run(recipe, seed, task, trained, {}, device, folder)
    metrics = {
        "metric": task.metric,
        "scores": {p: scored.evaluate(p) for p in scored.protocols},
        "best_epoch": result.best.epoch if result.best else None,
        "epochs": len(result.history),
        "stopped": result.stopped,
        "failed": result.failed,
        "parameters": count_parameters(trained) if trained else 0,
        "seconds": round(time.perf_counter() - started, 2),
        "seconds_an_epoch": round(typical_epoch(result), 5),
    }
    finished = Run(recipe, seed, task, trained, metrics, device, folder)
    if folder is not None:
        run_folder.write_run(
            folder,
            recipe=recipe,
            task=task,
            model=trained,
            own_model=model is not None,
            metrics=metrics,
            history=result.history,
            probabilities=finished.predict(),
            observed=finished.observed_with(None),
            seed=seed,
            device=device,
            command=sys.argv,
        )
    return finished


def train(
    model: NodeModel,
    recipe: Recipe,
    task: Task,
    *,
    seed: int,
    device: str,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
) -> Fit:
    """Train `model` on the task's train labels by masked label prediction."""
    reordered = graph_for(recipe, model, task, device)
    labels = reordered.to_here(task.labels)
    known = mask_of(task.split.train, len(labels))
    masks = Masks(
        known,
        recipe.mask.label_rate if model.learns_from_labels else 0.0,
        redraw=recipe.mask.redraw,
        seed=seed,
        order=reordered.order,
        groups=groups_of(recipe, task, model.learns_from_labels),
    )
    cut = recipe.batch.model_dump()
    # Layer by layer, what is cut away changes nothing; a module run as a whole would see less.
    cut["prune"] = cut["prune"] and model.by_layer
    batches = make_batches(
        reordered.graph, labels, masks, num_layers=model.num_layers, device=device, **cut
    )
    observed = reveal_only(task.split.train, task.labels)

    def evaluate() -> dict[str, float]:
        logits = logits_of(model, recipe, reordered, observed, seed=seed, device=device)
        return score_split(logits, task, "train")

    options = recipe.train
    schedule = Schedule(
        epochs=options.epochs,
        eval_from=options.eval_from,
        eval_every=options.eval_every,
        patience=options.patience,
        time_limit=options.time_limit,
    )
    return fit(
        model,
        batches,
        labels,
        schedule,
        lr=options.lr,
        weight_decay=options.weight_decay,
        evaluate=evaluate,
        on_epoch=on_epoch,
        device=device,
        precision=options.precision,
        replay=options.replay and model.by_layer,  # what a module does in Python would stand still
    )


def logits_of(
    model: NodeModel,
    recipe: Recipe,
    reordered: Reordered,
    observed: Tensor,
    *,
    seed: int,
    device: str,
) -> Tensor:
    """Logits of all nodes; they and `observed` are as the task numbers its nodes."""
    logits = predict_logits(
        model,
        reordered.graph,
        reordered.to_here(observed),
        seed=seed,
        device=device,
        precision=recipe.train.precision,
        **recipe.inference.model_dump(),
    )
    return reordered.to_task(logits)


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


def score_split(logits: Tensor, task: Task, reveal: str) -> dict[str, float]:
    """Scores of the sets whose labels are not inputs under the protocol."""
    scored = {"train": ("val", "test"), "train+val": ("test",)}[reveal]
    known = is_known(task.labels)
    sets = {name: getattr(task.split, name) for name in scored}
    return {
        name: score(task.metric, logits[nodes], task.labels[nodes])
        for name, nodes in sets.items()
        if nodes.numel() and bool(known[nodes].any())
    }


def typical_epoch(result: Fit) -> float:
    """The median time of an epoch, in seconds, of those without a scoring where there are such."""
    plain = [epoch.seconds for epoch in result.history if epoch.scores is None]
    taken = plain or [epoch.seconds for epoch in result.history]
    return median(taken) if taken else 0.0
