"""Kill training at random moments, resume it with the same command, and compare the bytes.

    python proofs/kill.py                      20 kills in each regime → proofs/results/kill.json
    python proofs/kill.py --kills 1 --aimed 0  a short form

Each run is a separate process, `unimp train … --out DIR`. It is killed (SIGKILL) at a random moment
between locking its folder and its end, including scoring and writing. A few more kills are aimed at
the writing of a checkpoint and of the last files. The same command then resumes the run, which must
write the weights, predictions and history of an uninterrupted run, byte for byte (the history
without its seconds).
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
BYTES = ("model.safetensors", "predictions.parquet")


def command(regime: str, folder: Path, more: list[str]) -> None:
    """Run `unimp train …` without output, in a child process."""
    settings = [f"--set={setting}" for setting in (*SETTINGS, *REGIMES[regime], *more)]
    sys.argv = ["unimp", "train", "synthetic", *settings, "--out", str(folder)]
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        main_of_unimp()


def begin(regime: str, folder: Path, more: list[str]) -> Process:
    process = FORKS.Process(target=command, args=(regime, folder, more))
    process.start()
    return process


def finish(process: Process) -> None:
    process.join()
    if process.exitcode != 0:
        raise SystemExit(f"A run ended with exit code {process.exitcode}.")


def wait_for_lock(process: Process, folder: Path) -> float:
    """The time when the process locked its folder."""
    while not (folder / ".lock").exists() and process.is_alive():
        time.sleep(0.001)
    return time.perf_counter()


def results_in(folder: Path) -> dict[str, bytes | list[Any]]:
    """The results that must not depend on a kill."""
    kept: dict[str, bytes | list[Any]] = {name: (folder / name).read_bytes() for name in BYTES}
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    kept["history"] = [{k: v for k, v in line.items() if k != "seconds"} for line in lines]
    return kept


def moment(folder: Path) -> str:
    """What the process was doing when it was killed, judged by its files."""
    names = {path.name for path in folder.iterdir()}
    if any(name.startswith(".checkpoint.safetensors.") for name in names):
        return "writing a checkpoint"
    if "manifest.json" in names:
        return "after the manifest"
    if "recipe.toml" in names:
        return "writing the run"
    return "training or scoring" if "checkpoint.safetensors" in names else "before a checkpoint"


def kill_once(
    regime: str, folder: Path, lasts: float, draw: random.Random, more: list[str], aim: str = ""
) -> dict[str, Any] | None:
    """Kill one process at a random moment; None if it ended before.

    With an aim, kill it as soon as a file whose name begins with it exists after that moment.
    """
    process = begin(regime, folder, more)
    start, after = wait_for_lock(process, folder), draw.uniform(0, lasts / 2 if aim else lasts)
    time.sleep(max(0.0, start + after - time.perf_counter()))
    while aim and process.is_alive():
        if any(name.startswith(aim) for name in os.listdir(folder)):  # noqa: PTH208
            break
    process.kill()
    process.join()
    if process.exitcode != -signal.SIGKILL:
        return None
    after = time.perf_counter() - start
    return {"after_seconds": round(after, 3), "aim": aim, "state": moment(folder)}


def prove(
    regime: str, kills: int, aimed: int, draw: random.Random, more: list[str]
) -> dict[str, Any]:
    """Kill the training of a regime several times, each time in a new run, and compare each."""
    aims = [""] * kills + [AIMS[number % len(AIMS)] for number in range(aimed)]
    done: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place:
        process = begin(regime, Path(place) / "whole", more)
        start = wait_for_lock(process, Path(place) / "whole")
        finish(process)
        lasts = time.perf_counter() - start
        whole = results_in(Path(place) / "whole")
        while len(done) < len(aims):
            folder = Path(place) / "killed"
            killed = kill_once(regime, folder, lasts, draw, more, aims[len(done)])
            if killed is not None:
                finish(begin(regime, folder, more))
                kept = results_in(folder)
                killed["equal"] = kept == whole
                killed["different"] = [name for name in whole if kept[name] != whole[name]]
                killed["files"] = sorted(p.name for p in folder.iterdir())
                done.append(killed)
                print(f"{regime} {len(done)} of {len(aims)}: {killed}", flush=True)
            shutil.rmtree(folder)
    return {
        "kills": len(done),
        "equal": sum(entry["equal"] for entry in done),
        "at_random_moments": kills,
        "seconds_uninterrupted": round(lasts, 2),
        "epochs": len(whole["history"]),
        "moments": done,
    }


def as_given(arguments: list[str]) -> str:
    """The command of this proof, without folder names of this machine."""
    return re.sub(r"(?<![^\s=])[/~]\S*/(?=\S)", "", " ".join(("python proofs/kill.py", *arguments)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20, help="Number of kills in each regime.")
    parser.add_argument(
        "--aimed", type=int, default=4, help="Number of further kills during the writing of files."
    )
    parser.add_argument("--regimes", nargs="+", default=list(REGIMES), choices=REGIMES)
    parser.add_argument("--seed", type=int, default=0, help="Seed of the random moments.")
    parser.add_argument(
        "--set", action="append", default=[], help="section.key=value for all runs."
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    torch.set_num_threads(1)
    found = {
        regime: prove(regime, options.kills, options.aimed, draw, options.set)
        for regime in options.regimes
    }
    kills, equal = (sum(entry[key] for entry in found.values()) for key in ("kills", "equal"))
    result = {
        "what": "training killed (SIGKILL) at random moments and resumed by the same command: "
        "weights, predictions and history equal those of an uninterrupted run, byte for byte",
        "kills": kills,
        "equal": equal,
        "at_random_moments": options.kills * len(found),
        "regimes": found,
        "command": as_given(sys.argv[1:]),
        "hardware": f"{platform.machine()}, 1 thread of {os.cpu_count()} cores",
        "torch": torch.__version__,
        "unimp": __version__,
        "code": code_origin(),
    }
    write_atomically(options.out, (json.dumps(result, indent=1) + "\n").encode())
    print(f"{equal} of {kills} equal: {options.out}")
    return 0 if equal == kills else 1


if __name__ == "__main__":
    sys.exit(main())
