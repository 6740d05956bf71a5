"""Explanations are stored in the run folder and belong to one state of the run."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from unimp.runs.experiment import run
from unimp.runs.folder.explanations import store_explanation, stored_explanations
from unimp.runs.folder.files import with_digest, write_json


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    run("synthetic", out=folder, settings=["task.scale=0.02", "train.epochs=1", "model.width=4"])
    return folder


@pytest.fixture
def place(trained: Path, tmp_path: Path) -> Path:
    """A copy of a run."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def found(node: Any = "git", name: str = "libs") -> dict[str, Any]:
    return {
        "node": node,
        "class": name,
        "probability": 0.5,
        "classes": [{"class": name, "probability": 0.5}],
        "observed": None,
        "without_labels": 0.25,
        "without_edges": 0.75,
        "shares_are": "attention",
        "followed": 1.0,
        "known_labels": 1,
        "exact_labels": 1,
        "exact_edges": 0,
        "labels": [
            {"node": "tar", "label": "net", "hops": 1, "share": 1.0, "without": 0.1, "effect": 0.4}
        ],
        "edges": [],
        "attention": [[{"node": "tar", "weight": 1.0}]],
        "links": [{"source": "tar", "target": node, "share": 1.0}],
        "smooth": "none",
        "computed": "in no time",
    }


def test_what_is_stored_is_read_back_the_newest_first(place: Path) -> None:
    assert stored_explanations(place).stored == []
    path = store_explanation(place, found("git"), {"labels": "more.csv"})
    assert path.parent == place / "explanations"
    store_explanation(place, found("vim"), {})
    vim, git = stored_explanations(place).stored
    assert (vim.found, vim.given) == (found("vim"), {})
    assert (git.found, git.given) == (found("git"), {"labels": "more.csv"})
    store_explanation(place, found("git"), {"labels": "more.csv"})  # the same question again
    assert [one.found["node"] for one in stored_explanations(place).stored] == ["git", "vim"]


def test_another_question_about_a_node_is_another_explanation(place: Path) -> None:
    for more in ({}, {"labels": "more.csv"}):
        for name in ("libs", "net"):
            store_explanation(place, found(name=name), more)
    store_explanation(place, {**found(), "smooth": "correct-and-smooth"}, {})
    assert len(stored_explanations(place).stored) == 5


@pytest.mark.parametrize("name", ["../../up", "a/b", "", ".", "ä ö", "x" * 300, "<img>", 7])
def test_any_name_makes_a_file_in_the_folder_of_explanations(place: Path, name: str | int) -> None:
    path = store_explanation(place, found(name), {})
    assert path.resolve().parent == (place / "explanations").resolve()
    assert re.fullmatch(r"[\w.-]+", path.name, re.ASCII)
    assert len(path.name) < 100
    assert [one.found["node"] for one in stored_explanations(place).stored] == [name]


def test_names_that_differ_in_case_or_odd_letters_have_their_own_files(place: Path) -> None:
    names = ["Git", "git", "gi t", "gi/t"]
    files = {store_explanation(place, found(name), {}).name.lower() for name in names}
    assert len(files) == len(names)


def test_explanations_of_a_run_that_was_trained_again_are_stale(place: Path) -> None:
    store_explanation(place, found(), {})
    manifest = json.loads((place / "manifest.json").read_text(encoding="utf-8"))
    write_json(place / "manifest.json", with_digest({**manifest, "created": "later"}))
    explanations = stored_explanations(place)
    assert (len(explanations.stored), explanations.stale) == (0, 1)


def test_damaged_files_are_counted(place: Path) -> None:
    path = store_explanation(place, found(), {})
    values = json.loads(path.read_text(encoding="utf-8"))
    for number, text in enumerate(("", "[]", json.dumps({**values, "given": 3}), "[" * 100_000)):
        (path.parent / f"damaged-{number}.json").write_text(text, encoding="utf-8")
    (path.parent / ".half.json.x1").write_text("half", encoding="utf-8")
    os.mkfifo(path.parent / "zz.json")  # without a writer, reading would wait forever
    (path.parent / "folder.json").mkdir()
    explanations = stored_explanations(place)
    assert (len(explanations.stored), explanations.damaged) == (1, 6)
