"""A recipe's model trained on a task: what it is about to take, how it is cut, and for how long."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from unimp.config.recipe import Recipe
from unimp.errors import NonFiniteError
from unimp.model.node_model import NodeModel
from unimp.runs.estimate import estimate
from unimp.runs.folder import unfinished
from unimp.runs.preparation import graph_for, groups_of
from unimp.runs.scoring import logits_of, score_split
from unimp.tasks.labels import mask_of, reveal_only
from unimp.tasks.task import Task
from unimp.tracking.progress import Progress
from unimp.training.batching import Masks, make_batches
from unimp.training.checkpoint import refuse_other_shape
from unimp.training.loop import Epoch, Fit, Keep, Schedule, TrainingState, fit

SCORINGS_AFTER = 5
"""How often all nodes may be predicted after training: both protocols, the file, the report."""


def with_estimate(
    recipe: Recipe, model: NodeModel, task: Task, device: str, shown: Progress, *, own_model: bool
) -> Recipe:
    """Say what the run is about to take, and put the regime that follows into the recipe."""
    if own_model:  # of whose layers nothing is known
        return recipe.with_regime("full") if recipe.batch.regime == "auto" else recipe
    said = estimate(recipe, model, task, device, timed=shown.is_visible)
    shown.note(said.in_words())
    return recipe.with_regime(said.regime)


def train(
    model: NodeModel,
    recipe: Recipe,
    task: Task,
    *,
    seed: int,
    device: str,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
    resume: TrainingState | None = None,
    keep: Keep = lambda state, ended: None,
    spent: float = 0.0,
) -> Fit:
    """Train `model` on the task's train labels by masked label prediction.

    Of a time limit, `spent` seconds are gone already.
    """
    graph = graph_for(recipe, model, task, device)
    labels = task.labels
    known = mask_of(task.split.train, len(labels))
    masks = Masks(
        known,
        recipe.mask.label_rate if model.learns_from_labels else 0.0,
        redraw=recipe.mask.redraw,
        seed=seed,
        groups=groups_of(recipe, task, model.learns_from_labels),
    )
    cut = recipe.batch.model_dump()
    cut["regime"] = "full" if cut["regime"] == "auto" else cut["regime"]
    # Layer by layer, what is cut away changes nothing; a module run as a whole would see less.
    cut["prune"] = cut["prune"] and model.by_layer
    batches = make_batches(graph, labels, masks, num_layers=model.num_layers, device=device, **cut)
    observed = reveal_only(task.split.train, task.labels)

    def evaluate() -> dict[str, float]:
        logits = logits_of(model, recipe, graph, observed, seed=seed, device=device)
        if not bool(logits.isfinite().all()):  # weights that are finite may still be too large
            raise NonFiniteError("a logit became non-finite")
        return score_split(logits, task, "train")

    options = recipe.train
    schedule = Schedule(
        epochs=options.epochs,
        eval_from=options.eval_from,
        eval_every=options.eval_every,
        patience=options.patience,
        time_limit=options.time_limit,
        spent_before=spent,
        scorings_after=SCORINGS_AFTER,
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
        resume=resume,
        keep=keep,
    )


def train_in_folder(
    model: NodeModel,
    recipe: Recipe,
    task: Task,
    folder: Path | None,
    made_with: Mapping[str, Any],
    started: float,
    say: Callable[[str], None],
    on_epoch: Callable[[Epoch], None],
) -> tuple[Fit, float]:
    """Train, or go on from the folder's checkpoint, and keep one; and the seconds spent before.

    made_with: what a checkpoint depends on (unfinished.made_with). A time limit counts from
    `started`, by time.perf_counter, and what was spent before.
    """
    resume = None if folder is None else unfinished.found_checkpoint(folder, made_with)
    history = unfinished.History(folder, resume.history if resume else ())

    def keep_epoch(epoch: Epoch) -> None:
        history.add(epoch)
        on_epoch(epoch)

    if resume is not None and folder is not None:
        refuse_other_shape(resume, model, folder / unfinished.CHECKPOINT)
        say(f"going on in epoch {resume.position.epoch}, from {folder}")
    with unfinished.checkpoints(folder, made_with, recipe, say) as keep:
        result = train(
            model,
            recipe,
            task,
            seed=made_with["seed"],
            device=str(next(model.parameters()).device),
            on_epoch=keep_epoch,
            resume=resume,
            keep=keep,
            spent=time.perf_counter() - started,
        )
    return result, resume.position.spent if resume else 0.0


def typical_epoch(result: Fit) -> float:
    """The median time of an epoch, in seconds, of those without a scoring where there are such."""
    plain = [epoch.seconds for epoch in result.history if epoch.scores is None]
    taken = plain or [epoch.seconds for epoch in result.history]
    return median(taken) if taken else 0.0
