"""Train the members of an ensemble, and choose their weights on validation.

Each member is a separate run, stored in the folder members/NAME of the ensemble's run. An
interrupted command therefore resumes the members that were being trained, and does not train
finished members again. `runs/workers.py` trains several members at the same time.
"""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch

from unimp.config.recipe import Recipe
from unimp.config.run_files import CHECKPOINT, MEMBERS, REFIT, is_finished, is_started
from unimp.ensemble.calibration import Calibration
from unimp.ensemble.model import Ensemble, Entry
from unimp.ensemble.portfolio import (
    COPY,
    Member,
    copy_of,
    is_copy,
    member_recipe,
    members_for,
    seed_of,
    settings_of,
)
from unimp.errors import ModelError, RecipeError, RunError, TrainingError, UnimpError
from unimp.model.solved_model import SolvedModel
from unimp.runs.context import Experiment
from unimp.runs.folder.files import read_run
from unimp.runs.folder.resume import depends_on, load_state
from unimp.runs.folder.writing import write_task
from unimp.runs.preparation import (
    member_task,
    model_of,
    refits,
    refuse_nothing_hidden,
    trains_folds,
)
from unimp.runs.run import Run
from unimp.runs.time_shares import TYPICAL, TimeShares, expected_pace
from unimp.runs.trained_members import (
    Trained,
    answered,
    leaderboard,
    progress_line,
    weights_of,
    why_left_out,
)
from unimp.runs.trained_model import TrainedModel
from unimp.runs.workers import Plan, Train, Trainer, plan, usable_cores, wait_for_workers
from unimp.tasks.task import Task
from unimp.training.checkpoint import save_checkpoint
from unimp.training.loop import Fit, Position, TrainingState
from unimp.training.precision import explain_choice

SHARE_OF_REFIT = 0.25
"""The part of the time limit that is reserved for training members again on all known labels."""
SHARE_OF_FOLDS = 0.5
"""The part of the time limit that is reserved for training members on folds."""
CHEAP = 0.3
"""The first members, up to this cost, are trained in this process while workers start."""
RELIED_ON = 0.1
"""The smallest weight of a member of which copies are trained."""


def fit_ensemble(
    experiment: Experiment, task: Task, data_hash: str, train: Train
) -> tuple[Ensemble, Fit]:
    """Train the members that suit the task, as far as the time limit allows, and combine them."""
    members = checked_members(experiment.recipe, task)
    _mark_begun(experiment, data_hash)
    if choice := explain_choice(experiment.recipe.train.precision, experiment.device):
        experiment.progress.note(choice)
    cheap = list(takewhile(lambda member: member.cost <= CHEAP, members))
    others = members[len(cheap) :]
    jobs, threads = plan_of(experiment, [_recipe(experiment, m, task) for m in others], task)
    with stored(experiment, jobs) as in_folder:
        training = _Training(in_folder, task, members, jobs)
        workers = min(jobs, sum(map(training.is_unfinished, others))) if jobs > 1 else 0
        with Trainer(in_folder, task, train, workers=workers, threads=threads) as trainer:
            training.add(trainer.here(training.due(cheap)))
            training.measure(others, usable_cores() / threads if jobs > 1 else 1.0)
            training.add(trainer.each(training.due(others)))
            training.add(trainer.each(training.due(training.add_copies())))
    trained, notes = training.trained, training.notes
    if not trained:
        raise TrainingError(
            "no member of the ensemble could be trained: "
            + "; ".join(f"{name}: {why}" for name, why in notes.items())
        )
    weights = weights_of(trained, training.labels)
    summary = leaderboard(trained, weights, notes, task, experiment.seed)
    chosen = [(one, float(w)) for one, w in zip(trained, weights, strict=True) if w > 0]
    entries = [Entry(t.member.name, t.settings, w, t.run.temperature) for t, w in chosen]
    stopped = f"{len(trained)} of {len(training.members)} members trained"
    if training.cut_short:
        limit = experiment.recipe.train.time_limit
        stopped = f"cut short by the time limit of {limit:g} s after {stopped}"
    fit = Fit(
        stopped=stopped,
        cut_short=training.cut_short,
        spent_before=training.spent_before,
        ensemble=summary,
    )
    models = [t.run.model for t, _ in chosen]
    return Ensemble(models, entries, [t.calibration for t, _ in chosen]), fit


class _Due(NamedTuple):
    """A member that is trained next."""

    member: Member
    settings: Mapping[str, Any]


