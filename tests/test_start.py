"""Ctrl-C at the start of a command: one line and code 130, whatever is being imported."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import unimp

COMMAND = "from unimp.__main__ import program; program()"
INTERRUPTED_AT = """
import signal, sys
def watch(event, arguments):
    if event == "import" and arguments[0] == {name!r}:
        signal.raise_signal(signal.SIGINT)
sys.addaudithook(watch)
"""


def started(program: str, *words: str, here: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", "-c", program, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=here,
        env={**os.environ, "PYTHONPATH": str(Path(unimp.__file__).parents[1])},
    )


@pytest.mark.parametrize(
    "name", ["unimp.cli", "typer", "unimp.cli.train", "numpy", "torch", "torch.nn", "unimp.run"]
)
def test_ctrl_c_in_an_import_is_told_in_one_line(name: str, tmp_path: Path) -> None:
    program = INTERRUPTED_AT.format(name=name) + COMMAND
    process = started(program, "train", "synthetic", here=tmp_path)
    said, told = process.communicate(timeout=120)
    assert (process.returncode, said, told) == (130, "", "stopped\n")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("delay", [0.0, 0.1, 0.4, 0.8])
def test_ctrl_c_soon_after_the_start_is_told_in_one_line(delay: float, tmp_path: Path) -> None:
    ready = "import unimp.__main__; print('ready'); "
    process = started(ready + COMMAND, "reproduce", "--list", here=tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    said, told = process.communicate(timeout=120)
    if process.returncode == 0:  # it was done already
        assert "figure" in said
        return
    # The very first moment is Python's own: before `program` is called.
    assert process.returncode in (130, -signal.SIGINT)
    assert told == "stopped\n" or delay == 0.0


def test_a_command_that_ignores_ctrl_c_goes_on_ignoring_it(tmp_path: Path) -> None:
    program = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    program += INTERRUPTED_AT.format(name="typer") + COMMAND
    process = started(program, "--version", here=tmp_path)
    said, told = process.communicate(timeout=120)
    assert (process.returncode, said, told) == (0, f"unimp {unimp.__version__}\n", "")


def test_the_package_runs_as_a_program(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "unimp", "--version"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(unimp.__file__).parents[1])},
    )
    assert (done.returncode, done.stdout) == (0, f"unimp {unimp.__version__}\n")
