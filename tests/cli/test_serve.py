"""The commands about stored labels; tests/serving tests the service itself."""

from pathlib import Path

import click
import pytest
from typer.testing import CliRunner

from unimp import run
from unimp.cli import app
from unimp.serving.events import Label
from unimp.serving.store import Store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    with Store(folder) as store:
        store.people.add("ann", "labeler")
        store.write("ann", Label(node="a", label="red"))
    return folder


def unimp(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, f"{done.output}{done.exception or ''}"


def test_stored_labels_are_checked_copied_and_exported(folder: Path, tmp_path: Path) -> None:
    assert unimp("serve", "check", folder) == (0, "1 events, no problems\n")
    assert unimp("serve", "backup", folder, tmp_path / "copy.db")[0] == 0
    assert unimp("serve", "check", tmp_path / "copy.db")[0] == 0
    assert unimp("serve", "export", folder, "--out", tmp_path / "labels.csv")[0] == 0
    assert '"a","red"' in (tmp_path / "labels.csv").read_text()
    assert unimp("serve", "export", folder, "--out", folder / "labels.csv")[0] == 1


def test_a_folder_without_a_run_is_not_served(folder: Path) -> None:
    code, text = unimp("serve", folder, "--port", 0)
    assert code == 1
    assert "finished run" in text
    assert unimp("serve", folder, "--demo")[0] == 1
    assert "check" in unimp("serve", "--help")[1]


def test_the_help_shows_the_options_of_serving_a_run_and_the_other_commands() -> None:
    text = click.unstyle(unimp("serve", "--help")[1])
    for word in ("--demo", "--port", "--token-file", "RUN", "backup", "export"):
        assert word in text


def test_a_prediction_mentions_labels_of_the_service_that_are_not_used(tmp_path: Path) -> None:
    folder, out = tmp_path / "run", tmp_path / "predictions.csv"
    settings = ["task.scale=0.01", "train.epochs=2", "model.width=8", "ensemble.portfolio=none"]
    run("synthetic", out=folder, settings=settings, progress=False)
    code, before = unimp("predict", folder, "--out", out)
    with Store(folder) as store:
        store.people.add("ann", "labeler")
        assert unimp("predict", folder, "--out", out, "--force") == (code, before)
        store.write("ann", Label(node="5", label="1"))
    code, text = unimp("predict", folder, "--out", out, "--force")
    assert code == 0
    assert "unimp serve export" in text
    assert "--labels" in text
    labels = tmp_path / "labels.csv"
    assert unimp("serve", "export", folder, "--out", labels)[0] == 0
    code, text = unimp("predict", folder, "--labels", labels, "--out", out, "--force")
    assert code == 0
    assert "unimp serve export" not in text
    (folder / "labels.db").write_text("damaged")
    assert unimp("predict", folder, "--out", out, "--force")[0] == 0
