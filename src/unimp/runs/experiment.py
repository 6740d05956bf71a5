"""One seeded experiment: load the task, build the model, fit it, score it, write it.

Read this file first. `unimp train` calls `run`, which calls `run_seed` once per seed. The steps:

    recipe    apply settings and preset, check    runs.recipes.resolve_recipe
    folder    start, resume or load the run       runs.folder.resume.find_run
    task      graph, labels, split and metric     runs.context.Experiment.task
    fit       a model, or members of an ensemble  runs.fitting.fit_recipe → training.loop.fit
    score     under each label protocol           runs.fitting.scored_run
    refit     an ensemble of your own data, on    runs.refit.refitted_run
              train and validation labels
    write     every file, the manifest last       runs.folder.files.write_run
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack, overload

from unimp.config.arguments import FilePath, check_arguments
from unimp.config.recipe import Recipe, Settings
from unimp.config.seeds import check_seeds
from unimp.errors import RecipeError, TrainingError
from unimp.model.node_model import NodeModel
from unimp.runs.context import Experiment, RunOptions
from unimp.runs.fitting import FIRST_FAILED, fit_recipe, help_to_score, scored_run
from unimp.runs.folder.resume import Found, held_folder
from unimp.runs.folder.writing import write_run, write_task
from unimp.runs.loading import load_finished
from unimp.runs.preparation import ModelFactory, device_of, refits, seeded, whole_only
from unimp.runs.recipes import resolve_recipe
from unimp.runs.refit import refitted_run
from unimp.runs.reporting import write_report
from unimp.runs.run import Run
from unimp.runs.seeds import Runs
from unimp.tasks.task import Task
from unimp.training.loop import Epoch, Fit
from unimp.training.ranks import Ranks, join_ranks, use_own_gpu


@overload
def run(
    recipe: Recipe | str | Task, *, seed: int = 0, seeds: None = None, **options: Unpack[RunOptions]
) -> Run: ...
@overload
def run(
    recipe: Recipe | str | Task, *, seeds: Iterable[int], **options: Unpack[RunOptions]
) -> Runs: ...
def run(
    recipe: Recipe | str | Task,
    *,
    seed: int = 0,
    seeds: Iterable[int] | None = None,
    out: FilePath | None = None,
    settings: Settings = (),
    preset: str | None = None,
    model: ModelFactory | None = None,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
    on_run: Callable[[Run], object] = lambda run: None,
    progress: bool | None = None,
    log: Sequence[str] = (),
    report: bool = True,
) -> Run | Runs:
    """Train and score a recipe, and store the run with its report in the folder `out`.

    recipe: a recipe, its name or path, the name of a task, or a `Task`. seeds: return `Runs`, one
    per seed, stored in out/seed-0, out/seed-1, … settings: {"train.epochs": 50}, or texts
    "train.epochs=50". preset: quick, good or best; it fills in options that are not set. model:
    makes your own model from the task's sizes; `load_run` needs it again. progress: None shows it
    on a terminal or in a notebook, True also elsewhere, False never. log: also track metrics with
    tensorboard, wandb or mlflow. An interrupted run resumes from the checkpoint in its folder; a
    finished one is loaded. If training fails, for example because the loss becomes NaN, the last
    good state is stored, the other seeds are trained, and TrainingError is raised at the end.
    """
    check_arguments(run, locals())
    resolved = resolve_recipe(recipe, settings, preset, own_model=model is not None)
    use_own_gpu(resolved.train.device)
    numbers = check_seeds([seed] if seeds is None else seeds)
    device = device_of(resolved, model)
    ranks = ranks_for(resolved, device)
    first = Experiment(
        resolved,
        numbers[0],
        device,
        None if out is None else Path(out),
        own_task=recipe if isinstance(recipe, Task) else None,
        own_model=model,
        on_epoch=on_epoch,
        show=progress,
        log=log,
        report=report,
        ranks=ranks,
    )
    experiments = [first] if seeds is None else [first.of_seed(n) for n in numbers]
    for experiment in experiments if ranks.is_first else ():
        experiment.found()  # refuse folders with other runs before anything is trained
    done, failures = [], []
    for experiment in experiments:  # a seed that fails does not stop the others
        try:
            done.append(run_seed(experiment))
        except TrainingError as error:
            failures.append(f"seed {experiment.seed}: {error}")
        else:
            on_run(done[-1])
    if failures:
        raise TrainingError("\n".join(failures))
    return done[0] if seeds is None else Runs(tuple(done), first.output).with_summary()


def run_seed(experiment: Experiment) -> Run:
    """Train one seed, or resume it, or load it if it is finished; raise if training failed."""
    experiment = replace(experiment, started=time.perf_counter()).with_tables()
    seed, folder, device = experiment.seed, experiment.output, experiment.device
    ranks = experiment.ranks
    if ranks.agreed(ranks.is_first and experiment.found().state == "finished"):
        return load_finished(experiment)
    with held_folder(folder), seeded(seed, device), experiment.watched() as experiment:
        found = agreed_run(experiment)
        if found.state == "finished":  # by another process that held the folder before
            return load_finished(experiment)
        task = experiment.task()
        data_hash = experiment.data_hash(task)
        if folder is not None and experiment.own_task is not None and found.state == "new":
            write_task(folder, experiment.own_task)
        experiment = replace(experiment, recipe=found.recipe)
        experiment, model, fit = fit_recipe(experiment, task, data_hash, run_seed)
        if ranks.is_first:
            run = finished_run(experiment, task, model, fit, data_hash)
        else:  # the first process scores and writes
            run = help_to_score(experiment, model, task)
            run = replace(run, metrics=first_metrics(ranks))
    return run.succeeded()


def finished_run(
    experiment: Experiment, task: Task, model: NodeModel, fit: Fit, data_hash: str
) -> Run:
    """Score a trained model, write its run, and tell the other processes its metrics."""
    folder = experiment.output
    try:
        run, probabilities = scored_run(experiment, model, task, fit)
        if refits(experiment.recipe, task):
            run = refitted_run(experiment, run, run_seed)
        if folder is not None:
            write_run(run, fit, probabilities, data_hash, experiment.own_model is not None)
            if experiment.report:
                write_report(folder, run)
        experiment.after_scores(run.metrics)
    except TrainingError:  # the others continue with the next seed; after other errors, they end
        experiment.ranks.agreed(None)
        raise
    experiment.ranks.agreed(run.metrics)
    return run


def first_metrics(ranks: Ranks) -> Mapping[str, Any]:
    """The metrics that the first process computed."""
    metrics: Mapping[str, Any] | None = ranks.agreed(None)
    if metrics is None:
        raise TrainingError(FIRST_FAILED)
    return metrics


def ranks_for(recipe: Recipe, device: str) -> Ranks:
    """The processes that train the recipe together; refused if it cannot be divided."""
    ranks = join_ranks(device, recipe.train.rank_timeout)
    if ranks.size > 1 and (why := whole_only(recipe, ranks.size)):
        raise RecipeError(f"several processes cannot train this recipe: {why}")
    return ranks


def agreed_run(experiment: Experiment) -> Found:
    """What the folder contains of this run, as the first process reads it."""
    ranks, found = experiment.ranks, None
    if ranks.size == 1:
        return experiment.found()
    if ranks.is_first:
        found = experiment.found()
    state, recipe = ranks.agreed(found and (found.state, found.recipe.model_dump()))
    return found or Found(state, Recipe.model_validate(recipe))
