"""`python -m unimp.serving.trainer RUN OUT AGAINST [EPOCHS]`: train on the labels of the service.

The task is that of the run with all stored events. The last live labels are held out: neither the
new model nor the active one, AGAINST, was trained on them, so the gate can compare both on them. Of
the other new labels, every fifth is for validation and the others are for training.

The command is resumable. The plan and the task are stored before training starts, so that a
repeated command continues with the same labels, whatever was stored since. It stops when its
standard input is closed, so that it does not outlive the service.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unimp.config.recipe import Recipe
from unimp.config.run_files import GATE, GENERATIONS, PLAN, TASK
from unimp.data.catalog import load_task
from unimp.data.files import write_atomically
from unimp.errors import RunError, UnimpError
from unimp.runs.experiment import run as train
from unimp.runs.folder.files import read_run
from unimp.runs.folder.lock import in_use
from unimp.runs.run import Run
from unimp.runs.teacher import answers_hash
from unimp.serving.engine.applied import Applied
from unimp.serving.engine.process import load_with_split
from unimp.serving.gate import Check, compare
from unimp.serving.reader import Reader
from unimp.tasks.labels import Split, is_known
from unimp.tasks.task import Task
from unimp.training.interruption import exit_code, signals_raised

LIVE = 500
"""The last live labels that are held out, but at most half of all live labels."""
ONE_IN = 5
"""Of the other new labels, one in this number is for validation."""
KEPT = ("model", "train", "mask", "batch", "inference", "smooth", "ensemble")
"""The sections of the run's recipe that also apply to the new model."""
LOCKED = 60.0
"""Seconds to wait for the end of an earlier trainer of the same folder."""


@dataclass(frozen=True)
class Plan:
    """What a training is based on. held: the numbers of nodes whose labels are held out."""

    version: int
    held: tuple[int, ...]


