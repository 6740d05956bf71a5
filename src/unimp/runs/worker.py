"""A process that trains experiments for `runs.workers.Trainer`: python -m unimp.runs.worker.

It reads lines of JSON: first how to load the task, then one line per experiment. It answers each
line with {"error": text}, where an empty text means success, and reports epochs in between. It ends
when its input is closed; training then stores a checkpoint before.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any

import torch

from unimp.config.recipe import Recipe
from unimp.ensemble.folds import split_for
from unimp.errors import TaskError, UnimpError
from unimp.ops.allocator import keep_freed_memory
from unimp.runs.context import Experiment
from unimp.runs.experiment import run_seed
from unimp.runs.preparation import data_hash_of, member_task, task_of
from unimp.runs.workers import GRACE, train_or_resume
from unimp.tasks.task import Task
from unimp.training.interruption import signals_raised
from unimp.training.loop import Epoch


class Answers:
    """The lines that the other process reads."""

    def __init__(self) -> None:
        self.prefix = ""  # the first message contains it
        self._file = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)  # what libraries print must not mix with the answers

    def send(self, **values: Any) -> None:
        with suppress(OSError):  # the other process was killed, which `read_lines` notices
            self._file.write(self.prefix + json.dumps(values) + "\n")
            self._file.flush()

    def epoch(self, epoch: Epoch) -> None:
        self.send(epoch=[epoch.epoch, epoch.loss, epoch.seconds, epoch.scores])


def load(about: dict[str, Any]) -> tuple[Recipe, Task, int]:
    """Load the recipe of the ensemble, its task and its seed; refuse a task with another hash."""
    torch.set_num_threads(about["threads"])
    sys.argv = about["command"]  # the manifest of a run names the command
    recipe = Recipe.model_validate(about["recipe"])
    task = replace(task_of(recipe, about["seed"]), name=about["name"])
    if data_hash_of(recipe, task) != about["data_hash"]:
        raise TaskError(f"{recipe.task.name} contains other data than the task that was loaded")
    return recipe, task, about["seed"]


def work(lines: Queue[str], answers: Answers) -> None:
    """Load the task, then train one experiment per line."""
    loaded: tuple[Recipe, Task, int] | None = None
    device = "cpu"
    while True:
        message, error = json.loads(lines.get()), ""
        try:
            if loaded is None:
                answers.prefix = message["prefix"]
                device, loaded = message["device"], load(message)
            else:
                whole, task, seed = loaded
                recipe = Recipe.model_validate(message["recipe"])
                split = split_for(task, message["part"], whole.ensemble.folds, seed)
                experiment = Experiment(
                    recipe,
                    message["seed"],
                    device,
                    Path(message["folder"]),
                    prepared=member_task(whole, recipe, task, split),
                    part=message["part"],
                    on_epoch=answers.epoch,
                    show=False,
                    report=False,
                )
                train_or_resume(experiment, run_seed)
        except UnimpError as failure:
            error = str(failure)
        except Exception as failure:  # such as too little memory: others may still succeed
            error = f"{type(failure).__name__}: {failure}"
        answers.send(error=error)


def read_lines(lines: Queue[str]) -> None:
    """Pass lines on; when the input is closed, end this process."""
    for line in sys.stdin:
        lines.put(line)
    os.kill(os.getpid(), signal.SIGTERM)  # the main thread stores a checkpoint and ends
    time.sleep(GRACE)
    os._exit(1)


def main() -> None:
    keep_freed_memory()
    answers, lines = Answers(), Queue[str]()
    with suppress(KeyboardInterrupt), signals_raised():
        Thread(target=read_lines, args=(lines,), daemon=True).start()
        work(lines, answers)
    os._exit(0)


if __name__ == "__main__":
    main()
