"""Fitting a recipe's model to a task, from the start or from a checkpoint, and scoring it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from unimp.config.run_files import CHECKPOINT
from unimp.data.store.task import StoredTask
from unimp.ensemble.student import student_section
from unimp.errors import NonFiniteError, RecipeError, TrainingError
from unimp.graph.graph import Graph
from unimp.inference.ranges import ALONE, shared_work
from unimp.model.node_model import NodeModel, count_parameters
from unimp.model.propagated_labels import remembering
from unimp.model.solved_model import KnownLabels, SolvedModel
from unimp.ops.placement import fits_one_chunk
from unimp.runs.context import Experiment
from unimp.runs.epoch_scores import epoch_scorer
from unimp.runs.estimate import choose_regime, in_regime
from unimp.runs.folder.files import LOWER_RATE
from unimp.runs.folder.resume import HistoryFile, checkpoints, depends_on, load_state
from unimp.runs.members import fit_ensemble
from unimp.runs.preparation import (
    consistency_of,
    graph_for,
    groups_of,
    model_of,
    prunes,
    undivided,
)
from unimp.runs.run import Run
from unimp.runs.scoring import score_split
from unimp.runs.teacher import Teacher, teacher_of
from unimp.tasks.labels import mask_of, reveal_only
from unimp.tasks.task import Task
from unimp.training.batch import Batches
from unimp.training.batching import BatchChanges, make_batches
from unimp.training.changed_batches import FewerEdges
from unimp.training.checkpoint import load_checkpoint, refuse_other_shape
from unimp.training.loop import Epoch, Fit, Schedule, TrainingState, fit
from unimp.training.masks import Masks
from unimp.training.precision import explain_choice
from unimp.training.ranks import Ranks

FIRST_FAILED = "the first process could not score or write the run"
SCORINGS_AFTER = 5
"""How often all nodes may be predicted after training: both protocols, the file, the report."""


def fit_recipe(
    experiment: Experiment, task: Task, data_hash: str, train: Callable[[Experiment], Run]
) -> tuple[Experiment, NodeModel, Fit]:
    """Train the model of the recipe in the regime that fits, or the members of an ensemble.

    train: trains one member as an experiment of its own.
    """
    if experiment.recipe.ensemble.portfolio != "none":
        return experiment, *fit_ensemble(experiment, task, data_hash, train)
    model = model_of(experiment.recipe, task, experiment.own_model).to(experiment.device)
    experiment = choose_regime(experiment, model, task)
    regime = experiment.ranks.agreed(experiment.recipe.batch.regime)  # memory may differ
    if regime != experiment.recipe.batch.regime:
        experiment = in_regime(experiment, task, regime)
    teacher = teacher_of(experiment.recipe, model, task, experiment.device)
    fit = fit_model(experiment, model, task, data_hash, teacher)
    if teacher is not None:
        fit.teacher = teacher.summary
    return experiment, model, fit


def fit_model(
    experiment: Experiment,
    model: NodeModel,
    task: Task,
    data_hash: str,
    teacher: Teacher | None = None,
) -> Fit:
    """Train a model on the train labels of a task by masked label prediction.

    With a teacher, the model also learns its answers for nodes outside the train set.
    Training resumes from the checkpoint of the folder if there is one, and stores checkpoints. A
    time limit counts from the start of the experiment and includes the time before a checkpoint.
    """
    if not model.learns:
        return Fit(stopped="the model has nothing to learn")
    if isinstance(model, SolvedModel):
        return solve(experiment, model, task)
    recipe, device, folder, ranks = (
        experiment.recipe,
        experiment.device,
        experiment.output,
        experiment.ranks,
    )
    if ranks.size > 1 and (model.mixes_rows or not model.by_layer):
        raise RecipeError(
            "several processes cannot train a model with a batch norm, or a module that runs on "
            "the whole graph at once, because each process computes only a part of the rows; use "
            "another norm or model, or one process"
        )
    origin = depends_on(
        recipe,
        experiment.seed,
        data=data_hash,
        device=device.partition(":")[0],
        model=type(model).__name__ if experiment.own_model else None,
    )
    state = load_state(folder, origin)
    if state is not None and folder is not None:
        refuse_other_shape(state, model, folder / CHECKPOINT)
        experiment.progress.note(f"resuming in epoch {state.position.epoch}, from {folder}")
    if choice := explain_choice(recipe.train.precision, device):
        experiment.progress.note(choice)
    state = shared_state(state, folder, ranks)
    history = HistoryFile(folder, state.history if state else ())

    def on_epoch(epoch: Epoch) -> None:
        history.add(epoch)
        experiment.after_epoch(epoch)

    graph = graph_for(recipe, model, task, device)
    if isinstance(task, StoredTask) and graph.device.type == "cpu":
        graph = graph.copied() if experiment.placement == "memory" else graph
    batches = batches_of(experiment, model, graph, task, teacher)
    options = recipe.train
    with (
        checkpoints(folder, origin, options.checkpoint_every, experiment.progress.note) as keep,
        remembering(model, graph, task.num_classes),
    ):
        return fit(
            model,
            batches,
            task.labels,
            schedule_of(experiment),
            lr=options.lr,
            weight_decay=options.weight_decay,
            ema=options.ema,
            evaluate=epoch_scorer(experiment, model, graph, task),
            on_epoch=on_epoch,
            device=device,
            precision=options.precision,
            consistency=consistency_of(recipe),
            further=None if teacher is None else teacher.loss,
            # Neither Python code of a module nor the draws of a step are replayed.
            replay=options.replay and model.by_layer and options.draws == "entry",
            resume=state,
            keep=keep,
            ranks=ranks,
        )


def solve(experiment: Experiment, model: SolvedModel, task: Task) -> Fit:
    """Fit a model that the training loop does not train."""
    graph = graph_for(experiment.recipe, model, task, experiment.device)
    limit = experiment.recipe.train.time_limit
    left = limit - (time.perf_counter() - experiment.started) if limit else math.inf
    try:
        solved = model.solve(graph, labels_to_solve(task), seed=experiment.seed, seconds=left)
    except NonFiniteError as error:
        raise TrainingError(f"training failed: {error}") from error
    return Fit(stopped=solved.how, cut_short=solved.cut_short)


def batches_of(
    experiment: Experiment, model: NodeModel, graph: Graph, task: Task, teacher: Teacher | None
) -> Batches:
    """The training batches, with masks that hide a part of the train labels."""
    recipe, seed = experiment.recipe, experiment.seed
    masks = Masks(
        mask_of(task.split.train, len(task.labels)),
        recipe.mask.label_rate if model.learns_from_labels else 0.0,
        redraw=recipe.mask.redraw,
        seed=seed,
        groups=groups_of(recipe, task, model),
        rate=recipe.mask.rate,
        wrong_labels=recipe.mask.wrong_labels,
    )
    decided: dict[str, Any] = {"prune": prunes(recipe, model, task.graph)}
    if experiment.placement is not None:
        decided["placement"] = experiment.placement
    batches = make_batches(
        graph,
        task.labels,
        masks,
        recipe.batch.model_copy(update=decided),
        num_layers=model.num_layers,
        device=experiment.device,
        changes=BatchChanges(
            feature_drop=recipe.mask.feature_drop if model.takes_labels else 0.0,
            propagate=model.propagated if model.takes_propagated_labels else None,
            drawn_per_node=recipe.train.draws == "node",
        ),
        others=None if teacher is None else torch.nonzero(~masks.known).squeeze(1),
        ranks=experiment.ranks,
    )
    dropped = recipe.model.edge_dropout
    return FewerEdges(batches, dropped, seed) if dropped else batches


def schedule_of(experiment: Experiment) -> Schedule:
    """How long to train, when to score, and when to stop early."""
    options = experiment.recipe.train
    return Schedule(
        epochs=options.epochs,
        eval_from=options.eval_from,
        eval_every=options.eval_every,
        patience=options.patience,
        select=options.select,
        rate=options.schedule,
        time_limit=options.time_limit,
        spent_before=time.perf_counter() - experiment.started,
        scorings_after=SCORINGS_AFTER,
    )


def shared_state(
    state: TrainingState | None, folder: Path | None, ranks: Ranks
) -> TrainingState | None:
    """The state from which the first process resumes, if there is one."""
    if ranks.size == 1:
        return state
    stored = b"" if state is None or folder is None else (folder / CHECKPOINT).read_bytes()
    stored = ranks.of_first(stored)
    if ranks.is_first or not stored:
        return state
    with TemporaryDirectory(prefix="unimp-") as place:
        path = Path(place) / CHECKPOINT
        path.write_bytes(stored)
        return load_checkpoint(path)


def labels_to_solve(task: Task) -> KnownLabels:
    """The train and validation labels of a task; all other labels are hidden."""
    labels = reveal_only(task.split.known("train+val"), task.labels)
    return KnownLabels(labels, task.split.train, task.split.val, task.metric, task.groups)


def unscored_run(experiment: Experiment, model: NodeModel, task: Task) -> Run:
    """The run of a trained model without metrics.

    Its logits are computed by all processes that trained it, if they can be divided and do not fit
    into one chunk.
    """
    recipe, ranks = experiment.recipe, experiment.ranks
    is_small = fits_one_chunk(task.graph, recipe.inference.chunk_edges)
    divided = not (ranks.size == 1 or is_small or undivided(recipe, model))
    shared = shared_work(ranks) if divided and ranks.on_one_machine() else ALONE
    device, folder = experiment.device, experiment.output
    return Run(recipe, experiment.seed, task, model, {}, device, folder, shared)


def help_to_score(experiment: Experiment, model: NodeModel, task: Task) -> Run:
    """Compute the part of this process in the logits of `scored_run`; return the unscored run."""
    run = unscored_run(experiment, model, task)
    with suppress(NonFiniteError):  # the first process reports it
        for protocol in run.protocols if run.shared.ranks > 1 else ():
            if not run.shared.agreed(True):
                raise TrainingError(FIRST_FAILED)
            run.logits(reveal_only(task.split.known(protocol), task.labels))
    return replace(run, shared=ALONE)


def scored_run(
    experiment: Experiment, model: NodeModel, task: Task, fit: Fit
) -> tuple[Run, Tensor]:
    """The run of a trained model with its metrics, and its predictions with train labels as
    inputs: [N, classes]."""
    run = unscored_run(experiment, model, task)
    observed = run.observed_labels(reveal="train")
    try:
        run.shared.agreed(True)  # other processes wait for it before each protocol
        outputs = run.outputs(observed)
    except NonFiniteError as error:
        if not fit.failed:
            raise
        raise TrainingError(f"training failed: {fit.stopped}. {LOWER_RATE}") from error
    scores = {"train": score_split(outputs, task, "train")}
    if not experiment.is_member:  # an ensemble scores further protocols for all members together
        for name in run.protocols:
            if name != "train" and run.shared.agreed(True):
                scores[name] = run.evaluate(name)
    metrics: dict[str, Any] = {
        "metric": task.metric,
        "scores": scores,
        "calibration": run.calibrate(outputs),
        "best_epoch": fit.best.epoch if fit.best else None,
        "epochs": len(fit.history),
        "stopped": fit.stopped,
        "cut_short": fit.cut_short,
        "failed": fit.failed,
        "parameters": count_parameters(model),
        "seconds": round(fit.spent_before + time.perf_counter() - experiment.started, 2),
        "seconds_per_epoch": round(seconds_per_epoch(fit), 5),
    }
    if fit.ensemble is not None:
        metrics["ensemble"] = fit.ensemble
    if fit.teacher is not None:
        metrics["student"] = student_section(fit.teacher, scores["train"])
    run = replace(run, metrics=metrics, shared=ALONE)
    return run, run.answers(outputs, observed)


def seconds_per_epoch(result: Fit) -> float:
    """The median time of an epoch in seconds, of epochs without a score if there are any."""
    plain = [epoch.seconds for epoch in result.history if epoch.scores is None]
    taken = plain or [epoch.seconds for epoch in result.history]
    return median(taken) if taken else 0.0