def task_now(applied: Applied, old: Split, *, refitted: bool) -> tuple[Task, Tensor]:
    """The task of the run with all events, and the nodes whose labels are held out.

    old: the split of the active model. refitted: its validation labels are train labels by now, and
    only its scores from before can be compared, so the validation nodes must stay the same.
    """
    task = applied.task
    decided = {applied.numbers[n]: now for n, now in applied.labels.items() if now.version}
    order = sorted(decided, key=lambda number: decided[number].version)
    changed = torch.tensor(order, dtype=torch.int64)
    labels = task.labels.clone()
    labels[changed] = applied.observed[changed]
    known = is_known(labels)
    fresh = changed[known[changed] & ~torch.isin(changed, torch.cat((old.train, old.val)))]
    count = len(fresh) - min(LIVE, len(fresh) // 2)
    rest, held = fresh[:count], fresh[count:]
    for_val = torch.arange(len(rest)) % ONE_IN == ONE_IN - 1
    if refitted:
        for_val[:] = False

    def joined(given: Tensor, more: Tensor) -> Tensor:
        return torch.cat((given[known[given]], more)).sort().values

    test = old.test[known[old.test] & ~torch.isin(old.test, changed)]
    split = Split(joined(old.train, rest[~for_val]), joined(old.val, rest[for_val]), test)
    groups = applied.run.task.groups
    if groups is not None:  # each new node is a group of its own
        more = torch.arange(len(labels) - len(groups)) + int(groups.max()) + 1
        groups = torch.cat((groups, more))
    return replace(task, labels=labels, split=split, groups=groups), held.sort().values


def planned(folder: Path, out: Path, old: Run, split: Split) -> tuple[Plan, Task]:
    """The plan and the task of a training: stored ones, or new ones from all events."""
    path = out.with_name(f"{out.name}.{PLAN}")
    # Until the teacher of a student is trained, only the teacher's folder contains the task.
    tasks = [where / TASK for where in (out, teacher_folder(out)) if (where / TASK).exists()]
    if path.exists() and tasks:
        stored = json.loads(path.read_text(encoding="utf-8"))
        task = replace(load_task(str(tasks[0])), name=old.task.name)
        return Plan(stored["version"], tuple(stored["held"])), task
    with Reader(folder) as reader:
        applied = Applied(old, reader)
        applied.apply()
    task, held = task_now(applied, split, refitted=old.is_refitted)
    plan = Plan(applied.version, tuple(held.tolist()))
    write_atomically(path, json.dumps(asdict(plan)).encode())
    return plan, task


def teacher_folder(out: Path) -> Path:
    """The folder of the teacher of a student that is trained in `out`."""
    return out.with_name(f"{out.name}-teacher")


def settings_of(recipe: Recipe, epochs: int | None) -> dict[str, Any]:
    """The settings of a recipe for a task whose graph is prepared already."""
    settings: dict[str, Any] = {
        name: value for name, value in recipe.settings().items() if name.partition(".")[0] in KEPT
    }
    settings["task.structure"] = recipe.task.structure
    if epochs is not None:
        settings["train.epochs"] = epochs
    return settings


def with_teacher(settings: dict[str, Any], task: Task, out: Path, epochs: int | None) -> None:
    """Train the teacher of a student on the new labels first; without its run, use labels alone."""
    teacher = Path(settings["train.teacher"])
    settings |= {"train.teacher": "", "train.teacher_sha256": ""}
    try:
        recipe, _, manifest = read_run(teacher)
    except RunError:
        return
    folder, seed = teacher_folder(out).resolve(), manifest["seed"]
    again = settings_of(recipe, epochs)
    train(task, settings=again, seed=seed, out=folder, progress=False, report=False)
    settings |= {"train.teacher": str(folder), "train.teacher_sha256": answers_hash(folder)}


def compare_unlearned(old: Run, new: Run, held: Tensor, learned: Split) -> list[Check]:
    """Compare two models on labels that neither was trained on.

    learned: the split of the old model, which may be another one than when the training started.
    """
    split = new.task.split
    val = split.val[~torch.isin(split.val, learned.train)]
    task = replace(new.task, split=Split(split.train, val, split.test))
    held = held[~torch.isin(held, torch.cat((learned.train, learned.val)))]
    return compare(old, replace(new, task=task), held)


def retrain(folder: Path, out: Path, against: int, epochs: int | None = None) -> dict[str, Any]:
    """Train a model without held-out labels, compare it with the active one, store the result."""
    active = folder / GENERATIONS / str(against) if against else None
    old, split = load_with_split(folder, active)
    plan, task = planned(folder, out, old, split)
    settings = settings_of(old.recipe, epochs)
    if settings["ensemble.portfolio"] != "none":
        settings["ensemble.refit"] = "always" if old.is_refitted else "never"
    if settings["train.teacher"]:
        with_teacher(settings, task, out, epochs)
    new = train(task, settings=settings, seed=old.seed, out=out, progress=False)
    checks = compare_unlearned(old, new, torch.tensor(plan.held, dtype=torch.int64), split)
    result = {
        "accepted": all(check.passed for check in checks),
        "checks": [check.plain() for check in checks],
        "version": plan.version,
        "against": against,
    }
    write_atomically(out / GATE, json.dumps(result).encode())
    return result


def _stop_with_the_service() -> None:
    """End this process when its standard input is closed."""

    def watch() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Train at a low priority, and print an error in one line."""
    if hasattr(os, "nice"):
        os.nice(10)
    folder, out, against, *more = sys.argv[1:]
    try:
        with signals_raised():
            _stop_with_the_service()
            end = time.monotonic() + LOCKED
            folders = (Path(out), teacher_folder(Path(out)))
            while any(map(in_use, folders)) and time.monotonic() < end:
                time.sleep(0.1)
            retrain(Path(folder), Path(out), int(against), int(more[0]) if more else None)
    except KeyboardInterrupt as stop:
        sys.exit(exit_code(stop))
    except UnimpError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
