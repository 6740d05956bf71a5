"""The studies in docs/studies: their commands, pages and tables agree with the stored numbers."""

import json
import os
import runpy
import shlex
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from unimp.config.recipe import load_recipe
from unimp.config.seeds import parse_seeds
from unimp.studies import pages
from unimp.studies.cells import (
    Subject,
    changed_settings,
    recipe_hash,
    refuse_overwritten_settings,
    subject_of,
)
from unimp.studies.reproduce import STUDIES

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("UNIMP_DATA") or ROOT.parent / "shared" / "data")
KEPT = sorted((ROOT / "docs" / "studies").glob("*/*.json"))


@pytest.mark.parametrize("task", sorted({path.parent.name for path in KEPT}))
def test_the_command_of_a_stored_study_gives_its_recipes(
    task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNIMP_DATA", str(DATA))
    data = load_recipe(task).task.name
    if not data.startswith("debian") and not (DATA / f"{data}.npz").exists():
        pytest.skip(f"{data}.npz is not available")
    subjects: dict[str, Subject] = {}
    for path in (path for path in KEPT if path.parent.name == task):
        kept = json.loads(path.read_text(encoding="utf-8"))
        program, verb, name, *options = shlex.split(kept["command"])
        assert (program, verb, name) == ("unimp", "reproduce", path.stem)
        if not kept["cells"]:
            continue
        settings = [value for key, value in pairwise(options) if key == "--set"]
        on = shlex.join(options)
        if on not in subjects:  # loading takes the longest
            given = dict(pairwise(options))
            seeds = parse_seeds(given["--seeds"])
            subjects[on] = subject_of(
                given["--task"], seeds=seeds, out=Path("runs"), settings=settings
            )
        subject = subjects[on]
        cells = list(STUDIES[name].cells(subject))
        refuse_overwritten_settings(settings, subject, {name: cells})
        assert list(kept["cells"]) == [cell.name for cell in cells]
        for cell in cells:
            stored = kept["cells"][cell.name]
            assert stored["settings"] == changed_settings(cell.recipe, subject.recipe), cell.name
            assert stored["recipe_hash"] == recipe_hash(cell.recipe), cell.name
            assert (stored["train_share"], stored["unfit"]) == (cell.train_share, cell.unfit)
        assert list(subject.seeds) == kept["seeds"]


@pytest.mark.parametrize("kept", KEPT, ids=[f"{p.parent.name}-{p.stem}" for p in KEPT])
def test_a_stored_page_is_rendered_from_the_stored_numbers(kept: Path, tmp_path: Path) -> None:
    shutil.copy(kept, tmp_path)
    page = pages.render(STUDIES[kept.stem], tmp_path / kept.name)
    assert page.read_text("utf-8") == kept.with_suffix(".md").read_text("utf-8")
    drawn, stored = page.with_suffix(".svg"), kept.with_suffix(".svg")
    assert drawn.exists() == stored.exists()
    assert not stored.exists() or drawn.read_bytes() == stored.read_bytes()


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return runpy.run_path(str(ROOT / "benchmarks" / "studies.py"))


def test_the_tables_of_studies_are_those_of_the_files(tables: dict[str, Any]) -> None:
    texts = [page.read_text(encoding="utf-8") for page in tables["PAGES"]]
    for marker in ("studies", "differences"):
        assert any(f"<!-- results: {marker} -->" in text for text in texts)
    assert [tables["with_tables"](text) for text in texts] == texts


def test_every_stored_task_is_in_the_tables(tables: dict[str, Any]) -> None:
    assert {path.parent.name for path in KEPT} == set(tables["TASKS"])
