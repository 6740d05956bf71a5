"""The option --devices K: start K processes on this machine that run the same command together.

They find each other through a file and communicate over the loopback interface only. If one of
them ends early, all of them end; a training is then started again and resumes from the last
checkpoint. Several machines are started by torchrun instead.
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
from threading import Thread
from types import FrameType

import typer

from unimp.cli.console import LOST, err
from unimp.data.files import temporary_folder
from unimp.errors import RecipeError
from unimp.training.interruption import SIGNALS
from unimp.training.started import RENDEZVOUS, were_started

LOST_ANOTHER = (LOST, -signal.SIGKILL)
"""Exit codes of the first process if a process ended early, for example because it was killed."""
GRACE = 10.0
"""Seconds for the first process to notice that another one ended, and for the others to end."""


def on_devices(count: int | None, *, restarts: int = 0) -> None:
    """Run the command of this process in `count` processes instead, and exit; None: continue.

    restarts: how often all processes are started again after one of them ended early.
    """
    if count is not None:
        raise typer.Exit(run_on_devices(without_devices(sys.argv[1:]), count, restarts))
    end_with_launcher()


def run_on_devices(arguments: Sequence[str], count: int, restarts: int) -> int:
    """Run the command with these arguments in `count` processes, and return its exit code."""
    if were_started():
        raise RecipeError("--devices starts processes itself; omit it, or do not use torchrun")
    for left in range(restarts, -1, -1):
        with tempfile.TemporaryDirectory(prefix="unimp-", dir=temporary_folder()) as place:
            processes = Processes(arguments, count, Path(place))
            code, problems = processes.run()
        if code == -signal.SIGKILL and processes.stopped_by is not None:
            code = 128 + processes.stopped_by
        if code not in LOST_ANOTHER or processes.stopped_by is not None:
            break
        what = f"one of {count} processes was killed or did not answer"
        if left:
            err.print(f"{what}; all of them start again and resume")
        elif not problems:
            err.print(f"{what}, so all of them ended. If memory ran out, use fewer processes.")
    if problems:
        err.print(problems.strip())
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


def end_with_launcher() -> None:
    """End this process when the launcher that started it ends, also if that was killed.

    The launcher holds the other end of the standard input, and writes nothing to it.
    """
    if RENDEZVOUS in os.environ:
        Thread(target=lambda: (os.read(0, 1), os._exit(LOST)), daemon=True).start()


class Processes:
    """The processes of one attempt; their files, also temporary ones, are in the folder `place`."""

    def __init__(self, arguments: Sequence[str], count: int, place: Path) -> None:
        self._command = [sys.executable, "-m", "unimp", *arguments]
        self._count, self._place = count, place
        self._processes: list[subprocess.Popen[bytes]] = []
        self.stopped_by: int | None = None  # the signal that asked to stop

    def run(self) -> tuple[int, str]:
        """Return the exit code of the first process, or of one that failed before it, and the
        message of the latter."""
        handlers = {number: signal.signal(number, self._pass_on) for number in SIGNALS}
        try:
            for rank in range(self._count):
                self._start(rank)
            if self.stopped_by is not None:  # before there was a process
                self._processes[0].send_signal(self.stopped_by)
            self._wait()
        finally:
            for process in self._processes:
                process.kill()  # it has no effect on a process that has ended
                process.wait()
            for number, handler in handlers.items():
                signal.signal(number, handler)
        first, *others = (process.returncode for process in self._processes)
        if first == 0 or first in LOST_ANOTHER:
            for rank, code in enumerate(others, 1):
                if code > 0 and code != LOST:  # it was not killed, it failed
                    return first or code, self._output_of(rank).read_text("utf-8", "replace")
        return first, ""

    def _start(self, rank: int) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        environment = {
            "OMP_NUM_THREADS": str(max(1, (cores or 1) // self._count)),
            "GLOO_SOCKET_IFNAME": loopback,
            "NCCL_SOCKET_IFNAME": loopback,
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(self._count),
            RENDEZVOUS: str(self._place / "rendezvous"),
            "TMPDIR": str(self._place),
        }
        # Only the first process prints. What another one printed is shown if it failed itself.
        with self._output_of(rank).open("wb") as output:
            self._processes.append(
                subprocess.Popen(
                    self._command,
                    env=environment,
                    stdin=subprocess.PIPE,  # see `end_with_launcher`
                    stdout=output if rank else None,
                    stderr=output if rank else None,
                    start_new_session=True,  # Ctrl-C reaches this process, which passes it on once
                )
            )

    def _output_of(self, rank: int) -> Path:
        return self._place / f"process-{rank}.txt"

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        """Stop the first process, which stores its state; the others end with it."""
        self.stopped_by = number
        if self._processes:
            self._processes[0].send_signal(number)

    def _wait(self) -> None:
        """Wait for the first process, and then a little for the others."""
        first, others = self._processes[0], self._processes[1:]
        kill_at = math.inf
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
