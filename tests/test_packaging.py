"""The package is built without a compiler, and one wheel serves every Python version."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def wheel_built_without_compiler(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The wheel, and what the build printed."""
    folder = tmp_path_factory.mktemp("source")
    for name in FILES:
        shutil.copy(ROOT / name, folder)
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", folder / "src", ignore=ignored)
    done = subprocess.run(
        [sys.executable, "setup.py", "bdist_wheel"],
        cwd=folder,
        env={**os.environ, "CC": "no-such-compiler", "CXX": "no-such-compiler"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel, done.stdout + done.stderr


def test_without_a_compiler_the_wheel_is_built_without_the_core(
    wheel_built_without_compiler: tuple[Path, str],
) -> None:
    wheel, printed = wheel_built_without_compiler
    assert "native core was not built" in printed
    assert "no-such-compiler" in printed
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]


def test_the_wheel_is_for_every_python_version(
    wheel_built_without_compiler: tuple[Path, str],
) -> None:
    python, abi, platform = wheel_built_without_compiler[0].stem.split("-")[2:]
    assert (python, abi) == ("py3", "none")
    assert platform != "any"


def test_the_wheel_contains_every_file_of_the_package(
    wheel_built_without_compiler: tuple[Path, str],
) -> None:
    src = ROOT / "src"
    paths = [path for path in (src / "unimp").rglob("*") if path.is_file()]
    wanted = {
        path.relative_to(src).as_posix()
        for path in paths
        if path.suffix not in (".so", ".pyc") and "__pycache__" not in path.parts
    }
    names = set(zipfile.ZipFile(wheel_built_without_compiler[0]).namelist())
    assert wanted <= names
    assert {"unimp/ops/native/core.h", "unimp/config/recipes/debian.toml"} <= names
