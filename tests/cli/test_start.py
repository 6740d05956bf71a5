"""A command from its start on: Ctrl-C is one line and code 130, whatever is being imported; and
whatever streams it is given, it does its work."""

import csv
import json
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


SMALL = ["train.epochs=1000000", "train.patience=0", "model.width=4", "train.device=cpu"]
TRAIN = ["train", "recipe.toml", *(word for setting in SMALL for word in ("--set", setting))]


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """A folder with a recipe of two tables, which are read after the run's folder is made."""
    nodes = [("id", "label", "text"), *((f"n{i}", "ab"[i % 2], f"word{i % 5}") for i in range(60))]
    edges = [("source", "target"), *((f"n{i}", f"n{(i + 2) % 60}") for i in range(60))]
    for name, rows in (("nodes.csv", nodes), ("edges.csv", edges)):
        with (tmp_path / name).open("w", newline="") as file:
            csv.writer(file).writerows(rows)
    (tmp_path / "recipe.toml").write_text(
        'name = "small"\n[tables]\nnodes = "nodes.csv"\nedges = "edges.csv"\nid = "id"\n'
        'source = "source"\ntarget = "target"\nlabel = "label"\ntrain_share = 0.6\n'
        'val_share = 0.2\n[tables.features]\ntext = "text"\n'
    )
    return tmp_path


def stopped_cleanly(process: subprocess.Popen[str], folder: Path, code: int = 130) -> str:
    """The line that tells it; nothing is left of a run that did not begin."""
    _, told = process.communicate(timeout=120)
    (line,) = (line for line in told.splitlines() if line.startswith("stopped"))
    assert (process.returncode, "Traceback" in told) == (code, False), told
    for run in folder.glob("runs/*"):
        assert (run / "checkpoint.safetensors").is_file(), (told, list(run.iterdir()))
    return line


@pytest.mark.parametrize(
    "name", ["sklearn.feature_extraction._stop_words", "torch._dynamo.convert_frame"]
)
def test_ctrl_c_in_an_import_after_the_folder_is_made_takes_the_folder_away(
    name: str, tables: Path
) -> None:
    program = INTERRUPTED_AT.format(name=name) + COMMAND
    line = stopped_cleanly(started(program, *TRAIN, here=tables), tables)
    assert "stopped before training began" in line or "stopped in epoch" in line


@pytest.mark.parametrize("delay", [0.3, 0.8, 1.2, 1.6, 2.0, 2.5, 3.5])
def test_ctrl_c_at_any_moment_of_training_leaves_no_folder_of_a_run_that_never_began(
    delay: float, tables: Path
) -> None:
    ready = "import unimp.__main__; print('ready'); "
    process = started(ready + COMMAND, *TRAIN, here=tables)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    stopped_cleanly(process, tables)


def test_a_termination_while_a_file_is_written_leaves_no_part_of_it(tmp_path: Path) -> None:
    program = """
import os, signal, unimp.cli.console
from pathlib import Path
from unimp.data.files import write_atomically

@unimp.cli.console.app.command()
def write():
    os.fsync = lambda number: signal.raise_signal(signal.SIGTERM)
    write_atomically(Path("file.csv"), b"rows")
"""
    process = started(program + COMMAND, "write", here=tmp_path)
    assert stopped_cleanly(process, tmp_path, 143) == "stopped"
    assert not any(tmp_path.iterdir())


def shell(line: str, here: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """A line of the shell in which `unimp` is the command, at most two minutes."""
    line = f'unimp() {{ "{sys.executable}" -m unimp "$@"; }}; {line}'
    source = str(Path(unimp.__file__).parents[1])
    return subprocess.run(
        ["sh", "-c", line],
        capture_output=True,
        check=False,
        cwd=here,
        timeout=120,
        env={**os.environ, "PYTHONPATH": source, **environment},
    )


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_stream_that_is_closed_fails_no_command(closed: str, tmp_path: Path) -> None:
    done = shell(f"unimp --version {closed}", tmp_path)
    said = b"" if ">&-" in closed.split() else f"unimp {unimp.__version__}\n".encode()
    assert (done.returncode, done.stdout, done.stderr) == (0, said, b"")
    done = shell(f"unimp recipe show no-such {closed}", tmp_path)
    assert done.returncode == 1
    assert (b"error:" in done.stderr) == ("2>&-" not in closed.split())


def test_a_run_without_streams_is_written_whole(tmp_path: Path) -> None:
    settings = " ".join(
        f"--set {s}" for s in ("task.scale=0.02", "model.width=4", "train.epochs=2")
    )
    done = shell(f"unimp train synthetic {settings} --out run <&- >&- 2>&-", tmp_path)
    assert done.returncode == 0
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert not any(p.name.startswith(".") for p in (tmp_path / "run").iterdir())


def test_a_disk_that_is_full_is_told_without_a_traceback(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    done = shell("unimp --version >/dev/full", tmp_path)
    assert done.returncode == 1
    assert b"No space left" in done.stderr
    assert b"Traceback" not in done.stderr


SAID = "from unimp.cli.console import app, out; app.command('say')(lambda: out.print({text!r})); "


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"PYTHONIOENCODING": "utf-8"}, '"−1 ü 🙂"'.encode()),
        ({"PYTHONIOENCODING": "cp1252"}, b'"\\u22121 \xfc \\ud83d\\ude42"'),
        ({"PYTHONIOENCODING": "ascii"}, b'"\\u22121 \\u00fc \\ud83d\\ude42"'),
        ({"PYTHONIOENCODING": "ascii:replace"}, b'"?1 ? ?"'),
        (
            {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
            b'"\\u22121 \\u00fc \\ud83d\\ude42"',
        ),
    ],
)
def test_what_a_stream_cannot_encode_is_escaped_as_in_json(
    environment: dict[str, str], said: bytes, tmp_path: Path
) -> None:
    program = tmp_path / "say.py"
    text = json.dumps("−1 ü 🙂", ensure_ascii=False)
    program.write_text(SAID.format(text=text) + COMMAND, encoding="utf-8")
    done = shell(f'"{sys.executable}" say.py say', tmp_path, **environment)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, said, b"")
    if "replace" not in str(environment) and "cp1252" not in str(environment):
        assert json.loads(done.stdout) == "−1 ü 🙂"


def test_files_are_utf_8_whatever_the_terminal_speaks(tmp_path: Path) -> None:
    rows = "id,größe,label\n" + "".join(f"ü{i},{i},{'äö'[i % 2]}\n" for i in range(20))
    (tmp_path / "nodes.csv").write_text(rows, encoding="utf-8")
    rows = "source,target\n" + "".join(f"ü{i},ü{(i + 1) % 20}\n" for i in range(20))
    (tmp_path / "edges.csv").write_text(rows, encoding="utf-8")
    done = shell("unimp init nodes.csv edges.csv", tmp_path, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, b"")
    assert "größe" in (tmp_path / "recipe.toml").read_text(encoding="utf-8")
