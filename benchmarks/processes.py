"""Time training in one process and in two at once, with and without threads that spin.

    python benchmarks/processes.py
    python benchmarks/processes.py --ranks      two processes that train one model together

Every process uses all cores. OpenMP threads that wait for work spin by default, so that they take
the cores from the threads of the other process. The command `unimp` lets them sleep instead
(`OMP_WAIT_POLICY=passive`), unless the variable is set. The measurements alternate. Writes
results/processes.json.

With --ranks, one model is trained by one process and by two processes (`unimp train --devices`).
Each process has one thread, which also prepares its batches. One process and two processes take the
same steps. The comparison is made once with sampled neighbors and once with random parts. With
neighbors, the graph has eight times the size of arxiv: on a small graph, the two halves of a batch
have many neighbors in common, which both processes compute. Random parts have no nodes in common.
Two trainings with half of a step each, which run at the same time and never wait for each other,
show the largest speedup that is possible on the machine.
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
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from measure import FOLDER, Figures

POLICIES = {"spinning": {"OMP_WAIT_POLICY": None}, "sleeping": {"OMP_WAIT_POLICY": "passive"}}
NODES, EDGES = 1000, 6000


def train(epochs: int) -> None:
    """Train in this process when a line arrives, and print the seconds per epoch."""
    from unimp.data.synthetic import synthetic_task
    from unimp.runs.experiment import run

    task = synthetic_task(
        num_nodes=NODES,
        num_edges=EDGES,
        num_classes=5,
        num_features=16,
        feature_signal=1.0,
        homophily=0.7,
        split_shares=(0.5, 0.1, 0.4),
        seed=0,
    )
    settings = {"train.device": "cpu", "train.epochs": 3}
    run(task, settings=settings)
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.perf_counter()
    run(task, settings=settings | {"train.epochs": epochs})
    print((time.perf_counter() - began) / epochs, flush=True)


def seconds_per_epoch(policy: str, count: int, epochs: int) -> float:
    """The mean of processes that train at the same time."""
    environment = {**os.environ, **POLICIES[policy]}
    known = {name: value for name, value in environment.items() if value is not None}
    known.pop("OMP_NUM_THREADS", None)
    words = [sys.executable, __file__, "--train", str(epochs)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    children = [subprocess.Popen(words, env=known, **pipes) for _ in range(count)]
    for child in children:
        assert child.stdout.readline().strip() == "ready"
    for child in children:
        child.stdin.write("\n")
        child.stdin.flush()
    return statistics.mean(float(child.communicate()[0]) for child in children)


Settings = dict[str, str | float]

RANKS: Settings = {
    "task.name": "synthetic-arxiv",
    "mask.label_rate": 0.95,
    "model.layers": 2,
    "model.heads": 2,
    "model.width": 64,
    "batch.workers": 0,
    "train.device": "cpu",
    "train.draws": "node",
}


class RanksCase(NamedTuple):
    """A training that one process and two processes are compared on."""

    words: str
    settings: Settings
    half: Settings  # halves each step, so an epoch has twice as many steps


RANKS_CASES = {
    "neighbors": RanksCase(
        "1.4 million nodes, batches of 512 with sampled neighbors",
        {
            "task.scale": 8.0,
            "batch.regime": "neighbors",
            "batch.batch_size": 512,
            "batch.fanout": "[10]",
            "train.eval_neighbors": "sampled",
        },
        {"batch.batch_size": 256},
    ),
    "parts": RanksCase(
        "169,343 nodes, 16 random parts, two per step",
        {
            "task.scale": 1.0,
            "batch.regime": "partition",
            "batch.parts": 16,
            "batch.parts_per_step": 2,
        },
        {"batch.parts_per_step": 1},
    ),
}


def seconds_of_trainings(settings: Settings, epochs: int, *, ranks: int, at_once: int = 1) -> float:
    """The median seconds of epochs that are not scored; the first one includes the setup.

    at_once: the number of trainings that run at the same time and do not communicate.
    """
    settings = RANKS | settings | {"train.epochs": epochs, "train.eval_from": epochs}
    words = [sys.executable, "-m", "unimp", "train", "synthetic-arxiv", "--devices", str(ranks)]
    words += [f"--set={name}={value}" for name, value in settings.items()]
    environment, seconds = {**os.environ, "OMP_NUM_THREADS": "1"}, []
    with tempfile.TemporaryDirectory() as place:
        outs = [Path(place) / f"run-{number}" for number in range(at_once)]
        children = [
            subprocess.Popen([*words, "--out", out], env=environment, stdout=subprocess.DEVNULL)
            for out in outs
        ]
        codes = [child.wait() for child in children]
        if any(codes):
            raise SystemExit("a training failed; its message is above")
        for out in outs:
            lines = (out / "history.jsonl").read_text().splitlines()
            seconds += [json.loads(line)["seconds"] for line in lines[1:-1]]
    return statistics.median(seconds)


def compare_ranks(figures: Figures, cases: list[str], repeats: int, epochs: int) -> None:
    for name in cases:
        case = RANKS_CASES[name]
        ways: dict[str, Callable[[], float]] = {
            "one": lambda case=case: seconds_of_trainings(case.settings, epochs, ranks=1),
            "two": lambda case=case: seconds_of_trainings(case.settings, epochs, ranks=2),
            # Each training takes twice the steps, so half of its epoch compares with a step of two.
            "apart": lambda case=case: (
                seconds_of_trainings(case.settings | case.half, epochs, ranks=1, at_once=2) / 2
            ),
        }
        taken: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(repeats):
            for way, measure in ways.items():
                taken[way].append(measure())
        found = {way: statistics.median(times) for way, times in taken.items()}
        what = f"UniMP on {case.words}, one thread per process"
        figures.add(f"ranks_{name}_one", found["one"], f"{what}, one process, seconds per epoch")
        figures.add(f"ranks_{name}_two", found["two"], f"{what}, two processes, seconds per epoch")
        faster = f"{what}, speedup of two processes over one"
        figures.add(f"ranks_{name}_speedup", found["one"] / found["two"], faster, "≥ 1.7")
        limit = f"{what}, largest possible speedup"
        figures.add(f"ranks_{name}_limit", found["one"] / found["apart"], limit)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--epochs", type=int, help="default: 30, or 4 if --ranks is given")
    parser.add_argument("--ranks", action="store_true")
    parser.add_argument(
        "--cases",
        nargs="+",
        choices=list(RANKS_CASES),
        default=list(RANKS_CASES),
        help="With --ranks, measure only these cases. Default: all.",
    )
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--train", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(options.train)
        return
    if options.ranks:
        figures = Figures("processes", options.out)
        compare_ranks(figures, options.cases, options.repeats, options.epochs or 4)
        return
    options.epochs = options.epochs or 30
    cases = [(policy, count) for policy in POLICIES for count in (1, 2)]
    taken: dict[tuple[str, int], list[float]] = {case: [] for case in cases}
    for _ in range(options.repeats):
        for case in cases:
            taken[case].append(seconds_per_epoch(*case, options.epochs))
    found = {case: statistics.median(times) for case, times in taken.items()}
    figures = Figures("processes", options.out)
    what = f"UniMP on {NODES:,} nodes, all cores"
    for policy in POLICIES:
        one, two = found[policy, 1], found[policy, 2]
        figures.add(f"{policy}_one", one, f"{what}, threads {policy}, seconds per epoch")
        figures.add(
            f"{policy}_two",
            two / one,
            f"{what}, threads {policy}, two processes at once, relative to one",
            "≤ 2.5" if policy == "sleeping" else "",
        )
    figures.add(
        "sleeping_ratio",
        found["sleeping", 1] / found["spinning", 1],
        f"{what}, one process, sleeping relative to spinning threads",
    )


if __name__ == "__main__":
    main()
