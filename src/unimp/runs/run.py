"""A trained run: its model, its task, and everything it can be asked."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unimp.analysis.audit import Audit, audit
from unimp.analysis.explain import BUDGET, EXACT, Explanation, explain
from unimp.analysis.predictions import (
    prediction_parts,
    predictions_table,
    suggestions,
)
from unimp.analysis.table import Table
from unimp.config.arguments import FilePath, Seed, checked_methods
from unimp.config.choices import Reveal, UnknownIds
from unimp.config.recipe import Settings
from unimp.config.run_files import REFIT
from unimp.data.catalog import prepare
from unimp.data.structure import without_structure
from unimp.data.tables.extending import extend_task
from unimp.data.tables.label_files import Given
from unimp.errors import RunError, TrainingError
from unimp.inference.incremental.logits import IncrementalLogits
from unimp.runs.folder.files import failure_of, read_run
from unimp.runs.preparation import data_hash_of, preparation
from unimp.runs.scoring import score_split
from unimp.runs.trained_model import TrainedModel
from unimp.tasks.labels import is_known, reveal_only
from unimp.tasks.names import classes_of, nodes_of

UNLIMITED = 2**60


@checked_methods
@dataclass(frozen=True)
class Run(TrainedModel):
    """A trained run, and everything it can be asked."""

    def evaluate(self, reveal: str | None = None) -> dict[str, float]:
        """Scores under a protocol: train labels are inputs, or train and validation labels.

        A set whose labels are inputs is not scored, because the model would see the answers. The
        only protocol of a refitted ensemble is `refit`: the test set is scored with train and
        validation labels as inputs.
        """
        reveal = reveal or (REFIT if self.is_refitted else "train")
        if self.is_refitted and reveal != REFIT:
            raise RunError(
                f"reveal={reveal!r} is not possible, because this ensemble was refitted on "
                "validation labels. Leave out reveal (--reveal) to get the test score. The scores "
                "before the refit are in metrics.json."
            )
        if reveal == REFIT and not self.is_refitted:
            raise RunError(
                "reveal='refit' is not possible, because this run was not refitted; use train."
            )
        shown = "train+val" if reveal == REFIT else reveal
        observed = reveal_only(self.task.split.known(shown), self.task.labels)
        return score_split(self.outputs(observed), self.task, shown)

    def predict(self, labels: Given | None = None, *, reveal: Reveal | None = None) -> Tensor:
        """Probabilities of each class for all nodes, [N, classes], without training.

        reveal: the labels of the task that are inputs: `train`, `train+val`, or `known` for all.
        By default all known labels of your own graph are inputs, and the train labels of a task
        with a name, whose other labels are there for scoring.
        labels: labels that arrived later, which are inputs too: {node: class} by names (by numbers
        if there are no names), a tensor like the task's labels (−1 where nothing is new), or the
        path of a label file.

        A label that was an input is returned with probability 1. All other probabilities are
        calibrated on the validation set.
        """
        observed = self.observed_labels(labels, reveal)
        return self.answers(self.outputs(observed), observed)

    def predictions(
        self,
        labels: Given | None = None,
        *,
        reveal: Reveal | None = None,
        probabilities: bool | None = None,
    ) -> Table:
        """The result of `predict` as a table with one row per node, under the task's names.

        `unimp predict` writes this table; `predictions_table` describes its columns.
        """
        observed = self.observed_labels(labels, reveal)
        given = self.answers(self.outputs(observed), observed)
        return predictions_table(self.task, given, observed, every_class=probabilities)

    def write_predictions(
        self,
        folder: FilePath,
        labels: Given | None = None,
        *,
        reveal: Reveal | None = None,
        probabilities: bool | None = None,
        force: bool = False,
    ) -> list[Path]:
        """Write the result of `predictions` to a folder, in Parquet files of a million nodes each.

        force: replace existing files of these names. The other arguments are those of
        `predictions`.
        """
        observed = self.observed_labels(labels, reveal)
        given = self.answers(self.outputs(observed), observed)
        parts = prediction_parts(self.task, given, observed, every_class=probabilities)
        paths = []
        for number, part in enumerate(parts):
            paths.append(Path(folder) / f"part-{number:05}.parquet")
            part.write(paths[-1], force=force)
        return paths

    def explain(
        self,
        node: Any,
        *,
        about: Any = None,
        labels: Given | None = None,
        reveal: Reveal | None = None,
        top: int = 10,
        exact: int = EXACT,
        budget: int | None = BUDGET,
    ) -> Explanation:
        """The neighbors and known labels behind the prediction of a node.

        node and about: the node and the class (or binary task), by name, or by number if there are
        no names; by default the most likely class. labels and reveal: as for `predict`. The `exact`
        labels and edges with the largest shares are removed one by one, as far as `budget` (edges
        to compute; None: no limit) allows.
        """
        for name, value, least in (("top", top, 1), ("exact", exact, 0), ("budget", budget, 0)):
            if value is not None and not least <= value <= UNLIMITED:
                raise RunError(f"{name} is {value}; it must be from {least} to {UNLIMITED}")
        number = nodes_of(self.task).find(node)
        target = None if about is None else classes_of(self.task).find(about)
        observed = self.observed_labels(labels, reveal)
        started = time.perf_counter()
        with self._nodes_named():
            engine = self.incremental(observed, around=torch.tensor([number]))
            prepared = time.perf_counter() - started
            found = explain(
                engine,
                self.task,
                observed,
                number,
                chances=self.probabilities_of,
                takes_labels=self.takes_labels,
                target=target,
                top=top,
                exact=exact,
                budget=UNLIMITED if budget is None else budget,
            )
        took = time.perf_counter() - started - prepared
        computed = f"every change was computed on the whole graph, in {took:.1f} s"
        if isinstance(engine, IncrementalLogits):
            computed = (
                f"the states of {len(engine.held):,} of {self.task.graph.num_nodes:,} nodes were "
                f"computed in {prepared:.1f} s, and the changes in {took:.1f} s"
            )
        if self.recipe.inference.regime != "exact":
            computed += "; inference was exact here, but the run's own predictions use parts"
        return replace(found, smooth=self.recipe.smooth.form, computed=computed)

    def audit(
        self,
        labels: Given | None = None,
        *,
        reveal: Reveal | None = None,
        folds: int | None = None,
        by_group: bool = False,
        on_part: Callable[[int, int], None] = lambda done, total: None,
    ) -> Audit:
        """Known labels that the model doubts when it sees all the others, the most doubtful first.

        labels and reveal: as for `predict`; these labels are hidden in turn. folds: 0 hides each
        label alone; k hides the k-th part of them at a time; None chooses by the size of the graph.
        by_group: a label is hidden together with its group.
        """
        observed = self.observed_labels(labels, reveal)
        known = torch.nonzero(is_known(observed)).squeeze(1)
        labels_now = torch.where(observed >= 0, observed, self.task.labels)
        with self._nodes_named():
            return audit(
                self.incremental(observed, hold_projections=None),
                replace(self.task, labels=labels_now),
                known,
                chances=self.probabilities_of,
                folds=folds,
                by_group=by_group,
                on_part=on_part,
            )

    def suggest(
        self,
        number: int = 50,
        labels: Given | None = None,
        *,
        reveal: Reveal | None = None,
        smooth: bool | None = None,
    ) -> Table:
        """The unknown nodes whose labels would help most, best first.

        labels and reveal: as for `predict`; nodes with such a label are not suggested. smooth:
        whether Correct & Smooth follows the model; None: if it scores better on validation
        (`smoothed_if_better`).
        """
        if smooth is None or smooth:
            chosen = self.smoothed() if smooth else self.smoothed_if_better()
            return chosen.suggest(number, labels, reveal=reveal, smooth=False)
        observed = self.observed_labels(labels, reveal)
        outputs = self.outputs(observed)
        return suggestions(self.task, self.probabilities_of(outputs), observed, number)

    def report(self) -> Path:
        """Write report.html into the run's folder again, and return its path."""
        from unimp.runs.reporting import write_report

        if self.folder is None:
            raise RunError("the run has no folder for its report; pass out=… to unimp.run")
        return write_report(self.folder, self)

    def extended(
        self, nodes: Any = None, edges: Any = None, *, unknown_ids: UnknownIds = "refuse"
    ) -> Run:
        """This run on a larger graph, without training: new nodes follow the old ones.

        nodes and edges are paths, frames of pandas or polars, Arrow tables or dictionaries of
        arrays with the columns of the tables that the run was trained on; its transforms encode
        them. An id that exists already is refused. unknown_ids="skip" leaves out edges with an
        unknown id.
        """
        task = self.task
        if self.recipe.task.structure:  # `prepare` computes the columns of the larger graph
            task = task.with_graph(without_structure(task.graph))
        task = extend_task(task, nodes, edges, unknown_ids=unknown_ids)
        return replace(self, task=prepare(task, **preparation(self.recipe)))

    def distill(
        self,
        *,
        out: FilePath | None = None,
        seed: Seed | None = None,
        settings: Settings = (),
        progress: bool | None = None,
    ) -> Run:
        """Train one UniMP, a student, on the answers of this run, and store it in the folder `out`.

        The student is an ordinary run that does not need this one. seed: that of this run by
        default; the split is always that of this run. settings: changes of the student's recipe,
        such as {"model.width": 128}. `metrics["student"]` compares it with this run.
        """
        from unimp.runs.student import distill

        if self.folder is None:
            raise RunError(
                "the run has no folder that the recipe of a student could name; pass out=… to "
                "unimp.run"
            )
        recipe, _, manifest = read_run(self.folder)
        is_stored = manifest["data_hash"] == data_hash_of(self.recipe, self.task)
        if recipe.smooth != self.recipe.smooth or not is_stored:
            raise RunError(
                "a student learns from the run as it is stored, but this one was smoothed or "
                f"extended after it was loaded; use unimp.load_run({str(self.folder)!r}).distill()"
            )
        return distill(self.folder, out=out, seed=seed, settings=settings, progress=progress)

    @property
    def failure(self) -> str:
        """Why training failed, and which state the model has; empty if training succeeded."""
        return failure_of(self.metrics)

    def succeeded(self) -> Run:
        """This run; raises TrainingError if training failed."""
        if self.failure:
            raise TrainingError(self.failure)
        return self

    def __repr__(self) -> str:
        lines = [f"Run({self.recipe.name!r}, seed {self.seed}, {self.task.metric})"]
        lines += [f"  {self.failure}"] if self.failure else []
        for protocol, scores in self.metrics["scores"].items():
            if not scores:  # no set has known labels
                continue
            text = ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
            inputs = f"{protocol} labels as inputs" if self.takes_labels else "no labels as inputs"
            lines.append(f"  {'after the refit' if protocol == REFIT else inputs}: {text}")
        return "\n".join(lines + ([f"  stored in {self.folder}"] if self.folder else []))
