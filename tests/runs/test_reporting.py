"""Writing report.html into run folders, and pages about many runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from unimp.cli import app
from unimp.errors import OutputError, RunError
from unimp.runs.experiment import run
from unimp.runs.reporting import write_comparison, write_report

SMALL = ["task.scale=0.02", "train.epochs=1", "model.width=4"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("reporting") / "run"
    write_report(place, run("synthetic", out=place, settings=SMALL))
    return place


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no manifest\.json"):
        write_report(tmp_path)


def test_a_page_is_whole_or_the_old_one(folder: Path, tmp_path: Path) -> None:
    place = Path(shutil.copytree(folder, tmp_path / "run"))
    (place / "history.jsonl").write_text("not json", encoding="utf-8")
    before = (place / "report.html").read_bytes()
    with pytest.raises(RunError, match=r"history\.jsonl"):
        write_report(place)
    assert (place / "report.html").read_bytes() == before


def test_the_default_path_is_in_the_only_folder_or_the_current_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    other = Path(shutil.copytree(folder, tmp_path / "other"))
    seen: list[Path] = []
    alone = write_comparison([other], label_rates=False, on_run=seen.append)
    assert alone == (other / "report.html", 1)
    assert write_comparison([folder, other], label_rates=False) == (Path("report.html"), 2)
    assert seen == [other]
    with pytest.raises(OutputError, match="is a folder"):
        write_comparison([folder], tmp_path)


def test_the_command_writes_the_page_and_names_unfinished_runs(
    folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path / "whole")
    path, arguments = tmp_path / "page.html", ["report", str(tmp_path), "--no-label-rates"]
    done = CliRunner().invoke(app, [*arguments, "--out", str(path)])
    assert done.exit_code == 0, done.output
    assert f"1 run: {path}" in done.output.replace("\n", "")
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / "checkpoint.safetensors").touch()
    assert str(begun) not in done.output.replace("\n", "")
    again = CliRunner().invoke(app, arguments)
    assert str(begun) in again.output.replace("\n", "")
