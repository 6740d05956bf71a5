"""`unimp predict --devices` and `unimp evaluate --devices`: several processes divide the nodes."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from child_processes import children_of
from typer.testing import CliRunner

import unimp
from unimp.cli import app
from unimp.config.run_files import MANIFEST

pytestmark = pytest.mark.skipif(os.name == "nt", reason="gloo over files needs a POSIX system")

SETTINGS = {
    "task.scale": 0.2,
    "model.width": 8,
    "model.layers": 2,
    "train.epochs": 2,
    "train.device": "cpu",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("devices") / "run"
    unimp.run("synthetic", settings=SETTINGS, out=folder, report=False)
    (folder.parent / "labels.csv").write_text("node,label\n5,3\n7,4\n", encoding="utf-8")
    return folder


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # torch creates it when imported
    return folder


def start(
    *arguments: object, launcher: tuple[str, ...] = (), code: str | None = None
) -> subprocess.Popen[str]:
    """Start the command, or Python code that runs it."""
    program = ["-m", "unimp"] if code is None else ["-c", code]
    return subprocess.Popen(
        [*(launcher or (sys.executable,)), *program, *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def output_of(*arguments: object, launcher: tuple[str, ...] = ()) -> str:
    process = start(*arguments, launcher=launcher)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out


def of_one_process(*arguments: object) -> str:
    done = CliRunner().invoke(app, list(map(str, arguments)))
    assert done.exit_code == 0, done.output
    return done.stdout


def assert_equal(found: Path, expected: Path) -> None:
    one, other = (pyarrow.parquet.read_table(path) for path in (found, expected))
    assert one.column_names == other.column_names
    for name in (name for name in one.column_names if name.startswith("p_")):
        difference = np.abs(one[name].to_numpy() - other[name].to_numpy())
        assert difference.max() < 1e-5


def test_two_processes_predict_what_one_does(run: Path, tmp_path: Path, temporary: Path) -> None:
    more = ["--labels", run.parent / "labels.csv"]
    one, two = tmp_path / "one.parquet", tmp_path / "two.parquet"
    expected = of_one_process("predict", run, *more, "--out", one)
    found = output_of("predict", run, *more, "--out", two, "--devices", 2)
    assert found == expected.replace(str(one), str(two))  # only the first process prints
    assert "later labels changed" in found
    assert_equal(two, one)
    # With little memory, states are streamed. Here, the predictions are also smoothed.
    of_one_process("predict", run, "--smooth", "--out", one, "--force")
    parts = tmp_path / "parts"
    more = ["--smooth", "--memory", "300K", "--probabilities"]
    output_of("predict", run, *more, "--out", parts, "--devices", 2)
    assert_equal(parts, one)
    assert not list(temporary.iterdir())


def test_two_processes_score_what_one_does(run: Path, temporary: Path) -> None:
    for more in (["--reveal", "train+val"], ["--memory", "300K"]):
        assert output_of("evaluate", run, *more, "--devices", 2) == of_one_process(
            "evaluate", run, *more
        )
    assert not list(temporary.iterdir())


@pytest.mark.skipif(shutil.which("torchrun") is None, reason="torchrun is not on the path")
def test_torchrun_starts_the_same_command(run: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one.parquet", tmp_path / "two.parquet"
    of_one_process("predict", run, "--out", one)
    launcher = ("torchrun", "--standalone", "--nproc-per-node", "2")
    assert output_of("predict", run, "--out", two, launcher=launcher).count("one row each") == 1
    assert_equal(two, one)


@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_process_ends_all_with_a_message(
    killed: int, tmp_path: Path, temporary: Path
) -> None:
    slow = {**SETTINGS, "inference.chunk_edges": 1, "train.epochs": 1}
    unimp.run("synthetic", settings=slow, out=tmp_path / "run", report=False)
    out = tmp_path / "predictions.parquet"
    process = start("predict", tmp_path / "run", "--out", out, "--devices", 2)
    assert process.stderr is not None
    assert "exact inference" in process.stderr.readline()  # both compute the first layer
    os.kill(children_of(process)[killed], signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode not in (0, 1)
    assert "one of 2 processes was killed" in err
    assert not out.exists()
    assert not list(temporary.iterdir())


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_process_that_does_not_answer_ends_all_with_a_message(
    stopped: int, tmp_path: Path, temporary: Path
) -> None:
    slow = {**SETTINGS, "inference.chunk_edges": 1, "train.epochs": 1, "train.rank_timeout": 2}
    unimp.run("synthetic", settings=slow, out=tmp_path / "run", report=False)
    short = "from unimp.cli import processes, program; processes.GRACE = 1.0; program()"
    command = ["predict", tmp_path / "run", "--out", tmp_path / "out.parquet", "--devices", "2"]
    process = start(*command, code=short)
    assert process.stderr is not None
    assert "exact inference" in process.stderr.readline()  # both compute the first layer
    children = children_of(process)
    os.kill(children[stopped], signal.SIGSTOP)
    _, err = process.communicate(timeout=60)
    assert process.returncode not in (0, 1)
    assert "one of 2 processes was killed or did not answer" in err
    assert "Traceback" not in err
    assert not (tmp_path / "out.parquet").exists()
    assert not list(temporary.iterdir())
    for number in children:
        with pytest.raises(ProcessLookupError):
            os.kill(number, 0)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"model.name": "label-propagation"}, "computes all nodes at once"),
        ({"inference.regime": "partition"}, "inference.regime is partition"),
        ({"ensemble.portfolio": "quick", "ensemble.members": ["mlp"]}, "it is an ensemble"),
    ],
)
def test_what_cannot_be_divided_is_refused_in_one_message(
    settings: dict[str, object], reason: str, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    unimp.run("synthetic", settings={**SETTINGS, **settings}, out=folder, report=False)
    process = start("evaluate", folder, "--devices", 2)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err.count("error:") == 1
    assert reason in err
    assert "without --devices" in err


def test_the_processes_that_trained_a_model_score_it_together(tmp_path: Path) -> None:
    settings = {**SETTINGS, "batch.regime": "neighbors", "inference.chunk_edges": 500}
    options = [text for name, value in settings.items() for text in ("--set", f"{name}={value}")]
    output_of("train", "synthetic", *options, "--out", tmp_path / "run", "--devices", 2)
    assert (tmp_path / "run" / MANIFEST).is_file()
    loaded = unimp.load_run(tmp_path / "run", device="cpu")
    for protocol, scores in loaded.metrics["scores"].items():
        assert loaded.evaluate(protocol) == pytest.approx(scores)
