"""Train with several processes, and check that they train as one does.

python proofs/ranks.py                              50 tasks, 50 kills → results/ranks.json
python proofs/ranks.py --tasks 4 --kills 2          a short form; 0 leaves a part as it is

equality   random tasks (all regimes, batches with fewer seeds than processes, classes without
           a train label, dropout, attention dropout, propagated labels, left-out edges) in
           double precision, on 1, 2 and 4 processes that talk over gloo: the weights after
           every step
twice      the same number of processes again: the same bits
leaks      the hidden labels are changed: the same bits; all processes draw the same masks
kills      `unimp train --devices` loses a random process (SIGKILL) at a random moment; the
           weights must be those of an uninterrupted training, bit by bit
stopped    a process is stopped (SIGSTOP) while it trains, or while it scores the model: the others
           report it, and all processes start again
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unimp import __version__
from unimp.config.options import BatchOptions
from unimp.config.run_files import CHECKPOINT, WEIGHTS
from unimp.data.files import write_atomically
from unimp.data.synthetic import synthetic_task
from unimp.model.unimp import UniMP
from unimp.tasks.task import Task
from unimp.tracking.origin import code_origin
from unimp.training.batching import BatchChanges, make_batches
from unimp.training.changed_batches import FewerEdges
from unimp.training.loop import Schedule, fit
from unimp.training.masks import Masks
from unimp.training.ranks import Ranks, join_ranks
from unimp.training.started import RENDEZVOUS

RESULTS = Path(__file__).parent / "results" / "ranks.json"
SIZES = (1, 2, 4)
LIMIT_OF_DIFFERENCE = 1e-9
"""The largest difference of the weights after a step, relative to their norm."""


def random_task(number: int, *, changed: bool) -> tuple[Task, dict[str, Any], random.Random]:
    """A task in double precision and its regime; with `changed`, other hidden labels."""
    draw = random.Random(number)
    nodes = draw.randrange(40, 160)
    task = synthetic_task(
        num_nodes=nodes,
        num_edges=draw.randrange(nodes, nodes * (nodes - 1) // 8),
        num_classes=draw.randrange(2, 7),
        num_features=draw.randrange(2, 9),  # the LayerNorm of a single feature is constant
        edge_features=draw.choice((0, 2)),
        split_shares=(draw.choice((0.1, 0.3, 0.6)), 0.2, 0.2),
        seed=number,
    )
    labels = task.labels.clone()
    train = task.split.train
    if number % 5 == 0 and bool((labels[train] != 0).any()):  # a class without a train label
        labels[train[labels[train] == 0]] = 1
    if changed:
        hidden = torch.cat((task.split.val, task.split.test))
        labels[hidden] = (labels[hidden] + 1) % task.num_classes
    graph = task.graph
    attr = None if graph.edge_attr is None else graph.edge_attr.double()
    x = None if graph.x is None else graph.x.double()
    regime: dict[str, Any] = draw.choice(
        (
            {"regime": "full"},
            {"regime": "partition", "parts": draw.randrange(4, 9), "parts_per_step": 4},
            {"regime": "neighbors", "fanout": [draw.choice((1, 3, -1))], "batch_size": 3},
            {"regime": "neighbors", "fanout": [2, 5], "batch_size": draw.randrange(8, 40)},
        )
    )
    return replace(task, graph=replace(graph, x=x, edge_attr=attr), labels=labels), regime, draw


def random_model(draw: random.Random) -> dict[str, Any]:
    """The options of the model of a random task."""
    return {
        "layers": 2,
        "width": draw.choice((3, 8)),
        "heads": draw.choice((1, 2)),
        "dropout": draw.choice((0.0, 0.3, 0.6)),
        "attention_dropout": draw.choice((0.0, 0.4)),
        "propagated_labels": draw.random() < 0.5,
    }


def weights_of_steps(number: int, ranks: Ranks, *, changed: bool = False) -> Tensor:
    """The weights after each step of a random task: [steps, parameters]."""
    task, regime, draw = random_task(number, changed=changed)
    torch.manual_seed(number)
    model = UniMP(task.sizes, **random_model(draw)).double()
    known = torch.zeros(task.graph.num_nodes, dtype=torch.bool)
    known[task.split.train] = True
    masks = Masks(
        known, 0.5, redraw=draw.choice(("epoch", "step", "run")), seed=number, wrong_labels=0.1
    )
    for moment in ((1, 0), (1, 1), (2, 0), (3, 1)):
        drawn = hashlib.sha256(masks.at(*moment).hidden.numpy().tobytes()).digest()
        assert ranks.are_equal(int.from_bytes(drawn[:7], "big")), "the masks differ"
    batches = make_batches(
        task.graph,
        task.labels,
        masks,
        BatchOptions(prune=False, **regime),
        num_layers=2,
        changes=BatchChanges(
            feature_drop=draw.choice((0.0, 0.2)),
            propagate=model.propagated if model.takes_propagated_labels else None,
            drawn_per_node=True,
        ),
        ranks=ranks,
    )
    if draw.random() < 0.3:
        batches = FewerEdges(batches, 0.3, number)
    found: list[Tensor] = []

    def keep(state: Callable[[], Any], ended: bool) -> None:
        found.append(torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone())

    # Without weight decay: the bias of keys has no effect, so its gradient is a rounding error,
    # which Adam would amplify by lr · decay / ε in each step.
    options = {"lr": 0.01, "weight_decay": 0.0, "evaluate": lambda: {"val": 0.5}}
    fit(model, batches, task.labels, Schedule(3), keep=keep, ranks=ranks, **options)
    return torch.stack(found)


def work(count: int, folder: Path) -> None:
    """One process: train every task, twice, and once with other hidden labels."""
    torch.set_num_threads(1)
    ranks = join_ranks("cpu", 300.0)
    for number in range(count):
        first = weights_of_steps(number, ranks)
        again = weights_of_steps(number, ranks)
        other = weights_of_steps(number, ranks, changed=True)
        same = {"twice": torch.equal(first, again), "leak": not torch.equal(first, other)}
        assert ranks.are_equal(2 * same["twice"] + same["leak"]), "the processes differ"
        if ranks.is_first:
            np.savez(folder / f"{number}.npz", weights=first.numpy(), **same)


def start(arguments: list[str], rank: int, size: int, place: Path) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        RENDEZVOUS: str(place / "rendezvous"),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    return subprocess.Popen([sys.executable, __file__, *arguments], env=environment)


def equality(count: int, place: Path) -> dict[str, Any]:
    folders = {}
    for size in SIZES:
        folder = folders[size] = place / f"ranks-{size}"
        folder.mkdir()
        arguments = ["--work", str(folder), "--tasks", str(count)]
        processes = [start(arguments, rank, size, folder) for rank in range(size)]
        assert all(process.wait() == 0 for process in processes), "a process failed"
    worst, twice, leaks, steps = 0.0, 0, 0, 0
    regimes: dict[str, int] = {}
    dropped: dict[str, int] = {}
    for number in range(count):
        stored = {size: np.load(folders[size] / f"{number}.npz") for size in SIZES}
        alone = stored[1]["weights"]
        steps += len(alone)
        _, regime, draw = random_task(number, changed=False)
        name = regime["regime"]
        regimes[name] = regimes.get(name, 0) + 1
        dropped[name] = dropped.get(name, 0) + bool(random_model(draw)["attention_dropout"])
        for size in SIZES:
            weights = stored[size]["weights"]
            assert weights.shape == alone.shape, "another number of steps"
            difference = np.linalg.norm(weights - alone, axis=1) / np.linalg.norm(alone, axis=1)
            worst = max(worst, float(difference.max()))
            twice += bool(stored[size]["twice"])
            leaks += bool(stored[size]["leak"])
    trainings = count * len(SIZES)
    assert worst <= LIMIT_OF_DIFFERENCE, f"the weights differ by {worst}"
    assert (twice, leaks) == (trainings, 0), (
        "a repeated training had other weights, or hidden labels changed the weights"
    )
    return {
        "tasks": count,
        "regimes": regimes,
        "with_attention_dropout": dropped,
        "processes": list(SIZES),
        "steps": steps,
        "largest_relative_difference": worst,
        "trainings": trainings,
        "same_bits_twice": twice,
        "leaks": leaks,
    }


OPTIONS = {
    "task.scale": 0.05,
    "model.width": 16,
    "batch.regime": "neighbors",
    "batch.batch_size": 8,
    "train.epochs": 12,
    "train.eval_every": 4,
    "train.device": "cpu",
    "train.checkpoint_every": 0.2,
}


def command(folder: Path, size: int, **more: Any) -> subprocess.Popen[str]:
    arguments = ["train", "synthetic", "--out", str(folder), "--devices", str(size)]
    for name, value in {**OPTIONS, **more}.items():
        arguments += ["--set", f"{name}={value}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder.parent)}
    return subprocess.Popen(
        [sys.executable, "-m", "unimp", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ranks_of(process: subprocess.Popen[str]) -> list[int]:
    """The numbers of the processes of a command, by rank."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return sorted(map(int, children))


