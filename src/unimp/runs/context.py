"""The context of one experiment: what every step of a run needs to know."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import torch

from unimp.config.arguments import FilePath
from unimp.config.choices import Placement
from unimp.config.recipe import Recipe, Settings
from unimp.config.run_files import TASK, is_started, seed_folder
from unimp.data.catalog import prepare
from unimp.ensemble.folds import Part
from unimp.errors import RecipeError
from unimp.runs.folder.resume import Found, find_run, refuse_linked_seed
from unimp.runs.preparation import ModelFactory, data_hash_of, preparation, tables_of, task_of
from unimp.tasks.task import Task
from unimp.tracking.progress import Progress, show_progress
from unimp.tracking.trackers import Place, Trackers
from unimp.training.loop import Epoch
from unimp.training.ranks import ALONE, Ranks

if TYPE_CHECKING:
    from unimp.runs.run import Run


class RunOptions(TypedDict, total=False):
    """The options of `run` other than the seeds, for type checkers."""

    out: FilePath | None
    settings: Settings
    preset: str | None
    model: ModelFactory | None
    on_epoch: Callable[[Epoch], None]
    on_run: Callable[[Run], object]
    progress: bool | None
    log: Sequence[str]
    report: bool


@dataclass(frozen=True)
class Experiment:
    """One seed of a recipe, before and while it runs."""

    recipe: Recipe
    seed: int
    device: str
    folder: Path | None = None  # None: nothing is stored
    own_task: Task | None = None  # a task without a name: an object, or read from tables
    own_model: ModelFactory | None = None  # in place of the recipe's model
    prepared: Task | None = None  # of a member: the task, which the ensemble loaded and prepared
    on_epoch: Callable[[Epoch], None] = lambda epoch: None
    show: bool | None = None  # whether progress is shown; None: on a terminal or in a notebook
    log: Sequence[str] = ()
    report: bool = True
    part: Part = None  # the nodes that a member is trained on
    warn: bool = True  # log the warnings about tables; of several seeds, only the first does
    started: float = field(default_factory=time.perf_counter)
    placement: Placement | None = None  # of the graph from which batches are cut; None: not chosen
    ranks: Ranks = ALONE  # the processes that train together; only the first one writes
    progress: Progress = field(default_factory=Progress)
    trackers: Trackers | None = None

    def __post_init__(self) -> None:
        if isinstance(self.own_model, torch.nn.Module):
            raise RecipeError(
                "model is a module; pass a function that makes it, such as lambda sizes: "
                "MaskedLabels(module, sizes, width=…)"
            )

    def of_seed(self, seed: int) -> Experiment:
        """This experiment with another seed, stored in its own folder."""
        folder = None if self.folder is None else self.folder / seed_folder(seed)
        refuse_linked_seed(folder)
        return replace(self, seed=seed, folder=folder, warn=seed == self.seed)

    def of_member(
        self, recipe: Recipe, seed: int, folder: Path | None, task: Task, part: Part = None
    ) -> Experiment:
        """The experiment that trains one member of this ensemble on a prepared task."""
        return replace(
            self,
            recipe=recipe,
            seed=seed,
            folder=folder,
            own_task=None,
            prepared=task,
            part=part,
            show=False,
            log=(),
            report=False,
        )

    @property
    def is_member(self) -> bool:
        """Whether this experiment trains a member of an ensemble."""
        return self.prepared is not None

    @property
    def stored_recipe(self) -> Recipe:
        """The recipe as the folder stores it: a task without a name is stored beside it."""
        unnamed = self.own_task is not None or self.recipe.task.name == "tables"
        return self.recipe.with_task(self.folder / TASK) if unnamed and self.folder else self.recipe

    @property
    def output(self) -> Path | None:
        """The folder that this process writes to; None if it writes nothing."""
        return self.folder if self.ranks.is_first else None

    def found(self) -> Found:
        """What the folder contains of this run; refuses a folder with another run."""
        return find_run(self.folder, self.stored_recipe, self.seed)

    def with_tables(self) -> Experiment:
        """This experiment with the task read from its tables, if the recipe names tables."""
        loaded = self.own_task is not None or self.prepared is not None
        if loaded or self.recipe.task.name != "tables":
            return self
        return replace(self, own_task=tables_of(self.recipe, self.seed, warn=self.warn))

    def task(self) -> Task:
        """The task with its graph prepared as the recipe states."""
        if self.prepared is not None:
            return self.prepared
        if self.own_task is None:
            return task_of(self.recipe, self.seed)
        return prepare(self.own_task, **preparation(self.recipe))

    def data_hash(self, task: Task) -> str:
        """The hash of the data of its task, which a folder stores; empty without a folder."""
        return "" if self.folder is None else data_hash_of(self.recipe, task)

    def after_epoch(self, epoch: Epoch) -> None:
        """Show an epoch, track it, and hand it to the caller."""
        self.progress.epoch(epoch)
        if self.trackers is not None:
            self.trackers.epoch(epoch)
        self.on_epoch(epoch)

    def after_scores(self, metrics: Mapping[str, Any]) -> None:
        """Track the scores of the finished run."""
        if self.trackers is not None:
            self.trackers.scores(metrics)

    @contextmanager
    def watched(self) -> Iterator[Experiment]:
        """This experiment with its progress display and its trackers open."""
        resumed = self.folder is not None and is_started(self.folder)
        show = self.show if self.ranks.is_first else False
        with show_progress(self.recipe, self.seed, show) as progress:
            report = progress.note if progress.is_visible else warnings.warn
            place = Place(self.recipe, self.seed, self.folder, resumed, report)
            with Trackers(self.log if self.ranks.is_first else (), place) as trackers:
                yield replace(self, progress=progress, trackers=trackers)
