"""`unimp distill` from the command line."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

import unimp
from unimp.cli import app
from unimp.runs import student as students

SETTINGS = ("--set", "train.epochs=4", "--set", "model.width=8", "--set", "train.device=cpu")


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teacher") / "run"
    settings = {"task.scale": 0.05, "model.name": "label-propagation"}
    unimp.run("synthetic", out=folder, settings=settings, report=False)
    return folder


def test_a_student_is_trained_then_loaded(teacher: Path, tmp_path: Path) -> None:
    command = ["distill", str(teacher), "--out", str(tmp_path / "student"), *SETTINGS]
    first = CliRunner().invoke(app, command, catch_exceptions=False)
    assert first.exit_code == 0, first.output
    for words in ("teacher", "student", "validation", "gain is unknown", str(tmp_path)):
        assert words in first.output
    assert "without a teacher" not in first.output  # the teacher contains no UniMP
    assert "without a teacher" not in (tmp_path / "student" / "report.html").read_text("utf-8")
    again = CliRunner().invoke(app, command, catch_exceptions=False)
    assert "not trained again" in again.output
    found = unimp.load_run(tmp_path / "student", device="cpu")
    assert found.recipe.train.teacher == str(teacher)


def test_an_interrupted_student_names_the_folder_to_resume(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(experiment: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(students, "run_seed", stop)
    result = CliRunner().invoke(app, ["distill", str(teacher), "--out", str(tmp_path / "new")])
    assert result.exit_code == 130
    assert str(tmp_path / "new") in result.output


def test_a_folder_that_is_not_a_run_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["distill", str(tmp_path), "--out", str(tmp_path / "new")])
    assert result.exit_code == 1
    assert str(tmp_path) in str(result.exception)
