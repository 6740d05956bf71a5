"""Train the members of an ensemble again on folds of the train and validation labels.

With few validation labels, the best epochs and the weights of members depend on chance. Therefore
each chosen member is trained several times, each time on all folds except one. Together, the
held-out folds contain every train and validation label, so they are a larger validation set. They
are used to calibrate the members and to choose the weights.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unimp.config.run_files import REFIT, is_finished
from unimp.ensemble.calibration import fit_calibration, log_odds
from unimp.ensemble.folds import known_nodes, number_of_folds, split_for
from unimp.ensemble.model import Ensemble, Entry
from unimp.ensemble.portfolio import member_recipe, of_few_val, seed_of
from unimp.ensemble.selection import mixed, score_of
from unimp.errors import UnimpError
from unimp.inference.calibration import as_logits, fit_temperature
from unimp.model.node_model import NodeModel
from unimp.runs.context import Experiment
from unimp.runs.folder.files import read_run
from unimp.runs.members import plan_of, stored
from unimp.runs.preparation import member_task
from unimp.runs.run import Run
from unimp.runs.scoring import score_split
from unimp.runs.trained_members import weights_by
from unimp.runs.workers import Train, Trainer
from unimp.tasks.labels import is_known
from unimp.tasks.means import FEW_NODES

LEAST_WEIGHT = 0.5
"""If the members trained on all folds have less than this part of the total weight, no folds are
used. This does not apply if all weights are equal because validation labels are few."""
NO_TIME = "there was too little time left for all folds"


class _Fold(NamedTuple):
    """A training of one member."""

    member: int
    number: int  # of the held-out fold


@dataclass
class _Bag:
    """The trainings of one member, and its predictions for the held-out nodes of each."""

    entry: Entry
    held_out: Tensor  # [train and validation nodes, C] probabilities
    models: dict[int, NodeModel]  # by fold


def bagged_run(experiment: Experiment, run: Run, train: Train) -> Run | None:
    """The run of an ensemble whose members were trained again on folds.

    The prediction of a member is the mean over its trainings. Returns None if too few members were
    trained on all folds.
    """
    assert isinstance(run.model, Ensemble)
    began = time.perf_counter()
    learn = [member.recipe for member in run.members if member.model.learns]
    folds = number_of_folds(run.task, run.recipe.ensemble.folds)
    jobs, threads = plan_of(experiment, learn * folds, run.task)
    with stored(experiment, jobs) as in_folder:
        bags = _Bags(in_folder, run, began, jobs)
        workers = jobs if jobs > 1 else 0
        with Trainer(in_folder, run.task, train, workers=workers, threads=threads) as trainer:
            for fold, result in trainer.each(bags.due()):
                bags.add(fold, result)
    return bags.combined()


class _Bags:
    """The members that are trained on folds."""

    def __init__(self, experiment: Experiment, run: Run, began: float, jobs: int) -> None:
        assert isinstance(run.model, Ensemble)
        self._experiment, self._run, self._began, self._jobs = experiment, run, began, jobs
        self._known = known_nodes(run.task.split)
        self._folds = number_of_folds(run.task, run.recipe.ensemble.folds)
        self._rows = {row["name"]: row for row in run.metrics["ensemble"]["members"]}
        empty = torch.zeros(len(self._known), run.task.num_classes, dtype=torch.float64)
        self._bags = [_Bag(entry, empty.clone(), {}) for entry in run.model.entries]
        self._left_out: dict[str, str] = {}
        finished = [row["seconds"] for entry in run.model.entries for row in self._stored(entry)]
        self._before = sum(finished) / jobs  # seconds of trainings that an earlier command finished

    def due(self) -> Iterator[tuple[_Fold, Experiment]]:
        """One training per member and fold; the members with the largest weights come first.

        If there are too few validation labels to choose weights, all weights are equal, and the
        fastest members come first.
        """
        for index in sorted(range(len(self._bags)), key=self._priority):
            entry = self._bags[index].entry
            if not self._has_time(entry):
                self._left_out[entry.name] = NO_TIME
                continue
            for number in range(self._folds):
                if entry.name not in self._left_out:
                    yield _Fold(index, number), self._experiment_of(index, number)

    def _priority(self, index: int) -> tuple[float, float]:
        entry = self._bags[index].entry
        return -entry.weight, self._rows[entry.name]["seconds"]

    def _has_time(self, entry: Entry) -> bool:
        if self._left is None:
            return True
        unfinished = self._folds - len(self._stored(entry))
        seconds: float = self._rows[entry.name]["seconds"]
        return math.ceil(unfinished / self._jobs) * seconds <= self._left

    def _stored(self, entry: Entry) -> list[dict[str, Any]]:
        """The metrics of the finished trainings of a member."""
        folders = [self._folder_of(entry, number) for number in range(self._folds)]
        return [read_run(folder)[1] for folder in folders if folder and is_finished(folder)]

    @property
    def _left(self) -> float | None:
        """Seconds that are left; None without a time limit."""
        limit = self._run.recipe.train.time_limit
        return max(0.0, 0.95 * limit - self._spent) if limit else None

    @property
    def _spent(self) -> float:
        """Seconds of the run until now, with those of earlier commands."""
        since: float = self._run.metrics["seconds"] + self._before
        return since + time.perf_counter() - self._began

    def _folder_of(self, entry: Entry, number: int) -> Path | None:
        folder = self._experiment.folder
        return folder and folder / REFIT / f"{entry.name}-fold{number + 1}"

    def _experiment_of(self, index: int, number: int) -> Experiment:
        entry, member = self._bags[index].entry, self._run.members[index]
        folder, seed = self._folder_of(entry, number), self._experiment.seed
        left = self._left
        limit = 0.0 if left is None else max(1.0, round(left, 2))
        split = split_for(self._run.task, number, self._folds, seed)
        task = member_task(self._run.recipe, member.recipe, self._run.task, split)
        # The held-out fold may be smaller than the validation set.
        settings = {**of_few_val(task), **entry.settings, "train.time_limit": limit}
        if folder is not None and is_finished(folder):  # its recipe contains the time that was left
            settings["train.time_limit"] = read_run(folder)[0].train.time_limit
        recipe = member_recipe(self._experiment.stored_recipe, entry.name, settings)
        return self._experiment.of_member(recipe, seed_of(entry.name, seed), folder, task, number)

    def add(self, fold: _Fold, result: Run | UnimpError) -> None:
        """Keep a training and its predictions for its held-out fold."""
        bag = self._bags[fold.member]
        if isinstance(result, UnimpError):
            self._left_out[bag.entry.name] = str(result)
            return
        if result.metrics["cut_short"]:  # it is weaker than the trainings on the other folds
            self._left_out[bag.entry.name] = NO_TIME
            return
        held_out = result.task.split.val
        outputs = result.outputs(result.observed_labels(reveal="train"))[held_out]
        answers = result.model.to_probabilities(outputs, multilabel=result.task.is_multilabel)
        bag.held_out[torch.searchsorted(self._known, held_out)] = answers.double()
        bag.models[fold.number] = result.model
        if len(bag.models) == self._folds and _learns(bag):
            text = f"{bag.entry.name}: trained on {self._folds} folds"
            self._experiment.progress.note(text)

    def combined(self) -> Run | None:
        """The run with the members that were trained on all folds; None if they are too few.

        Also None if the chosen ones learn nothing, because then nothing was trained.
        """
        done = [bag for bag in self._bags if len(bag.models) == self._folds]
        if not done or sum(bag.entry.weight for bag in done) < self._least_weight():
            return None
        task, labels = self._run.task, self._run.task.labels[self._known]
        calibrations = [fit_calibration(bag.held_out, labels) for bag in done]
        answers = [
            calibration.apply(bag.held_out, multilabel=task.is_multilabel)
            for bag, calibration in zip(done, calibrations, strict=True)
        ]
        weights = weights_by(answers, labels, task.metric)
        models, entries, numbers = [], [], []
        rows = {name: {**row, "weight": 0.0} for name, row in self._rows.items()}
        for bag, weight, calibration in zip(done, weights.tolist(), calibrations, strict=True):
            # A model that learns nothing is the same in all folds, so one copy is enough.
            number = self._folds if _learns(bag) else 1
            kept = [bag.models[fold] for fold in range(number)]
            new = {"weight": weight, "folds": len(kept), "temperature": 1.0}
            rows[bag.entry.name] |= new
            if weight > 0:
                share = replace(bag.entry, weight=weight / len(kept), temperature=1.0)
                models += kept
                entries += [share] * len(kept)
                numbers += [calibration] * len(kept)
        if not any(model.learns for model in models):
            return None
        held_out = mixed(answers, weights)
        summary = {
            **self._run.metrics["ensemble"],
            "members": list(rows.values()),
            "folds": self._folds,
            "val_folds": score_of(held_out, labels, task.metric),
            "refitted": True,
            "not_refitted": self._left_out,
        }
        metrics = {**self._run.metrics, "ensemble": summary}
        ensemble = Ensemble(models, entries, numbers).eval()
        again = replace(self._run, model=ensemble, metrics=metrics)
        outputs = again.outputs(again.observed_labels(reveal="train+val"))
        metrics |= {
            "scores": {**metrics["scores"], REFIT: score_split(outputs, task, "train+val")},
            "calibration": self._calibration(held_out),
            "seconds": round(self._spent, 2),
        }
        return replace(again, metrics=metrics)

    def _least_weight(self) -> float:
        """The total weight that members trained on all folds need, if the weights were chosen."""
        val = self._run.task.labels[self._run.task.split.val]
        return LEAST_WEIGHT if int(is_known(val).sum()) >= FEW_NODES else 0.0

    def _calibration(self, held_out: Tensor) -> dict[str, Any]:
        """The temperature that fits the held-out folds: its probabilities for them are `held_out`.

        It is at least 1: the best epochs were chosen on the same labels, so the ensemble answers
        the held-out folds better than other nodes. For this reason, no errors are stored.
        """
        task, labels = self._run.task, self._run.task.labels[self._known]
        logits = log_odds(held_out) if task.is_multilabel else as_logits(held_out)
        enough = int(is_known(labels).sum()) >= FEW_NODES
        temperature = max(1.0, fit_temperature(logits, labels)) if enough else 1.0
        return {"temperature": temperature, "ece": {}, "note": ""}


def _learns(bag: _Bag) -> bool:
    return any(model.learns for model in bag.models.values())
