"""The demo, and the programs and commands of the pages on training and resuming, work."""

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.main import get_command

import unimp
from unimp.cli import app
from unimp.config.presets import PRESETS
from unimp.ensemble.portfolio import PORTFOLIO

ROOT = Path(__file__).parent.parent
PAGES = ("training", "resuming")


def text_of(page: str) -> str:
    return (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_the_program_of_a_page_is_the_file_beside_and_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ROOT / "examples" / f"{page}.py"
    (shown,) = re.findall(r"```python\n(.*?)```", text_of(page), flags=re.DOTALL)
    assert shown == path.read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path))


def commands() -> list[str]:
    lines = "\n".join(text_of(page) for page in PAGES).splitlines()
    return [re.split(r"  +", line)[0] for line in lines if line.startswith("unimp ")]


@pytest.mark.parametrize("line", commands())
def test_each_command_is_understood(line: str) -> None:
    command: Any = get_command(app)
    name, *arguments = shlex.split(line)[1:]
    command.commands[name].make_context(line, arguments)


def test_the_table_of_presets_says_what_they_are() -> None:
    for name, preset in PRESETS.items():
        row, *_ = re.findall(rf"^\| `{name}` \|.*$", text_of("training"), flags=re.MULTILINE)
        assert f"| {preset.seconds:g} s |" in row
        assert f"| {sum(name in member.presets for member in PORTFOLIO)} |" in row


def test_the_demo_compares_all_models_and_draws_a_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    demo = runpy.run_path(str(ROOT / "examples" / "demo.py"))
    folder = demo["main"](["train.epochs=2", "model.width=4", "model.layers=2"], most_trees=2)
    found = json.loads((folder / "demo.json").read_text(encoding="utf-8"))
    models = [row["model"] for row in found["rows"]]
    assert models == [
        "MLP",
        *["boosted trees"] * 2,
        "label propagation",
        *["UniMP"] * 2,
        "UniMP, not retrained",
    ]
    assert len({row["sees"] for row in found["rows"]}) == 6  # MLP and trees see the same
    printed = capsys.readouterr().out
    table = [line for line in printed.splitlines() if line.startswith("│")]
    for row, line in zip(found["rows"], table, strict=True):
        assert row["model"] in line
        assert f"{100 * row['accuracy']:.1f} %" in line
        assert row["accuracy"] > 0.2  # five classes of the same size
    numbers, coordinates, propagation = (row["accuracy"] for row in found["rows"][1:4])
    assert coordinates > numbers
    assert propagation > 0.6
    report = (folder / "unimp" / "report.html").read_text(encoding="utf-8")
    assert report.count("data:image/png") == 4  # known labels, predictions, errors, confidence
    (node,) = re.findall(rf"explain {folder}/unimp (\d+)", printed)
    run = unimp.load_run(folder / "unimp")
    assert int(node) in run.task.split.test


def test_the_demo_scores_all_rows_on_nodes_that_stay_unknown(tmp_path: Path) -> None:
    demo = runpy.run_path(str(ROOT / "examples" / "demo.py"))
    task = unimp.load_task("california")
    one = demo["Comparison"](task, tmp_path, Console(quiet=True), 0)
    assert len(one.arriving) == len(task.labels) // 4
    assert torch.equal(torch.cat((one.arriving, one.scored)).sort()[0], task.split.test.sort()[0])
    answers = task.labels.clone()
    answers[one.arriving] = (answers[one.arriving] + 1) % 5  # wrong wherever it must not count

    class Answers:
        def predict(self, later: torch.Tensor, *, reveal: str) -> torch.Tensor:
            assert reveal == "train"
            assert torch.equal(torch.nonzero(later >= 0).squeeze(1), one.arriving.sort()[0])
            return torch.nn.functional.one_hot(answers, 5)

    one.add_later_labels(Answers())
    assert [row.accuracy for row in one.rows] == [1.0]


def test_killed_at_random_moments_a_run_ends_in_the_same_bytes(tmp_path: Path) -> None:
    """The short form of proofs/kill.py."""
    proof, settings = (
        ROOT / "proofs" / "kill.py",
        ["--set", "train.epochs=8", "--regimes", "full", "neighbors"],
    )
    done = subprocess.run(
        [
            sys.executable,
            proof,
            "--kills",
            "1",
            "--aimed",
            "0",
            "--others",
            "2",
            *settings,
            "--out",
            tmp_path / "kill.json",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 of 6 equal" in done.stdout


def test_killed_at_random_moments_a_store_ends_in_the_same_hashes(tmp_path: Path) -> None:
    """The short form of proofs/store.py."""
    proof, results = ROOT / "proofs" / "store.py", tmp_path / "store.json"
    options = ["--scale", "1e-5", "--kills", "2", "--folder", tmp_path, "--results", results]
    done = subprocess.run([sys.executable, proof, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(results.read_text(encoding="utf-8")).values()
    assert found["killed"] == {**found["killed"], "kills": 2, "different": 0}
    assert set(found["equal"].values()) == set(found["verify"].values()) == {True}


def test_two_processes_train_on_a_store_within_a_memory_limit(tmp_path: Path) -> None:
    """The short form of proofs/large_training.py."""
    proof, results = ROOT / "proofs" / "large_training.py", tmp_path / "large_training.json"
    options = ["--scale", "1e-5", "--parts", "train", "--folder", tmp_path, "--results", results]
    done = subprocess.run([sys.executable, proof, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(results.read_text(encoding="utf-8")).values()
    first, second = found["train"]["epochs"]
    assert second["loss"] < first["loss"]
    assert set(second["scores"]) == {"val", "test"}
    assert 0 < found["train"]["peak_anonymous_bytes"] < 2**30
    assert found["train"]["estimate"]["memory"] > 0


def test_predictions_within_a_memory_limit_equal_those_in_memory(tmp_path: Path) -> None:
    """The short form of proofs/inference.py."""
    proof, results = ROOT / "proofs" / "inference.py", tmp_path / "inference.json"
    options = ["--scale", "1e-5", "--folder", tmp_path, "--results", results]
    done = subprocess.run([sys.executable, proof, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(results.read_text(encoding="utf-8")).values()
    ways = {name: way["way"] for name, way in found["compared"].items()}
    assert ways["ranges"] == ways["2 ranks"] == ["ranges"]
    assert ways["streamed"] == ways["4 ranks"] == ["streamed"]
    assert all(way["difference"] <= 1e-5 for way in found["compared"].values())


@pytest.mark.skipif(os.name == "nt", reason="gloo over files needs a POSIX system")
def test_one_two_and_four_processes_train_the_same_weights(tmp_path: Path) -> None:
    """The short form of proofs/ranks.py."""
    proof, results = ROOT / "proofs" / "ranks.py", tmp_path / "ranks.json"
    options = ["--tasks", "4", "--kills", "0", "--out", results]
    done = subprocess.run([sys.executable, proof, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(results.read_text(encoding="utf-8"))["equality"]
    assert found["largest_relative_difference"] <= 1e-9
    assert found["same_bits_twice"] == found["trainings"] == 12
    assert found["leaks"] == 0
    assert set(found["with_attention_dropout"].values()) == {1}  # in each regime
