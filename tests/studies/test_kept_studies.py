"""The studies in docs/studies: the command on each page gives its runs, and tables are theirs."""

import json
import os
import runpy
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from unimp.cli.console import parse_seeds
from unimp.config.recipe import Recipe, differences, load_recipe
from unimp.studies.cells import Subject, refuse_settings_not_kept, subject_of
from unimp.studies.reproduce import STUDIES

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("UNIMP_DATA") or ROOT.parent / "shared" / "data")
KEPT = sorted((ROOT / "docs" / "studies").glob("*/*.json"))


@pytest.mark.parametrize("task", sorted({path.parent.name for path in KEPT}))
def test_the_commands_of_kept_studies_are_of_their_runs(
    task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNIMP_DATA", str(DATA))
    data = load_recipe(task).task.name
    if not data.startswith("debian") and not (DATA / f"{data}.npz").exists():
        pytest.skip(f"{data}.npz is not here")
    subjects: dict[str, Subject] = {}
    for path in (path for path in KEPT if path.parent.name == task):
        kept = json.loads(path.read_text(encoding="utf-8"))
        program, verb, name, *options = shlex.split(kept["command"])
        assert (program, verb, name) == ("unimp", "reproduce", path.stem)
        if not kept["cells"]:
            continue
        settings = [value for key, value in pairwise(options) if key == "--set"]
        on = shlex.join(options)
        if on not in subjects:  # of most tasks one: loading takes longest
            given = dict(pairwise(options))
            seeds = parse_seeds(given["--seeds"])
            subjects[on] = subject_of(
                given["--task"], seeds=seeds, out=Path("runs"), settings=settings
            )
        subject = subjects[on]
        cells = list(STUDIES[name].cells(subject))
        refuse_settings_not_kept(settings, subject, {name: cells})
        recipes = [Recipe.model_validate(cell["recipe"]) for cell in kept["cells"].values()]
        assert len(cells) == len(recipes)
        for cell in cells:
            assert any(not differences(cell.recipe, recipe) for recipe in recipes), cell.name
        assert list(subject.seeds) == kept["seeds"]


@pytest.mark.parametrize("kept", KEPT, ids=[f"{p.parent.name}-{p.stem}" for p in KEPT])
def test_the_page_beside_a_kept_study_is_of_the_same_run(kept: Path) -> None:
    found = json.loads(kept.read_text(encoding="utf-8"))
    page = kept.with_suffix(".md").read_text(encoding="utf-8")
    assert f"`{found['command']}`" in page
    for claim in found["claims"]:
        assert claim["ours"] in page
    assert (f"({kept.stem}.svg)" in page) == kept.with_suffix(".svg").exists()


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return runpy.run_path(str(ROOT / "benchmarks" / "studies.py"))


def test_the_tables_of_studies_are_those_of_the_files(tables: dict[str, Any]) -> None:
    texts = [page.read_text(encoding="utf-8") for page in tables["PAGES"]]
    for marker in ("studies", "differences"):
        assert any(f"<!-- results: {marker} -->" in text for text in texts)
    assert [tables["written"](text) for text in texts] == texts


def test_every_kept_task_stands_in_the_tables(tables: dict[str, Any]) -> None:
    assert {path.parent.name for path in KEPT} == set(tables["TASKS"])
