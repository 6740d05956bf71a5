"""`unimp train --devices K`: start K processes on this machine that train one model together.

Each runs the same command. They find each other through a file and communicate over the loopback
interface only. If a process is killed, all are started again and resume from the last checkpoint.
Several machines are started by torchrun instead.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from unimp.cli.console import LOST, err
from unimp.training.interruption import SIGNALS

LOST_ANOTHER = (LOST, -signal.SIGKILL)
"""Exit codes of the first process after which all processes are started again."""
RESTARTS = 3
"""How often all processes are started again after one was killed."""
GRACE = 10.0
"""Seconds for the first process to notice that another one ended, and for the others to end."""


def train_on_devices(arguments: Sequence[str], count: int) -> int:
    """Run the command with these arguments in `count` processes, and return its exit code."""
    for left in range(RESTARTS, -1, -1):
        with tempfile.TemporaryDirectory(prefix="unimp-") as place:
            code, problems = Processes(arguments, count, Path(place)).wait()
        if code not in LOST_ANOTHER or not left:
            break
        err.print(f"a process of this training ended; all {count} start again and resume")
    if problems and code:
        err.print(problems)
    return code if code >= 0 else 128 - code


def without_devices(arguments: Sequence[str]) -> list[str]:
    """The arguments without the option --devices."""
    kept, skip = [], False
    for argument in arguments:
        if skip or argument.startswith("--devices="):
            skip = False
        elif argument == "--devices":
            skip = True
        else:
            kept.append(argument)
    return kept


class Processes:
    """The processes of one attempt; their files are in the folder `place`."""

    def __init__(self, arguments: Sequence[str], count: int, place: Path) -> None:
        self._place, self._stopped = place, False
        self._processes: list[subprocess.Popen[bytes]] = []
        self._handlers = {number: signal.signal(number, self._pass_on) for number in SIGNALS}
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        common = {
            "OMP_NUM_THREADS": str(max(1, (cores or 1) // count)),
            "GLOO_SOCKET_IFNAME": loopback,
            "NCCL_SOCKET_IFNAME": loopback,
            **os.environ,
            "WORLD_SIZE": str(count),
            "UNIMP_RENDEZVOUS": str(place / "rendezvous"),
        }
        command = [sys.executable, "-m", "unimp", *arguments]
        for rank in range(count):
            own = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            if rank == 0:
                self._processes.append(subprocess.Popen(command, env=own))
                continue
            # Only the first process prints. What another one printed is shown if it failed first.
            with self._errors_of(rank).open("wb") as errors:
                self._processes.append(
                    subprocess.Popen(command, env=own, stdout=errors, stderr=errors)
                )

    def _errors_of(self, rank: int) -> Path:
        return self._place / f"process-{rank}.txt"

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        """Stop the first process, which stores its state; the others end with it."""
        self._stopped = True
        if self._processes:
            self._processes[0].send_signal(number)

    def wait(self) -> tuple[int, str]:
        """The exit code of the first process, or of one that failed before it, and its message."""
        first, others = self._processes[0], self._processes[1:]
        kill_at = math.inf
        try:
            while first.poll() is None:
                time.sleep(0.1)
                if any(other.poll() for other in others):
                    kill_at = min(kill_at, time.monotonic() + GRACE)
                if time.monotonic() > kill_at:
                    first.kill()
            end_at = time.monotonic() + GRACE
            for other in others:
                with suppress(subprocess.TimeoutExpired):
                    other.wait(max(0.0, end_at - time.monotonic()))
        finally:
            for process in self._processes:
                process.kill()  # it has no effect on a process that has ended
                process.wait()
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
        if self._stopped or first.returncode not in LOST_ANOTHER:
            return first.returncode, ""
        for rank, other in enumerate(others, 1):
            if other.returncode > 0 and other.returncode != LOST:  # it was not killed, it failed
                return other.returncode, self._errors_of(rank).read_text("utf-8", "replace").strip()
        return first.returncode, ""
