"""`python -m unimp.serving.trainer RUN OUT [EPOCHS]`: train again on the labels of the service.

The task is that of the run with all stored events. Of the nodes that events labeled, every fifth is
for validation and the others are for training. The gate compares the new model with the run on the
validation nodes, whose labels neither of them sees.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from unimp.config.run_files import GATE
from unimp.data.files import write_atomically
from unimp.errors import UnimpError
from unimp.runs.experiment import run as train
from unimp.runs.loading import load_run
from unimp.runs.run import Run
from unimp.serving.engine.applied import Applied
from unimp.serving.reader import Reader
from unimp.tasks.labels import Split, is_known
from unimp.tasks.task import Task

WORSE = 0.005
"""A new model is refused if its validation score is lower by more than this."""
ONE_IN = 5
"""One of so many new labels is for validation."""
KEPT = ("model", "train", "mask", "batch", "inference", "smooth", "ensemble")
"""The sections of the run's recipe that also apply to the new model."""


def task_now(applied: Applied) -> Task:
    """The task of the run with all events: new labels, nodes and edges."""
    task, old = applied.task, applied.run.task.split
    decided = [applied.numbers[name] for name, current in applied.labels.items() if current.version]
    labels = task.labels.clone()
    changed = torch.tensor(sorted(decided), dtype=torch.int64)
    labels[changed] = applied.observed[changed]
    known = is_known(labels)
    fresh = changed[known[changed] & ~torch.isin(changed, torch.cat((old.train, old.val)))]
    for_val = torch.arange(len(fresh)) % ONE_IN == ONE_IN - 1

    def joined(given: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
        return torch.cat((given[known[given]], more)).sort().values

    test = old.test[known[old.test] & ~torch.isin(old.test, changed)]
    split = Split(joined(old.train, fresh[~for_val]), joined(old.val, fresh[for_val]), test)
    return replace(task, labels=labels, split=split)


def gate(old: Run, new: Run) -> tuple[bool, dict[str, str]]:
    """Whether the new model may replace the old one, and the result of each check in words."""
    checks = {"finite": "all scores are finite"}  # training refuses others
    scores = new.metrics["scores"].get("train", {})
    found = scores.get("val")
    if new.failure:
        return False, {"training": new.failure}
    if found is None or found != found:
        return True, {**checks, "validation": "there are no validation labels to compare by"}
    before = replace(old, task=new.task).evaluate("train")["val"]
    words = f"{found:.4f}, and {before:.4f} before, on {len(new.task.split.val):,} nodes"
    checks["validation"] = words
    return found >= before - WORSE, checks


def end_with_the_front() -> None:
    """End this process when its input ends, because nobody would use the new model."""
    sys.stdin.buffer.read()
    os._exit(1)


def main() -> None:
    """Train, and write the result of the gate beside the new run."""
    threading.Thread(target=end_with_the_front, daemon=True).start()
    if hasattr(os, "nice"):
        os.nice(10)
    folder, out, *more = sys.argv[1:]
    old = load_run(folder)
    with Reader(Path(folder)) as reader:
        applied = Applied(old, reader)
        applied.apply()
    task = task_now(applied)
    settings: dict[str, Any] = {
        name: value
        for name, value in old.recipe.settings().items()
        if name.partition(".")[0] in KEPT
    }
    settings["task.structure"] = old.recipe.task.structure
    if more:
        settings["train.epochs"] = int(more[0])
    new = train(task, settings=settings, seed=old.seed, out=Path(out), progress=False)
    accepted, checks = gate(old, new)
    result = {"accepted": accepted, "checks": checks, "version": applied.version}
    write_atomically(Path(out) / GATE, json.dumps(result).encode())


if __name__ == "__main__":
    try:
        main()
    except UnimpError as error:
        sys.exit(str(error))
