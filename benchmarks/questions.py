"""Time `audit`, `suggest`, `explain` and `report` from start to end, and where the time goes.

    python benchmarks/questions.py

The run is a model of the default size on a random graph with 22,470 nodes and 342,000 edges, half
of whose labels are known. Each question runs in a process of its own. Its stages: start (importing
torch and this package), read (the run folder), answer, write. The audit is also timed one label at
a time over a sample, which is the plain loop that it must equal. Writes results/questions.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from measure import FOLDER, Figures

STAGES = ("start", "read", "answer", "write")
SAMPLE = 100
"""Labels that are hidden one at a time for comparison."""


def train(folder: Path) -> None:
    """Write the folder of a run that was trained for two epochs."""
    from unimp.data.synthetic import synthetic_task
    from unimp.runs.experiment import run

    task = synthetic_task(
        num_nodes=22_470,
        num_edges=171_000,
        num_classes=4,
        num_features=128,
        feature_signal=1.0,
        homophily=0.8,
        split_shares=(0.48, 0.12, 0.4),
        seed=0,
    )
    settings = {"train.device": "cpu", "train.epochs": 2}
    run(task, out=folder, settings=settings, report=False)


def ask(question: str, folder: Path) -> dict[str, float]:
    """Ask one question as its command does; seconds of each stage."""
    moments = [time.perf_counter()]
    from unimp.runs.loading import load_run
    from unimp.runs.reporting import write_comparison

    moments.append(time.perf_counter())
    out = folder.parent / question
    if question == "report":
        moments.append(time.perf_counter())
        write_comparison([folder], out.with_suffix(".html"), force=True)
        moments += [time.perf_counter()] * 2
        return _stages(moments)
    run = load_run(folder)
    moments.append(time.perf_counter())
    if question == "explain":
        found: Any = run.explain(str(int(run.task.split.test[0])), reveal="train")
    elif question == "suggest":
        found = run.suggest(reveal="train")
    elif question == "audit":
        found = run.audit(reveal="train", folds=0)
    else:
        return {"answer": _one_by_one(run)}
    moments.append(time.perf_counter())
    if question == "explain":
        out.with_suffix(".json").write_text(json.dumps(found.to_dict()), encoding="utf-8")
    else:
        found.write(out.with_suffix(".csv"), force=True)
    moments.append(time.perf_counter())
    return _stages(moments)


def _one_by_one(run: Any) -> float:
    """The time to hide all train labels, one at a time, estimated from a sample."""
    from unimp.inference.incremental.changes import Change

    engine, train = run.incremental(run.observed_labels(reveal="train")), run.task.split.train
    began = time.perf_counter()
    for node in train[:: len(train) // SAMPLE].split(1):
        engine.after([Change.hide(node)], [node])
    return (time.perf_counter() - began) / SAMPLE * len(train)


def _stages(moments: list[float]) -> dict[str, float]:
    taken = (after - before for before, after in pairwise(moments))
    return dict(zip(STAGES, taken, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--ask", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ask:
        print(json.dumps(ask(options.ask[0], Path(options.ask[1]))))
        return
    figures = Figures("questions", options.out)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        train(folder)
        names = ("audit", "suggest", "explain", "report", "one by one")
        taken: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for _ in range(options.repeats):
            for name in names:
                words = [sys.executable, __file__, "--ask", name, str(folder)]
                given = {"capture_output": True, "text": True, "check": True}
                environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
                done = subprocess.run(words, env=environment, **given)
                taken[name].append(json.loads(done.stdout))
    alone = statistics.median(times["answer"] for times in taken.pop("one by one"))
    size = "10,786 labels on 22,470 nodes"
    for name, rounds in taken.items():
        for stage in STAGES:
            value = statistics.median(times[stage] for times in rounds)
            what = f"{name}, {stage}, seconds"
            aim = ""
            if (name, stage) == ("audit", "answer"):
                what, aim = f"{name} of {size}, {stage}, seconds", "≤ 6"
            figures.add(f"{name}_{stage}", value, what, aim)
    answer = figures.found["audit_answer"]["value"]
    figures.add(
        "audit_speedup", alone / answer, f"audit of {size}, speedup over one label at a time"
    )


if __name__ == "__main__":
    main()
