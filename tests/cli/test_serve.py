"""The commands about stored labels; tests/serving tests the service itself."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

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