class _Training:
    """The members that were trained so far, in the order of the portfolio, and those that were not.

    The order does not depend on which member finished first, because weights depend on it if two
    members are equally good.
    """

    def __init__(
        self, experiment: Experiment, task: Task, members: Sequence[Member], jobs: int
    ) -> None:
        self.trained: list[Trained] = []
        self.notes: dict[str, str] = {}  # why a member is not part of the ensemble
        self.cut_short = False
        self.labels = task.labels[task.split.val]
        recipe = experiment.recipe
        again = SHARE_OF_FOLDS if trains_folds(recipe, task) else SHARE_OF_REFIT
        share = 1 - again if refits(recipe, task) else 1.0
        self._times = TimeShares(share * recipe.train.time_limit, jobs)
        self.members = list(members)
        self._experiment, self._task = experiment, task
        self.spent_before = self._seconds_before(members)

    def is_unfinished(self, member: Member) -> bool:
        folder = self._folder_of(member)
        return folder is None or not is_finished(folder)

    def _is_begun(self, member: Member) -> bool:
        folder = self._folder_of(member)
        return folder is not None and (is_finished(folder) or is_started(folder))

    def _seconds_before(self, members: Sequence[Member]) -> float:
        """Seconds of the members that were finished before this command."""
        seconds = 0.0
        for folder in map(self._folder_of, members):
            if folder is not None and is_finished(folder):
                with suppress(RunError):  # loading this member will report the error
                    seconds += read_run(folder)[1]["seconds"]
        return seconds / self._times.jobs

    def measure(self, members: Sequence[Member], slower: float) -> None:
        """Measure how long members take on CPU, if there is a time limit.

        slower: how many times as long as in this process they take.
        """
        share_time = [m for m in members if m.by_gradient]
        typical = next((m for m in share_time if m.cost >= TYPICAL), None)
        if not self._times.limit or typical is None:
            return
        on_cpu = self._experiment.device == "cpu"  # on a GPU, kernels would be compiled for it
        if on_cpu and any(map(self.is_unfinished, share_time)):
            recipe = _recipe(self._experiment, typical, self._task)
            task = member_task(self._experiment.stored_recipe, recipe, self._task)
            pace = expected_pace(typical, recipe, task)
            self._times.expect(None if pace is None else slower * pace)

    def add_copies(self) -> list[Member]:
        """Further trainings of the members with a large weight; their mean varies less."""
        if not self.trained or trains_folds(self._experiment.recipe, self._task):
            return []
        weights = weights_of(self.trained, self.labels)
        relied_on = [
            one.member
            for one, weight in zip(self.trained, weights, strict=True)
            if weight >= RELIED_ON and varies(one.run) and not is_copy(one.member.name)
        ]
        numbers = range(2, self._experiment.recipe.ensemble.copies + 1)
        copies = [copy_of(member, number) for number in numbers for member in relied_on]
        self.members += copies
        self.spent_before += self._seconds_before(copies)
        return copies

    def due(self, members: Sequence[Member]) -> Iterator[tuple[_Due, Experiment]]:
        """The members to train; the results before decide which, and how long each may take."""
        experiment = self._experiment
        for member in members:
            folder, was_finished = self._folder_of(member), not self.is_unfinished(member)
            begun = self._is_begun(member)
            if not begun and (why := why_left_out(member, self.trained, self.labels)):
                self.notes[member.name] = why
                continue
            spent = time.perf_counter() - experiment.started + self.spent_before
            later = self.members[self.members.index(member) :]
            limit = self._times.of_first(later, spent)
            has_time = limit is None or limit > 0
            if not begun and any(one.run.model.learns for one in self.trained):
                has_time = self._times.is_enough(member, limit)
            if is_copy(member.name) and not member.by_gradient and limit is not None:
                has_time = limit >= self._seconds_of_original(member)
            has_time |= was_finished or not self.trained
            if not has_time:
                if is_copy(member.name):  # copies only use time that is left
                    self.members.remove(member)
                    continue
                self.notes[member.name] = "there was too little time left"
                self.cut_short = True
                continue
            try:
                inner, settings = _experiment_of(member, experiment, self._task, folder, limit)
            except (RecipeError, RunError) as error:
                self._failed(member, error)
            else:
                yield _Due(member, settings), inner

    def add(self, results: Iterable[tuple[_Due, Run | UnimpError]]) -> None:
        """Add members as they finish, and print a line about each."""
        for (member, settings), result in results:
            if isinstance(result, UnimpError):
                self._failed(member, result)
                continue
            metrics = result.metrics
            if trains_by_epochs(result):
                self._times.add(member, metrics["seconds"], cut_short=metrics["cut_short"])
            newest = answered(member, settings, result)
            insort(self.trained, newest, key=lambda one: self.members.index(one.member))
            text = progress_line(newest, self.trained, self.labels, self._task.metric)
            self._experiment.progress.note(text)

    def _seconds_of_original(self, copy: Member) -> float:
        name = copy.name.partition(COPY)[0]
        return float(sum(t.run.metrics["seconds"] for t in self.trained if t.member.name == name))

    def _folder_of(self, member: Member) -> Path | None:
        folder = self._experiment.folder
        return None if folder is None else folder / MEMBERS / member.name

    def _failed(self, member: Member, error: UnimpError) -> None:
        self.notes[member.name] = str(error)
        self._experiment.progress.note(f"{member.name}: {error}")


