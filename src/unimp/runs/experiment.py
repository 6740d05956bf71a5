"""One seeded experiment on one page: recipe → task → batches → model → training → scores → folder.

Read this file first. Each step is one call to the stage that does it:

    task     what is asked          tasks.catalog.load_task
    model    what answers           recipe.build_model
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
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from unimp.analysis.predictions import keep_observed
from unimp.config.presets import FOR_TABLES, recipe_with_preset
from unimp.config.recipe import Recipe, Settings
from unimp.data.catalog import prepare
from unimp.errors import RecipeError, RunError
from unimp.model.node_model import NodeModel, count_parameters
from unimp.runs.fitting import train_in_folder, typical_epoch, with_estimate
from unimp.runs.folder import files as run_folder
from unimp.runs.folder import unfinished
from unimp.runs.preparation import (
    choose_device,
    groups_of,
    preparation,
    refuse_nothing_hidden,
    refuse_smoothing,
    seeded,
    tables_of,
    task_of,
)
from unimp.runs.run import Run, load_run
from unimp.runs.scoring import score_split
from unimp.tasks.task import Sizes, Task
from unimp.tracking.progress import Shown, shown_progress
from unimp.tracking.sinks import Sinks, opened_sinks
from unimp.training.loop import Epoch, Fit


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
    started = time.perf_counter()
    own_task = recipe if isinstance(recipe, Task) else None
    if isinstance(recipe, Task):
        # Tables are trained alike, whether a recipe names them or they are at hand.
        preset = preset or (FOR_TABLES if recipe.tables is not None else None)
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
            opened_sinks(
                log,
                recipe,
                seed,
                folder,
                goes_on=folder is not None and unfinished.is_begun(folder),
                say=shown.note if shown.is_watched else warnings.warn,
            ) as sinks,
        ):
            # Another process may have finished it before this one held the folder.
            if folder is None or not run_folder.is_finished(folder):
                return _made(
                    recipe, seed, own_task, model, folder, device, shown, sinks, on_epoch, started
                )
    unfinished.clear(folder)
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
    sinks: Sinks,
    on_epoch: Callable[[Epoch], None],
    started: float,
) -> Run:
    """A run that is trained, or trained on, scored and written.

    Its time counts from `started`, when its task began to be read.
    """
    recipe = unfinished.as_begun(folder, recipe)
    task = task_of(recipe, seed) if own_task is None else prepare(own_task, **preparation(recipe))
    learns = model is not None or recipe.label_rate > 0
    groups_of(recipe, task, learns)  # refused, if it is, before anything is written
    refuse_smoothing(recipe, task, own_model=model is not None)
    if model is None:
        refuse_nothing_hidden(recipe, task.split.train.numel())

    trained = _model(recipe, model, task, device)
    own_model = type(trained).__name__ if model is not None else None
    if trained is not None:
        recipe = with_estimate(recipe, trained, task, device, shown, own_model=model is not None)
    data_hash = "" if folder is None else task.data_hash()
    if own_task is not None and folder is not None and not unfinished.is_begun(folder):
        run_folder.write_task(folder, own_task)

    def tell(epoch: Epoch) -> None:
        shown.on_epoch(epoch)
        sinks.tell_epoch(epoch)
        on_epoch(epoch)

    result, earlier = Fit(stopped="nothing to train"), 0.0
    if trained is not None:
        made_with = unfinished.made_with(
            recipe, seed, data=data_hash, device=device.partition(":")[0], model=own_model
        )
        result, earlier = train_in_folder(
            trained, recipe, task, folder, made_with, started, shown.note, tell
        )

    scored = Run(recipe, seed, task, trained, {}, device, folder)
    observed = scored.observed_with(None)
    answers = scored.scores(observed)
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
        "seconds_per_epoch": round(typical_epoch(result), 5),
    }
    finished = replace(scored, metrics=metrics)
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
    sinks.tell_scores(metrics)
    return finished


def _model(
    recipe: Recipe, model: Callable[[Sizes], NodeModel] | None, task: Task, device: str
) -> NodeModel | None:
    """The recipe's model, or one of your own; None: label propagation, which has no parameters."""
    if recipe.model.name == "label-propagation" and model is None:
        return None
    made = (model or recipe.build_model)(task.sizes).to(device)
    if not isinstance(made, NodeModel):
        raise RecipeError(
            f"model made a {type(made).__name__}, which does not say what it may look at; wrap it: "
            "MaskedLabels(module, sizes, width=…)"
        )
    return made
