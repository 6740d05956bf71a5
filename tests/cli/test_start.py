"""The start of a command: signals end it cleanly at any moment, and no stream makes it fail."""

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
SIGNAL_AT_IMPORT = """
import signal, sys
names = [{name!r}]
def watch(event, arguments):
    if event == "import" and arguments[0] in names:
        names.clear()
        signal.raise_signal({number})
sys.addaudithook(watch)
"""
READY = """
import unimp.__main__ as main
handle_signals = main.handle_signals
def handle_and_report(handler):
    handle_signals(handler)
    print("ready")
main.handle_signals = handle_and_report
"""
"""Prints a line as soon as the handler is installed; before that, Python itself decides."""


def started(program: str, *words: str, here: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", "-c", program, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=here,
        env={**os.environ, "PYTHONPATH": str(Path(unimp.__file__).parents[1])},
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "name",
    [
        *("unimp.cli", "typer", "unimp.cli.train", "numpy", "torch", "torch.nn", "unimp.runs.run"),
        "numpy.matrixlib",  # torch ignores exceptions while it imports numpy
    ],
)
def test_a_signal_during_an_import_prints_one_line(name: str, number: int, tmp_path: Path) -> None:
    program = SIGNAL_AT_IMPORT.format(name=name, number=int(number)) + COMMAND
    process = started(program, "train", "synthetic", here=tmp_path)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (128 + number, "", "stopped\n")
    assert not any(tmp_path.iterdir())


MODULES_AT_THE_END = """
import atexit, sys
atexit.register(lambda: print("loaded:", *sorted({name.split(".")[0] for name in sys.modules})))
"""