def varies(member: TrainedModel) -> bool:
    """Whether copies of this member, with other seeds, are useful."""
    model = member.model
    return model.varies if isinstance(model, SolvedModel) else model.learns


def trains_by_epochs(member: TrainedModel) -> bool:
    return member.model.learns and not isinstance(member.model, SolvedModel)


def plan_of(experiment: Experiment, recipes: Sequence[Recipe], task: Task) -> Plan:
    """How these members are trained; waits until the workers of a killed command have ended."""
    for kind in (MEMBERS, REFIT) if experiment.folder is not None else ():
        wait_for_workers((experiment.folder / kind).glob("*"))  # type: ignore[operator]
    return plan(experiment, recipes, task)


def _recipe(experiment: Experiment, member: Member, task: Task) -> Recipe:
    return member_recipe(experiment.recipe, member.name, settings_of(member, task))


@contextmanager
def stored(experiment: Experiment, jobs: int) -> Iterator[Experiment]:
    """The experiment with a folder if workers train its members: a temporary one if it has none."""
    if experiment.folder is not None or jobs == 1:
        yield experiment
        return
    with TemporaryDirectory(prefix="unimp-", ignore_cleanup_errors=True) as name:
        if experiment.own_task is not None:
            write_task(Path(name), experiment.own_task)
        yield replace(experiment, folder=Path(name))


def checked_members(recipe: Recipe, task: Task) -> list[Member]:
    """The members of a recipe's ensemble; refused if there is nothing to learn from."""
    refuse_nothing_hidden(recipe, task)
    try:
        return members_for(recipe, task)
    except ModelError as error:
        raise RecipeError(f"ensemble.members: {error}") from None


def ensemble_of(recipe: Recipe, task: Task, summary: Mapping[str, Any]) -> Ensemble:
    """The ensemble of a stored run, with members of the right shapes; weights are read later."""
    entries = [
        Entry(row["name"], row["settings"], row["weight"] / row.get("folds", 1), row["temperature"])
        for row in summary["members"]
        if row["weight"] > 0
        for _ in range(row.get("folds", 1))
    ]
    if not entries:
        raise RunError("no member of the ensemble has a weight in metrics.json. Train again.")
    recipes = [member_recipe(recipe, entry.name, entry.settings) for entry in entries]
    models = [model_of(r, member_task(recipe, r, task)) for r in recipes]
    width = task.num_classes if task.is_multilabel else 1
    numbers = torch.ones(width, dtype=torch.float64)
    return Ensemble(models, entries, [Calibration(numbers, numbers)] * len(models))


def _experiment_of(
    member: Member,
    experiment: Experiment,
    task: Task,
    folder: Path | None,
    limit: float | None,
) -> tuple[Experiment, dict[str, Any]]:
    """The experiment that trains one member of another experiment, and the member's settings."""
    settings = settings_of(member, task)
    if limit is not None:
        settings["train.time_limit"] = round(max(limit, 1.0), 2)
    base = experiment.stored_recipe
    if is_copy(member.name) and base.task.split == "seed":  # its own seed draws another split
        settings["task.split"] = experiment.seed
    if folder is not None and is_finished(folder):  # it was trained with another time left
        settings["train.time_limit"] = read_run(folder)[0].train.time_limit
    recipe = member_recipe(base, member.name, settings)
    seed, prepared = seed_of(member.name, experiment.seed), member_task(base, recipe, task)
    return experiment.of_member(recipe, seed, folder, prepared), settings


def _mark_begun(experiment: Experiment, data_hash: str) -> None:
    """Store what the ensemble depends on, so that only the same command resumes it."""
    folder = experiment.folder
    origin = depends_on(
        experiment.recipe,
        experiment.seed,
        data=data_hash,
        device=experiment.device.partition(":")[0],
        model=None,
    )
    if folder is not None and load_state(folder, origin) is None:
        state = TrainingState({}, Position(), (), None)
        save_checkpoint(folder / CHECKPOINT, state, origin)
