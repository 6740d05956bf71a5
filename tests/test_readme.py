"""What the README shows works as written."""

from __future__ import annotations

import json
import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.main import get_command

import unimp
from unimp.cli import app
from unimp.config.recipe import load_recipe
from unimp.studies.cells import recipe_hash

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCS = (ROOT / "docs").glob("*.md")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_session_runs_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    real = unimp.run

    def shorter(*arguments: Any, **options: Any) -> unimp.Run:
        return real(*arguments, **options, settings=["train.epochs=1", "model.width=4"])

    monkeypatch.setattr(unimp, "run", shorter)
    names: dict[str, Any] = {}
    exec(blocks("python")[0], names)
    run = names["run"]
    assert 7 in run.task.split.test  # its label is not an input yet
    assert (tmp_path / "runs" / "first" / "report.html").is_file()


def test_a_graph_from_arrays_becomes_a_file_to_train_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {
        "unimp": unimp,
        "edge_index": np.array([[0, 1, 2, 3], [1, 2, 3, 0]]),
        "features": np.eye(4),
        "labels": np.array([0, 6, -1, 1]),
        "train": np.array([0]),
        "val": [1],
        "test": np.array([3]),
    }
    real = unimp.run
    settings = ["train.epochs=1", "mask.label_rate=0"]
    monkeypatch.setattr(unimp, "run", lambda *a, **o: real(*a, **o, settings=settings))
    page = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(graph = .*?)```", page, flags=re.DOTALL)
    exec(block, names)
    again = unimp.load_run("runs/mine")
    assert again.task.num_classes == 7
    assert torch.equal(again.predict(), real("mine.npz", settings=settings).predict())


def commands() -> list[str]:
    lines = "".join(blocks("bash")).splitlines()
    return [line.partition(" #")[0].strip() for line in lines if line.startswith("unimp ")]


@pytest.mark.parametrize("line", commands())
def test_each_command_is_understood(line: str) -> None:
    command: Any = get_command(app)
    arguments = shlex.split(line)[1:]
    while arguments and hasattr(command, "commands"):
        command = command.commands[arguments.pop(0)]
    command.make_context(line, arguments)


@pytest.mark.parametrize("page", ["README.md", *sorted(f"docs/{p.name}" for p in DOCS)])
def test_each_link_leads_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for link in set(re.findall(r"\]\(((?!http)[^)#]+)(?:#[^)]*)?\)", text)):
        assert ((ROOT / page).parent / link).exists(), link


@pytest.fixture(scope="module")
def results() -> Iterator[dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        yield runpy.run_path(str(ROOT / "benchmarks" / "results.py"))


def test_the_tables_are_those_of_the_files(results: dict[str, Any]) -> None:
    for page in results["PAGES"]:
        text = page.read_text(encoding="utf-8")
        assert results["with_results"](text, results["FOLDER"]) == text


@pytest.mark.parametrize(
    ("script", "page"),
    [("labels", "findings"), ("small", "findings")],
)
def test_a_benchmark_s_own_table_is_that_of_its_file(
    script: str, page: str, results: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    done = json.loads((results["FOLDER"] / f"{script}.json").read_text(encoding="utf-8"))
    table = runpy.run_path(str(ROOT / "benchmarks" / f"{script}.py"))["markdown"](done)
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    assert f"<!-- results: {script} -->" in text
    assert results["put_between"](text, f"<!-- results: {script} -->", table) == text


@pytest.mark.parametrize("table", ["debian", "debian-tags", "arxiv-labels", "arxiv-guesses"])
def test_no_result_is_of_a_recipe_that_has_changed_since(
    results: dict[str, Any], table: str
) -> None:
    rows = json.loads((results["FOLDER"] / f"{table}.json").read_text(encoding="utf-8"))["rows"]
    assert any(row["runs"] for row in rows)
    for row in rows:
        now = recipe_hash(load_recipe(row["recipe"], row["settings"]))
        assert {run["recipe_hash"] for run in row["runs"]} <= {now}


def test_recipes_of_small_graphs_hold_what_the_search_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    small = runpy.run_path(str(ROOT / "benchmarks" / "small.py"))
    for name, graph in small["SETS"].items():
        inputs = "A,Y" if graph.inputs == "labels" else "X,A,Y"
        recipe = load_recipe(name)
        assert recipe.with_settings(small["best_settings"](name, inputs)) == recipe, name