@pytest.fixture(scope="module")
def two_tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two tables of every kind of column, a recipe for them, and a run."""
    here = tmp_path_factory.mktemp("tables")
    rows = [f"n{i},{i / 7:.2f},{'rgb'[i % 3]},a word {i % 5},{'xy'[i % 2]}" for i in range(200)]
    (here / "nodes.csv").write_text("\n".join(["id,size,color,text,label", *rows]) + "\n")
    rows = [f"n{i},n{(7 * i) % 200}" for i in range(200)]
    (here / "edges.csv").write_text("\n".join(["source,target", *rows]) + "\n")
    (here / "recipe.toml").write_text(RECIPE)
    unimp.run("synthetic", out=here / "run", settings=QUICK)
    return here


QUICK = ["task.scale=0.02", "train.epochs=1", "model.width=4"]


RECIPE = """
[tables]
nodes = "nodes.csv"
edges = "edges.csv"
label = "label"
[tables.features]
size = "numeric"
color = "categorical"
text = "text"
"""


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["--version"],
        ["recipe", "list"],
        ["data", "list"],
        ["init", "nodes.csv", "edges.csv", "--out", "guessed.toml", "--force"],
        ["check", "recipe.toml"],
        ["report", "run"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_commands_that_do_not_compute_do_not_load_torch(words: list[str], two_tables: Path) -> None:
    process = started(MODULES_AT_THE_END + COMMAND, *words, here=two_tables)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    *_, last = out.splitlines()
    assert last.startswith("loaded:")
    assert {"torch", "scipy", "sklearn", "pandas"} & set(last.split()) == set()


def test_a_model_that_could_be_refused_is_built_by_check(two_tables: Path) -> None:
    words = ["check", "recipe.toml", "--set", "model.name=mlp", "--set", "model.layers=1"]
    process = started(MODULES_AT_THE_END + COMMAND, *words, here=two_tables)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "torch" in out.split()
    assert "layers" in err


@pytest.mark.parametrize(
    "words",
    [["evaluate", "run"], ["predict", "run"], ["report", "run"], ["reproduce", "all"]],
    ids=lambda words: words[0],
)
def test_a_signal_while_torch_imports_numpy_stops_every_command(
    words: list[str], tmp_path: Path
) -> None:
    program = SIGNAL_AT_IMPORT.format(name="numpy.matrixlib", number=2) + COMMAND
    process = started(program, *words, here=tmp_path)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (130, "", "stopped\n")


def test_a_command_that_ignores_ctrl_c_keeps_ignoring_it(tmp_path: Path) -> None:
    program = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    program += SIGNAL_AT_IMPORT.format(name="typer", number=2) + COMMAND
    process = started(program, "--version", here=tmp_path)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (0, f"unimp {unimp.__version__}\n", "")


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
    """A folder with a recipe for two tables, which are read after the run folder is created."""
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
    """The line that reports the stop; a run that did not start training leaves no folder."""
    _, err = process.communicate(timeout=120)
    lines = [line for line in err.splitlines() if line.startswith("stopped")]
    assert (process.returncode, len(lines), "Traceback" in err) == (code, 1, False), err
    for run in folder.glob("runs/*"):
        names = {path.name for path in run.iterdir()}
        assert "checkpoint.safetensors" in names, (err, names)
        assert ".lock" not in names, (err, names)
    return lines[0]


@pytest.mark.parametrize(
    "name", ["sklearn.feature_extraction._stop_words", "torch._dynamo.convert_frame"]
)
def test_ctrl_c_during_an_import_after_the_folder_is_created_removes_the_folder(
    name: str, tables: Path
) -> None:
    program = SIGNAL_AT_IMPORT.format(name=name, number=2) + COMMAND
    line = stopped_cleanly(started(program, *TRAIN, here=tables), tables)
    assert "before training" in line or "in epoch" in line


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("delay", [0.0, 0.1, 0.4, 0.8, 1.5, 2.5, 4.0])
def test_a_signal_at_any_moment_ends_the_command_cleanly(
    delay: float, number: int, tables: Path
) -> None:
    """The command would train for hours, so that only the signal can end it."""
    process = started(READY + COMMAND, *TRAIN, here=tables)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(delay)
    process.send_signal(number)
    stopped_cleanly(process, tables, 128 + number)


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
    """Run a line of the shell in which `unimp` is the command."""
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
def test_a_closed_stream_fails_no_command(closed: str, tmp_path: Path) -> None:
    done = shell(f"unimp --version {closed}", tmp_path)
    printed = b"" if ">&-" in closed.split() else f"unimp {unimp.__version__}\n".encode()
    assert (done.returncode, done.stdout, done.stderr) == (0, printed, b"")
    done = shell(f"unimp recipe show no-such {closed}", tmp_path)
    assert done.returncode == 1
    assert (b"error:" in done.stderr) == ("2>&-" not in closed.split())


def test_a_run_without_streams_is_complete(tmp_path: Path) -> None:
    settings = " ".join(
        f"--set {s}" for s in ("task.scale=0.02", "model.width=4", "train.epochs=2")
    )
    done = shell(f"unimp train synthetic {settings} --out run <&- >&- 2>&-", tmp_path)
    assert done.returncode == 0
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert not any(p.name.startswith(".") for p in (tmp_path / "run").iterdir())


def test_a_full_disk_is_reported_without_a_traceback(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    done = shell("unimp --version >/dev/full", tmp_path)
    assert done.returncode == 1
    assert b"No space left" in done.stderr
    assert b"Traceback" not in done.stderr


PRINT = "from unimp.cli.console import app, out; app.command('say')(lambda: out.print({text!r})); "


@pytest.mark.parametrize(
    ("environment", "printed"),
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
def test_characters_that_a_stream_cannot_encode_are_escaped_as_in_json(
    environment: dict[str, str], printed: bytes, tmp_path: Path
) -> None:
    program = tmp_path / "say.py"
    text = json.dumps("−1 ü 🙂", ensure_ascii=False)
    program.write_text(PRINT.format(text=text) + COMMAND, encoding="utf-8")
    done = shell(f'"{sys.executable}" say.py say', tmp_path, **environment)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, printed, b"")
    if "replace" not in str(environment) and "cp1252" not in str(environment):
        assert json.loads(done.stdout) == "−1 ü 🙂"


def test_files_are_utf_8_with_any_encoding_of_the_terminal(tmp_path: Path) -> None:
    rows = "id,größe,label\n" + "".join(f"ü{i},{i},{'äö'[i % 2]}\n" for i in range(20))
    (tmp_path / "nodes.csv").write_text(rows, encoding="utf-8")
    rows = "source,target\n" + "".join(f"ü{i},ü{(i + 1) % 20}\n" for i in range(20))
    (tmp_path / "edges.csv").write_text(rows, encoding="utf-8")
    done = shell("unimp init nodes.csv edges.csv", tmp_path, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, b"")
    assert "größe" in (tmp_path / "recipe.toml").read_text(encoding="utf-8")
