"""The page for a person with two tables: what it shows is in examples/, and runs."""

import re
import runpy
import shlex
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

import unimp
from unimp.cli import app
from unimp.config.recipe import read_recipe

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "own-data.md").read_text(encoding="utf-8")
EXAMPLES = ROOT / "examples"
SMALL = ["train.epochs=5", "model.width=8", "train.device=cpu"]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the example's tables, to work in."""
    folder = shutil.copytree(EXAMPLES / "own-data", tmp_path / "own-data")
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize(("language", "file"), [("bash", "own_data.sh"), ("python", "own_data.py")])
def test_each_snippet_stands_in_the_example(language: str, file: str) -> None:
    text = (EXAMPLES / file).read_text(encoding="utf-8")
    parts = re.findall(r"# \w+: [^\n]*\n(.*?)# end", text, flags=re.DOTALL)
    assert blocks(language) == [part.lstrip("\n") for part in parts]


def test_the_commands_run_as_written(here: Path) -> None:
    for line in "".join(blocks("bash")).splitlines():
        arguments = shlex.split(line)[1:]
        if arguments[0] == "train":
            arguments += [word for setting in SMALL for word in ("--set", setting)]
        result = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output
    later = pd.read_csv(here / "later.csv")
    known, new = pd.read_csv(here / "packages.csv"), pd.read_csv(here / "new-packages.csv")
    assert later["node"].tolist() == [*known["package"], *new["package"]]
    assert set(later["prediction"]) <= set(known["section"].dropna())


def test_the_python_example_runs_as_written(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = unimp.run

    def shorter(*arguments: Any, **options: Any) -> unimp.Run:
        return real(*arguments, **options, settings=SMALL)

    monkeypatch.setattr(unimp, "run", shorter)
    runpy.run_path(str(EXAMPLES / "own_data.py"))
    assert "stockfish" in capsys.readouterr().out


def test_the_recipe_that_is_shown_is_one() -> None:
    recipe = read_recipe(blocks("toml")[0], "shown")
    assert recipe.task.name == "tables"
    assert recipe.tables.features == {"words": "text", "relations": "numeric"}