def finished(process: subprocess.Popen[str], folder: Path) -> tuple[str, str]:
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest(), err


def kills(count: int, place: Path) -> dict[str, Any]:
    draw, expected, took = random.Random(0), {}, {}
    for size in (2, 4):
        began = time.monotonic()
        folder = place / f"whole-{size}"
        expected[size] = finished(command(folder, size), folder)[0]
        took[size] = time.monotonic() - began
    equal, restarted, of_rank = 0, 0, {}
    for number in range(count):
        size = draw.choice((2, 2, 4))
        folder = place / f"killed-{number}"
        process = command(folder, size)
        time.sleep(draw.uniform(0.3, 0.9) * took[size])
        rank = draw.randrange(size)
        with suppress(OSError, IndexError):  # it may just have ended
            os.kill(ranks_of(process)[rank], signal.SIGKILL)
            of_rank[rank] = of_rank.get(rank, 0) + 1
        found, err = finished(process, folder)
        equal += found == expected[size]
        restarted += "start again" in err
    assert equal == count, f"{count - equal} trainings ended with other weights"
    return {
        "trainings": count,
        "kills": sum(of_rank.values()),
        "of_rank": of_rank,
        "equal": equal,
        "restarted": restarted,
    }


LIMIT = 5
"""Seconds after which a process that does not answer is considered lost."""
STOPPED = {
    "trains": (1, {"train.eval_from": 12}),  # only the last epoch is scored
    "scores": (
        0,
        {
            "batch.batch_size": 100_000,  # one step per epoch, after which a checkpoint is stored
            "train.checkpoint_every": 0,
            "train.eval_every": 1,
            "inference.chunk_edges": 1,  # scoring takes far longer than a step
        },
    ),
}
"""What the stopped process is doing: its rank, and the options of the training."""


