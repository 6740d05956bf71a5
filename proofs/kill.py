"""Kill commands at random moments, repeat them, and compare the bytes with an uninterrupted run.

    python proofs/kill.py                      201 kills in each regime → proofs/results/kill.json
    python proofs/kill.py --kills 1 --aimed 0 --others 1    a short form

Each command is a separate process, killed (SIGKILL) at a random moment between its start and its
end. Training (`unimp train … --out DIR`, with one seed and with two, and of ensembles) and `unimp
reproduce` are killed at any moment after they locked a folder, also while they score or write. A
few more kills are aimed at the writing of a checkpoint and of the last files. The same command then
resumes, and must write the weights, predictions, history and tables of an uninterrupted command,
byte for byte (the history without its seconds). Only the command is killed: the worker processes of
`train-workers` must end by themselves.

Every other command that writes a file is killed too. After the kill the run must be unchanged, and
the file that the command writes must be absent or complete. The same command must then write the
file of an uninterrupted command, byte for byte (pages without the seconds that they print).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import platform
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet  # noqa: F401
import rich.live  # noqa: F401
import sklearn.metrics  # noqa: F401
import torch
import torch._dynamo

from unimp import __version__
from unimp.cli import main as main_of_unimp
from unimp.data.files import write_atomically
from unimp.tracking.origin import code_origin

# Processes are forked from this one, which does not train: imports would take longer than a run.
FORKS = multiprocessing.get_context("fork")
Process = multiprocessing.process.BaseProcess
RESULTS = Path(__file__).parent / "results" / "kill.json"
SETTINGS = [
    "task.scale=0.1",
    "model.width=16",
    "train.eval_every=5",
    "train.lr=0.01",
    "train.patience=30",
    "train.device=cpu",
    "train.checkpoint_every=1e-9",
]
REGIMES = {
    "full": ["batch.regime=full", "train.epochs=80"],
    "partition": ["batch.regime=partition", "batch.parts=4", "train.epochs=40"],
    "neighbors": [
        "batch.regime=neighbors",
        "batch.batch_size=10",
        "batch.fanout=[5]",
        "mask.redraw=step",
        "train.epochs=20",
    ],
}
AIMS = (".checkpoint.safetensors.", ".predictions.parquet.", ".checkpoint.safetensors.", "manifest")
TEMPORARY = "."  # every file is written under a temporary name that begins with a dot
BYTES = ("model.safetensors", "predictions.parquet", "results.md")
# Commands that train, and that resume when they are repeated.
RESUMED = {
    "train": "train synthetic --out run",
    "train-seeds": "train synthetic --seeds 0-1 --out run",
    "reproduce": "reproduce table-5 --task synthetic --seeds 0-1 --out run",
    "train-ensemble": "train synthetic --set=ensemble.portfolio=good --out run "
    '--set=ensemble.members=["label-propagation","ridge","mlp"]',
    "train-workers": "train synthetic --set=ensemble.portfolio=good --set=ensemble.jobs=2 "
    '--out run --set=ensemble.members=["label-propagation","gcn","mlp"]',
}
# Commands that do not train. Each works in a folder that contains the run `run` and two tables,
# and writes files into `out`, or pages into the run.
OTHERS = {
    "predict": "predict run --out out/predictions.csv",
    "audit": "audit run --out out/audit.csv",
    "suggest": "suggest run --out out/suggestions.csv",
    "explain": "explain run 3 --report out/explanation.html",
    "report": "report run --out out/report.html",
    "export": "data export california --out out/tables",
    "init": "init nodes.csv edges.csv --out out/recipe.toml",
}
REPEATED = (*tuple(RESUMED)[1:], *OTHERS)  # every command other than `train`


@dataclass(frozen=True)
class Kill:
    """One process to kill: what it runs, and when it is killed."""

    regime: str
    command: str  # a key of RESUMED or of OTHERS
    seed: int  # of the random moment
    aim: str = ""  # kill as soon as a file whose name begins with it exists


def unimp(arguments: list[str], folder: Path) -> None:
    """Run a command of unimp in `folder` without output, in a child process."""
    os.chdir(folder)
    sys.argv = ["unimp", *arguments]
    with (
        Path(os.devnull).open("w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        main_of_unimp()


def begin(arguments: list[str], folder: Path) -> Process:
    process = FORKS.Process(target=unimp, args=(arguments, folder))
    process.start()
    return process


def finish(process: Process) -> None:
    process.join()
    if process.exitcode != 0:
        raise SystemExit(f"A command ended with exit code {process.exitcode}.")


def arguments_of(kill: Kill, settings: list[str]) -> list[str]:
    if kill.command in OTHERS:
        return OTHERS[kill.command].split()
    chosen = (*SETTINGS, *REGIMES[kill.regime], *settings)
    return [*RESUMED[kill.command].split(), *(f"--set={setting}" for setting in chosen)]


def wait_for_lock(process: Process, folder: Path) -> float:
    """The time when the process locked its folder, or a folder in it."""
    while process.is_alive() and not any(folder.rglob(".lock")):
        time.sleep(0.001)
    return time.perf_counter()


def results_in(folder: Path) -> dict[str, bytes | list[Any]]:
    """The results of training that must not depend on a kill."""
    kept: dict[str, bytes | list[Any]] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.name in BYTES:
            kept[name] = path.read_bytes()
        elif path.name == "history.jsonl":
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            kept[name] = [{k: v for k, v in line.items() if k != "seconds"} for line in lines]
    return kept


def files_in(folder: Path) -> dict[str, bytes]:
    """All files below a folder except temporary ones, which begin with a dot."""
    files = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }
    return {name: without_seconds(name, data) for name, data in files.items()}


def without_seconds(name: str, data: bytes) -> bytes:
    """A page or an explanation without the times of the command and the hashes of these times."""
    if name.endswith(".html") or "explanations/" in name:
        return re.sub(rb'\d+(\.\d+)? s\b|"(asked|digest)": "[^"]*"', b"", data)
    return data


def moment(folder: Path) -> str:
    """What the training was doing when it was killed, judged by its files."""
    names = {path.name for path in folder.rglob("*")}
    if any(name.startswith(".checkpoint.safetensors.") for name in names):
        return "writing a checkpoint"
    if "manifest.json" in names:
        return "after the manifest"
    if "recipe.toml" in names:
        return "writing the run"
    return "training or scoring" if "checkpoint.safetensors" in names else "before a checkpoint"


def kill_once(kill: Kill, arguments: list[str], folder: Path, lasts: float, seed: int) -> float:
    """Kill one process and return its age; 0 if it ended before."""
    process = begin(arguments, folder)
    training = kill.command in RESUMED
    start = wait_for_lock(process, folder / "run") if training else time.perf_counter()
    latest = lasts / 2 if kill.aim else lasts
    after = random.Random(f"{kill.regime} {kill.command} {seed}").uniform(0, latest)
    time.sleep(max(0.0, start + after - time.perf_counter()))
    seen = folder / "run" if training else folder
    while kill.aim and process.is_alive():
        if any(path.name.startswith(kill.aim) for path in seen.rglob("*")):
            break
    process.kill()
    process.join()
    return time.perf_counter() - start if process.exitcode == -signal.SIGKILL else 0.0


def prove(kill: Kill, place: Path, lasts: float, settings: list[str]) -> dict[str, Any]:
    """Kill a command, repeat it, and compare its files with those of an uninterrupted one."""
    torch.set_num_threads(1)
    arguments = arguments_of(kill, settings)
    whole = place / kill.regime / "train"
    with tempfile.TemporaryDirectory(dir=place) as scratch:
        after = 0.0
        tries = 0
        while not after:  # a process that ended before its kill does not count
            folder = Path(scratch) / str(tries)
            folder.mkdir() if kill.command in RESUMED else shutil.copytree(whole, folder)
            seed = kill.seed + 1_000_003 * tries
            after = kill_once(kill, arguments, folder, lasts, seed)
            tries += 1
        if kill.command in RESUMED:
            state = moment(folder / "run")
            finish(begin(arguments, folder))
            kept: dict[str, Any] = results_in(folder / "run")
            expected: dict[str, Any] = results_in(place / kill.regime / kill.command / "run")
        else:
            expected = files_in(place / kill.regime / kill.command)
            before, killed = files_in(whole), files_in(folder)
            # Between the two moments every file is the old one or the new one.
            half_written = [
                name
                for name, data in killed.items()
                if data not in (before.get(name), expected.get(name))
            ]
            lost = [name for name in before if name not in killed]
            state = "nothing written" if killed == before else "some files written"
            if killed.keys() == expected.keys():
                state = "all files written"
            if half_written or lost:
                state = f"half-written: {half_written}; lost: {lost}"
            shutil.rmtree(folder / "out", ignore_errors=True)
            (folder / "out").mkdir()
            finish(begin(arguments, folder))
            kept = files_in(folder)
            if half_written or lost:
                kept = {}
        different = [name for name in {**expected, **kept} if kept.get(name) != expected.get(name)]
        return {
            "command": kill.command,
            "regime": kill.regime,
            "aim": kill.aim,
            "after_seconds": round(after, 3),
            "state": state,
            "equal": not different,
            "different": different,
        }


def prepare(regime: str, commands: list[str], place: Path, settings: list[str]) -> dict[str, float]:
    """Run each command once without a kill; return how long each took."""
    torch.set_num_threads(1)
    lasts = {}
    whole = place / regime / "train"
    whole.mkdir(parents=True)
    for command in ("train", *commands):
        folder = place / regime / command
        training = command in RESUMED
        folder.mkdir(exist_ok=True) if training else shutil.copytree(whole, folder)
        process = begin(arguments_of(Kill(regime, command, 0), settings), folder)
        start = wait_for_lock(process, folder / "run") if training else time.perf_counter()
        finish(process)
        lasts[command] = time.perf_counter() - start
        if command == "train":
            (whole / "out").mkdir()
            write_tables(whole)
    return lasts


def write_tables(folder: Path) -> None:
    """Two small tables for `unimp init`."""
    draw = random.Random(0)
    nodes = [f"n{i},{draw.random():.3f},{draw.choice(['red', 'blue', ''])}" for i in range(200)]
    edges = [f"n{draw.randrange(200)},n{draw.randrange(200)}" for _ in range(600)]
    (folder / "nodes.csv").write_text("\n".join(("id,size,color", *nodes)) + "\n")
    (folder / "edges.csv").write_text("\n".join(("from,to", *edges)) + "\n")


def kills_of(
    regime: str, kills: int, aimed: int, others: int, seed: int, commands: Sequence[str]
) -> list[Kill]:
    """The processes to kill in one regime."""
    return [
        *(Kill(regime, "train", seed + number) for number in range(kills)),
        *(
            Kill(regime, "train", seed + number, AIMS[number % len(AIMS)])
            for number in range(aimed)
        ),
        *(
            Kill(
                regime,
                commands[number // 2 % len(commands)],
                seed + number,
                TEMPORARY if number % 2 else "",
            )
            for number in range(others)
        ),
    ]


def as_given(arguments: list[str]) -> str:
    """The command of this proof, without folder names of this machine."""
    return re.sub(r"(?<![^\s=])[/~]\S*/(?=\S)", "", " ".join(("python proofs/kill.py", *arguments)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--kills", type=int, default=100, help="Kills of training in each regime.")
    add("--aimed", type=int, default=20, help="Further kills during the writing of files.")
    add("--others", type=int, default=81, help="Kills of other commands in each regime.")
    add("--regimes", nargs="+", default=list(REGIMES), choices=REGIMES)
    add("--commands", nargs="+", default=list(REPEATED), choices=REPEATED, help="Others to kill.")
    add("--seed", type=int, default=0, help="Seed of the random moments.")
    add("--set", action="append", default=[], help="section.key=value for all runs.")
    add("--jobs", type=int, default=1, help="Number of kills at a time.")
    add("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    done: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory() as name,
        ProcessPoolExecutor(options.jobs, mp_context=FORKS) as pool,
    ):
        place = Path(name)
        commands = options.commands[: (options.others + 1) // 2]
        regimes = options.regimes
        ready = [pool.submit(prepare, one, commands, place, options.set) for one in regimes]
        lasts = {regime: task.result() for regime, task in zip(regimes, ready, strict=True)}
        waiting = [
            pool.submit(prove, kill, place, lasts[kill.regime][kill.command], options.set)
            for regime in regimes
            for kill in kills_of(
                regime, options.kills, options.aimed, options.others, options.seed, commands
            )
        ]
        for task in waiting:
            done.append(task.result())
            print(f"{len(done)} of {len(waiting)}: {done[-1]}", flush=True)
    kills, equal = len(done), sum(entry["equal"] for entry in done)
    result = {
        "what": "commands killed (SIGKILL) at random moments and repeated: training writes the "
        "weights, predictions and history of an uninterrupted run, byte for byte; other commands "
        "leave the run unchanged and no half-written file, and write the same bytes when repeated",
        "kills": kills,
        "equal": equal,
        "at_random_moments": sum(not entry["aim"] for entry in done),
        "by_regime": count(done, "regime"),
        "by_command": count(done, "command"),
        "by_state": count(done, "state"),
        "moments": done,
        "command": as_given(sys.argv[1:]),
        "hardware": f"{platform.machine()}, 1 thread per process, {os.cpu_count()} cores",
        "torch": torch.__version__,
        "unimp": __version__,
        "code": code_origin(),
    }
    write_atomically(options.out, (json.dumps(result, indent=1) + "\n").encode())
    print(f"{equal} of {kills} equal: {options.out}")
    return 0 if equal == kills else 1


def count(done: list[dict[str, Any]], key: str) -> dict[str, str]:
    """How many of the kills with each value of a key were equal."""
    return {
        value: f"{sum(e['equal'] for e in done if e[key] == value)} of "
        f"{sum(e[key] == value for e in done)}"
        for value in sorted({entry[key] for entry in done})
    }


if __name__ == "__main__":
    sys.exit(main())
