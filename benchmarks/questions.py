"""Time the commands that ask a trained run something, and where the time goes.

    python benchmarks/questions.py

The run is a model of the default size on a random graph with 22,470 nodes and 342,000 edges, half
of whose labels are known. `audit`, `suggest`, `explain`, `report`, `predict` and `evaluate` run in
processes of their own, in turns. The stages of a command: start (importing torch and this package),
data (reading the task and its hash), model (building it and reading its weights), compute, write.
The audit is also timed one label at a time over a sample, which is the plain loop that it must
equal. Writes results/questions.json.
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
from pathlib import Path
from typing import Any

from measure import FOLDER, Figures

STAGES = ("start", "data", "model", "compute", "write")
COMMANDS = {
    "audit": ["--reveal", "train", "--folds", "0", "--out", "audit.csv"],
    "suggest": ["--reveal", "train", "--out", "suggest.csv"],
    "explain": ["17", "--reveal", "train"],
    "report": [],
    "predict": ["--reveal", "train", "--out", "predictions.parquet"],
    "evaluate": [],
}
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


def ask(command: str, folder: Path) -> dict[str, float]:
    """Run a command in this process; the seconds of each stage."""
    began = time.perf_counter()
    from unimp.analysis.table import Table
    from unimp.cli import app
    from unimp.report import page
    from unimp.runs import loading
    from unimp.runs.reporting import write_report  # noqa: F401

    spent = {"start": time.perf_counter() - began}

    def timed(owner: Any, name: str, stage: str) -> None:
        call = getattr(owner, name)

        def wrapper(*words: Any, **options: Any) -> Any:
            started = time.perf_counter()
            try:
                return call(*words, **options)
            finally:
                spent[stage] = spent.get(stage, 0.0) + time.perf_counter() - started

        setattr(owner, name, wrapper)

    for name in ("check_task", "task_of", "data_hash_of"):
        timed(loading, name, "data")
    timed(loading, "_load", "load")
    timed(Table, "write", "write")
    timed(page, "page_html", "write")
    words = [command, str(folder), *COMMANDS[command]]
    started = time.perf_counter()
    app([*words, *(["--force"] if "--out" in words else [])], standalone_mode=False)
    whole = time.perf_counter() - started
    write = spent.get("write", 0.0)
    load, data = spent.get("load", 0.0), spent.get("data", 0.0)  # a report may load nothing
    return {
        "start": spent["start"],
        "data": data,
        "model": load - data,
        "compute": whole - load - write,
        "write": write,
    }


def one_by_one(folder: Path) -> dict[str, float]:
    """The time to hide all train labels, one at a time, estimated from a sample."""
    from unimp.inference.incremental.changes import Change
    from unimp.runs.loading import load_run

    run = load_run(folder)
    engine, train = run.incremental(run.observed_labels(reveal="train")), run.task.split.train
    began = time.perf_counter()
    for node in train[:: len(train) // SAMPLE].split(1):
        engine.after([Change.hide(node)], [node])
    return {"compute": (time.perf_counter() - began) / SAMPLE * len(train)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--ask", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ask:
        command, folder = options.ask[0], Path(options.ask[1])
        found = one_by_one(folder) if command == "one-by-one" else ask(command, folder)
        print(json.dumps(found))
        return
    figures = Figures("questions", options.out)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        train(folder)
        taken: dict[str, list[dict[str, float]]] = {n: [] for n in (*COMMANDS, "one-by-one")}
        for _ in range(options.repeats):
            for name, rounds in taken.items():
                words = [sys.executable, str(Path(__file__).resolve()), "--ask", name, str(folder)]
                environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
                done = subprocess.run(
                    words, env=environment, capture_output=True, text=True, check=True, cwd=place
                )
                rounds.append(json.loads(done.stdout.splitlines()[-1]))
    alone = statistics.median(times["compute"] for times in taken.pop("one-by-one"))
    size = "10,786 labels on 22,470 nodes"
    for name, rounds in taken.items():
        whole = statistics.median(sum(times.values()) for times in rounds)
        what = f"{name} of {size}" if name == "audit" else name
        aim = "≤ 6" if name == "audit" else ""
        figures.add(f"{name}_whole", whole, f"{what}, whole command, seconds", aim)
        for stage in STAGES:
            value = statistics.median(times[stage] for times in rounds)
            figures.add(f"{name}_{stage}", value, f"{name}, {stage}, seconds")
    figures.add(
        "audit_speedup",
        alone / figures.found["audit_compute"]["value"],
        f"audit of {size}, compute, speedup over one label at a time",
    )


if __name__ == "__main__":
    main()
