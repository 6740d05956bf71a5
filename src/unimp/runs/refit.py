"""Train the members of an ensemble again on all known labels, after validation has chosen them.

The scores of a run are computed before this step: afterwards, validation labels are train labels,
and nothing could be chosen or measured with them.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from unimp.config.run_files import REFIT, is_finished
from unimp.ensemble.calibration import Calibration
from unimp.ensemble.folds import split_for
from unimp.ensemble.model import Ensemble, Entry
from unimp.ensemble.portfolio import member_recipe, seed_of
from unimp.errors import UnimpError
from unimp.model.node_model import NodeModel
from unimp.model.solved_model import KnownLabels, SolvedModel
from unimp.runs.bags import bagged_run
from unimp.runs.context import Experiment
from unimp.runs.folder.files import read_run
from unimp.runs.members import plan_of, stored, trains_by_epochs, varies
from unimp.runs.preparation import graph_for, member_task, trains_folds
from unimp.runs.run import Run
from unimp.runs.trained_model import TrainedModel
from unimp.runs.workers import Train, Trainer
from unimp.tasks.labels import reveal_only
from unimp.tasks.task import Task

NO_TIME = "there was no time left"


def refitted_run(experiment: Experiment, run: Run, train: Train) -> Run:
    """The run of an ensemble whose members were trained again on train and validation labels.

    Weights, calibration and the number of epochs are those that validation chose before. A member
    that cannot be trained again in the time that is left stays as it is. With few validation
    labels, members are trained on folds instead (`bagged_run`).
    """
    assert isinstance(run.model, Ensemble)
    began = time.perf_counter()
    if trains_folds(experiment.recipe, run.task):
        bagged = bagged_run(experiment, run, train)
        if bagged is not None:
            return bagged
    refit = _Refit(experiment, run, began)
    by_epochs = [member for member in run.members if trains_by_epochs(member)]
    jobs, threads = plan_of(experiment, [member.recipe for member in by_epochs], run.task)
    with stored(experiment, jobs) as in_folder:
        refit.solve_again()
        due = refit.due(in_folder)
        workers = jobs if jobs > 1 else 0
        with Trainer(in_folder, run.task, train, workers=workers, threads=threads) as trainer:
            for (index, entry), result in trainer.each(due):
                refit.add(index, entry, result)
    if not refit.refitted:
        summary = {**run.metrics["ensemble"], "not_refitted": refit.kept}
        return replace(run, metrics={**run.metrics, "ensemble": summary})
    scale, shift = run.model.scale, run.model.shift
    calibrations = [Calibration(*one) for one in zip(scale, shift, strict=True)]
    ensemble = Ensemble(refit.models, refit.entries, calibrations).eval()
    metrics = {**run.metrics, "ensemble": refit.summary()}
    again = replace(run, model=ensemble, metrics=metrics)
    scores = {**metrics["scores"], REFIT: again.evaluate(REFIT)}
    seconds = round(metrics["seconds"] + time.perf_counter() - began, 2)
    return replace(again, metrics={**metrics, "scores": scores, "seconds": seconds})


class _Refit:
    """The members of an ensemble, some of them trained again, and why the others were not."""

    def __init__(self, experiment: Experiment, run: Run, began: float) -> None:
        assert isinstance(run.model, Ensemble)
        self._experiment, self._run, self._began = experiment, run, began
        self.models: list[NodeModel] = [member.model for member in run.members]
        self.entries = list(run.model.entries)
        self.rows = {row["name"]: row for row in run.metrics["ensemble"]["members"]}
        self.refitted: list[str] = []
        self.kept: dict[str, str] = {}  # why the others were not refitted

    def _time_left(self, entry: Entry) -> float | None:
        """Seconds that are left: 0 if the member needs more, None without a time limit."""
        limit = self._run.recipe.train.time_limit
        if not limit:
            return None
        spent = self._run.metrics["seconds"] + time.perf_counter() - self._began
        left, row = 0.95 * limit - spent, self.rows[entry.name]
        needed = row["seconds"] / 4  # of a model that does not choose its settings again
        if row["epochs"]:
            needed = row["epochs"] * row["seconds_per_epoch"]
        elif varies(self._run.members[self.entries.index(entry)]):  # it is trained again
            needed = row["seconds"]
        return left if left > needed else 0.0

    def _by_weight(self) -> Iterator[tuple[int, Entry, TrainedModel]]:
        """The members that learn, the most important first, as far as time allows."""
        for index in sorted(range(len(self.entries)), key=lambda i: -self.entries[i].weight):
            if self.models[index].learns:
                yield index, self.entries[index], self._run.members[index]

    def _task(self, member: TrainedModel) -> Task:
        recipe = self._run.recipe
        task = self._run.task
        split = split_for(task, "refit", recipe.ensemble.folds, self._run.seed)
        return member_task(recipe, member.recipe, task, split)

    def solve_again(self) -> None:
        """Solve the models that the training loop does not train, such as ridge regression."""
        for index, entry, member in self._by_weight():
            if not isinstance(member.model, SolvedModel):
                continue
            if self._time_left(entry) == 0:
                self.kept[entry.name] = NO_TIME
                continue
            task, model = self._task(member), copy.deepcopy(member.model)
            train, val = task.split.train, task.split.val
            known = KnownLabels(
                reveal_only(train, task.labels), train, val, task.metric, task.groups
            )
            graph = graph_for(member.recipe, model, task, member.device)
            model.solve_again(graph, known, seed=member.seed)
            self._done(index, entry, model)

    def due(self, experiment: Experiment) -> Iterator[tuple[tuple[int, Entry], Experiment]]:
        """The members to train for the number of epochs that was best on validation."""
        for index, entry, member in self._by_weight():
            if not trains_by_epochs(member):
                continue
            folder = experiment.folder and experiment.folder / REFIT / entry.name
            left = self._time_left(entry)
            if folder is not None and is_finished(folder):  # with another time left
                left = read_run(folder)[0].train.time_limit
            elif left == 0:
                self.kept[entry.name] = NO_TIME
                continue
            epochs = self.rows[entry.name]["epochs"] or 1
            settings = {
                **entry.settings,
                "train.epochs": epochs,
                "train.eval_from": epochs,
                "train.patience": 0,
                "train.time_limit": round(left or 0.0, 2),
            }
            recipe = member_recipe(experiment.stored_recipe, entry.name, settings)
            seed, task = seed_of(entry.name, experiment.seed), self._task(member)
            inner = experiment.of_member(recipe, seed, folder, task, "refit")
            yield (index, replace(entry, settings=settings)), inner

    def add(self, index: int, entry: Entry, result: Run | UnimpError) -> None:
        """Use a member that was trained again, unless it failed."""
        if isinstance(result, UnimpError):
            self.kept[entry.name] = str(result)
        elif result.metrics["cut_short"]:  # a part of a training is worse than the whole before
            self.kept[entry.name] = NO_TIME
        else:
            self._done(index, entry, result.model)

    def _done(self, index: int, entry: Entry, model: NodeModel) -> None:
        self.models[index], self.entries[index] = model, entry
        self.refitted.append(entry.name)
        self._experiment.progress.note(f"{entry.name}: refitted on train and validation labels")

    def summary(self) -> Mapping[str, Any]:
        """The leaderboard with the settings of the refit, and why members were not refitted."""
        settings = {entry.name: dict(entry.settings) for entry in self.entries}
        rows = [
            {**row, "settings": settings.get(name, row["settings"])}
            for name, row in self.rows.items()
        ]
        before = self._run.metrics["ensemble"]
        return {**before, "members": rows, "refitted": True, "not_refitted": self.kept}