def problem_of_second(process: subprocess.Popen[str], place: Path) -> str:
    """Wait until the second process ends with an error, and return the message in its file."""
    until = time.monotonic() + 20 * LIMIT
    while process.poll() is None and time.monotonic() < until:
        for path in place.glob("unimp-*/process-1.txt"):
            with suppress(FileNotFoundError):  # all processes may just have ended
                text = " ".join(path.read_text("utf-8").split())
                if "did not answer" in text:
                    return text
        time.sleep(0.1)
    raise AssertionError("the second process did not notice that the first one was stopped")


def stopped(place: Path) -> dict[str, Any]:
    cases = {}
    for name, (rank, options) in STOPPED.items():
        options = {**options, "train.rank_timeout": LIMIT}
        whole, folder = place / f"whole-{name}", place / f"stopped-{name}"
        expected, _ = finished(command(whole, 2, **options), whole)
        process = command(folder, 2, **options)
        while not (folder / CHECKPOINT).exists():
            time.sleep(0.02)
        time.sleep(0.1)  # the first process now scores the model, if it scores every epoch
        lost = ranks_of(process)[rank]
        os.kill(lost, signal.SIGSTOP)
        began = time.monotonic()
        try:
            problem = "" if rank else problem_of_second(process, place)
            found, err = finished(process, folder)
        finally:
            process.kill()  # it has no effect on a process that has ended
            with suppress(ProcessLookupError):
                os.kill(lost, signal.SIGKILL)
        message = problem or next(line for line in err.splitlines() if "did not answer" in line)
        cases[name] = {
            "rank": rank,
            "seconds_to_the_end": round(time.monotonic() - began, 1),
            "equal": found == expected,
            "message": message[:300],
        }
    assert all(case["equal"] for case in cases.values()), "other weights"
    # The second process waits for the scores, and not for gradients.
    assert "could not share a value" in cases["scores"]["message"]
    return {"timeout_s": LIMIT, "cases": cases}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=50)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.work:
        work(options.tasks, options.work)
        return
    with tempfile.TemporaryDirectory(prefix="unimp-") as name:
        origin = {
            "command": f"python proofs/ranks.py --tasks {options.tasks} --kills {options.kills}",
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "torch": torch.__version__,
            "unimp": __version__,
            "code": code_origin(),
        }
        result = json.loads(options.out.read_text("utf-8")) if options.out.exists() else {}
        if options.tasks:
            result["equality"] = {**equality(options.tasks, Path(name)), **origin}
        if options.kills:
            result["kills"] = {**kills(options.kills, Path(name)), **origin}
            result["stopped"] = {**stopped(Path(name)), **origin}
    print(json.dumps(result, indent=1))
    write_atomically(options.out, (json.dumps(result, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
