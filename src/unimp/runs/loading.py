"""Loading a run from its folder."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from pathlib import Path

from unimp.config.arguments import FilePath, checked
from unimp.config.run_files import REPORT, WEIGHTS
from unimp.errors import RunError
from unimp.inference.ranges import shared_work
from unimp.model.node_model import NodeModel
from unimp.runs.context import Experiment
from unimp.runs.folder.files import check_part, check_task, read_run
from unimp.runs.folder.resume import remove_leftovers
from unimp.runs.members import ensemble_of
from unimp.runs.preparation import (
    ModelFactory,
    choose_device,
    data_hash_of,
    model_of,
    task_of,
    undivided,
)
from unimp.runs.run import Run
from unimp.tasks.task import Task
from unimp.training.checkpoint import load_weights
from unimp.training.ranks import join_ranks, use_own_gpu

LOG = logging.getLogger("unimp")


@checked
def load_run(folder: FilePath, *, device: str = "auto", model: ModelFactory | None = None) -> Run:
    """Load a run from its folder, after checking that data and weights are those of the run.

    `model` is the function that `run` was given to make your own model.
    """
    return _load(Path(folder), device, model)


def load_shared(folder: Path) -> Run:
    """Load a run whose logits are computed by all processes that were started together.

    Every process calls this; without others, it is `load_run`.
    """
    use_own_gpu("auto")
    run = load_run(folder)
    ranks = join_ranks("cpu", run.recipe.train.rank_timeout)  # only states in files are exchanged
    if ranks.size == 1:
        return run
    if why := undivided(run.recipe, run.model):
        raise RunError(
            f"several processes cannot divide the predictions of {folder}: {why}. Start one "
            "process, without --devices."
        )
    if not ranks.on_one_machine():
        raise RunError(
            "several processes can compute predictions only if all of them run on the same "
            "machine, because they share files. Start all of them on one machine."
        )
    return replace(run, shared=shared_work(ranks))


def _load(folder: Path, device: str, model: ModelFactory | None, task: Task | None = None) -> Run:
    """The run of a folder; its task is loaded, too, unless it is given."""
    recipe, metrics, manifest = read_run(folder)
    if task is None:
        check_task(recipe, manifest)
        task = task_of(recipe, manifest["seed"])
    if data_hash_of(recipe, task) != manifest["data_hash"]:
        raise RunError(
            f"{folder} was trained on other data than {recipe.task.name!r} contains now; restore "
            "the data, or train again"
        )
    if manifest.get("model") and model is None:
        raise RunError(
            f"{folder} was made with your own model ({manifest['model']}); load it with "
            "unimp.load_run(folder, model=…) and the function that made the model"
        )
    device = choose_device(device)
    if summary := metrics.get("ensemble"):
        loaded: NodeModel = ensemble_of(recipe, task, summary)
    else:
        loaded = model_of(recipe, task, model)
    check_part(folder / WEIGHTS, manifest)
    load_weights(loaded, folder / WEIGHTS)
    for scores in metrics["scores"].values():  # JSON has no NaN for a score that is not defined
        scores.update({name: math.nan for name, value in scores.items() if value is None})
    run = Run(recipe, manifest["seed"], task, loaded.to(device).eval(), metrics, device, folder)
    if run.failure:
        LOG.warning(f"{folder}: {run.failure}")
    return run


def load_finished(experiment: Experiment) -> Run:
    """Load the finished run of a folder; refuse it if it was made from other data."""
    assert experiment.folder is not None
    remove_leftovers(experiment.folder)
    # A member uses the task that the ensemble has loaded.
    run = _load(
        experiment.folder, experiment.device, experiment.own_model, task=experiment.prepared
    )
    other_file = experiment.recipe.task.name not in ("tables", run.recipe.task.name)
    own_task = experiment.own_task is not None or other_file
    if own_task and data_hash_of(experiment.recipe, experiment.task()) != data_hash_of(
        run.recipe, run.task
    ):
        raise RunError(
            f"{experiment.folder} contains a finished run on other data; choose another folder"
        )
    if experiment.report and not (experiment.folder / REPORT).exists():
        run.report()
    return run.succeeded()
