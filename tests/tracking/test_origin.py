"""Version, commit and local changes of the code behind a result."""

import shutil
import subprocess
from pathlib import Path

import pytest

import unimp
from unimp.tracking import origin


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    command = ["git", *identity, *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package in a folder below the root of a checkout, committed."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    package = tmp_path / "src" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (tmp_path / "notes.md").write_text("")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "Begin")
    return package


def test_a_committed_package_has_its_commit(package: Path) -> None:
    head = git(package, "rev-parse", "HEAD").strip()
    assert origin._commit_and_dirty(package) == (head, False)


@pytest.mark.parametrize(
    ("file", "dirty"),
    [
        ("src/package/__init__.py", True),
        ("src/package/new.toml", True),
        ("benchmark.py", True),
        ("notes.md", False),  # results and pages do not change what the code computes
    ],
)
def test_only_changed_code_is_dirty(package: Path, file: str, dirty: bool) -> None:
    (package.parents[1] / file).write_text("changed")
    assert origin._commit_and_dirty(package)[1] is dirty


def test_a_package_that_git_does_not_track_has_no_commit(package: Path, tmp_path: Path) -> None:
    installed = tmp_path / "environment" / "package"
    shutil.copytree(package, installed)
    assert origin._commit_and_dirty(installed) == (None, None)


def test_another_repository_in_the_environment_is_not_used(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = origin._commit_and_dirty(package)
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert origin._commit_and_dirty(package) == expected


def test_without_git_there_is_a_version_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    origin.code_origin.cache_clear()
    found = origin.code_origin()
    origin.code_origin.cache_clear()
    assert found == {"version": unimp.__version__, "commit": None, "dirty": None}
