"""Explanations that were asked for stand on the run's page until the run is made anew."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from test_browser import BROWSER, browse
from test_explanation import NASTY, told
from test_page import parsed

from unimp.report import kept, write_comparison, write_report
from unimp.report.kept import MOST, keep_explanation, kept_explanations, show_on_page
from unimp.runs.experiment import run


@pytest.fixture
def place(folder: Path, tmp_path: Path) -> Path:
    """A copy of a run and its page, to be asked about."""
    return Path(shutil.copytree(folder, tmp_path / "run"))


def page_of(place: Path) -> str:
    return (place / "report.html").read_text(encoding="utf-8")


def captions(page: str) -> list[str]:
    """The titles of the explanations on a page."""
    return re.findall(r"<b>([^<]*: [^<]*, [^<]*%)</b>", page)


def test_what_was_asked_stands_on_the_page_and_the_rest_of_it_stays(place: Path) -> None:
    before = page_of(place)
    assert "Why these predictions" not in before
    path = keep_explanation(place, told(node="git"), {})
    assert path.parent == place / "explanations"
    assert json.loads(path.read_text(encoding="utf-8"))["explanation"]["node"] == "git"
    assert show_on_page(place) == place / "report.html"
    page = page_of(place)
    assert "Why these predictions" in page
    assert "git: " in page
    shown = page[page.index("<!-- explanations of") : page.index(kept.END)]
    assert page.replace(shown, "") == re.sub("<!-- explanations of .*?-->", "", before)
    assert parsed(page).open == []
    again = write_report(place).read_text(encoding="utf-8")
    assert shown in again


def test_the_newest_come_first_and_a_page_says_how_many_more_there_are(place: Path) -> None:
    for number in range(MOST + 2):
        keep_explanation(place, told(node=f"n{number}"), {})
    keep_explanation(place, told(node="n3"), {})  # asked again: one answer, the newest
    show_on_page(place)
    page = page_of(place)
    names = [title.partition(":")[0] for title in captions(page)]
    assert names == ["n3", "n7", "n6", "n5", "n4", "n2"]
    assert "2 more in <code>explanations/</code>" in page


def test_another_question_about_a_node_is_another_explanation(place: Path) -> None:
    for more in ({}, {"labels": "more.csv"}):
        for name in ("libs", "net"):
            keep_explanation(place, told(**{"class": name}), more)
    assert len(kept_explanations(place).kept) == 4
    show_on_page(place)
    assert page_of(place).count("Asked with labels of more.csv.") == 2


@pytest.mark.parametrize("name", ["../../up", "a/b", "", ".", "ä ö", "x" * 300, NASTY, 7])
def test_any_name_makes_a_file_in_the_folder_of_explanations(place: Path, name: str | int) -> None:
    path = keep_explanation(place, told(node=name), {})
    assert path.resolve().parent == (place / "explanations").resolve()
    assert re.fullmatch(r"[\w.-]+", path.name, re.ASCII)
    assert len(path.name) < 100
    assert [one.told["node"] for one in kept_explanations(place).kept] == [name]


def test_names_that_differ_in_case_or_odd_letters_have_files_of_their_own(place: Path) -> None:
    names = ["Git", "git", "gi t", "gi/t"]
    files = {keep_explanation(place, told(node=name), {}).name.lower() for name in names}
    assert len(files) == len(names)


def test_a_run_made_anew_does_not_show_what_was_asked_before(place: Path, tmp_path: Path) -> None:
    keep_explanation(place, told(node="git"), {})
    show_on_page(place)
    old = page_of(place)
    fresh = tmp_path / "fresh"
    run("synthetic", seed=3, out=fresh, settings=["task.scale=0.05", "train.epochs=5"])
    shutil.copytree(place / "explanations", fresh / "explanations")
    page = write_report(fresh).read_text(encoding="utf-8")
    assert captions(page) == []
    assert "Not shown: 1 in <code>explanations/</code>, asked before the run was made anew" in page
    keep_explanation(fresh, told(node="vim"), {})
    assert show_on_page(fresh) == fresh / "report.html"
    assert [title.partition(":")[0] for title in captions(page_of(fresh))] == ["vim"]
    # A page that is of the run before is left alone.
    (fresh / "report.html").write_text(old, encoding="utf-8")
    assert show_on_page(fresh) is None
    assert page_of(fresh) == old


@pytest.mark.parametrize("name", ["model.safetensors", "predictions.parquet", "metrics.json"])
def test_a_file_that_changed_makes_explanations_stale(place: Path, name: str) -> None:
    keep_explanation(place, told(), {})
    (place / name).write_bytes((place / name).read_bytes() + b" ")
    found = kept_explanations(place)
    assert (len(found.kept), found.stale) == (0, 1)


def test_a_file_that_was_damaged_is_left_out_and_said_so(place: Path) -> None:
    path = keep_explanation(place, told(node="git"), {})
    values = json.loads(path.read_text(encoding="utf-8"))
    for number, text in enumerate(
        (
            "",
            "[]",
            json.dumps({**values, "explanation": {"node": 1}}),
            json.dumps({**values, "explanation": {**told(), "probability": "<img>"}}),
            json.dumps({**values, "given": 3}),
            "[" * 100_000,
            json.dumps({**values, "given": {"labels": "\ud800"}}),
            json.dumps({**values, "explanation": {**told(), "classes": [[]]}}),
        )
    ):
        (path.parent / f"damaged-{number}.json").write_text(text, encoding="utf-8")
    (path.parent / ".half.json.x1").write_text("half", encoding="utf-8")
    os.mkfifo(path.parent / "zz.json")  # nobody writes into it: reading would wait forever
    (path.parent / "folder.json").mkdir()
    show_on_page(place)
    page = page_of(place)
    assert len(captions(page)) == 1
    assert "Cannot be read: 10 in <code>explanations/</code>." in page
    assert "Cannot be read: 10 in" in write_report(place).read_text(encoding="utf-8")


def test_only_what_a_page_shows_is_drawn(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    draw = kept.pictures

    def count(told: Mapping[str, Any], *more: Any) -> str:
        drawn.append(told["node"])
        return draw(told, *more)

    for number in range(MOST + 3):
        keep_explanation(place, told(node=f"n{number}"), {})
    monkeypatch.setattr(kept, "pictures", count)
    show_on_page(place)
    assert drawn == [f"n{number}" for number in range(MOST + 2, 2, -1)]


def test_without_a_page_explanations_wait_for_one(place: Path) -> None:
    (place / "report.html").unlink()
    keep_explanation(place, told(node="git"), {})
    assert show_on_page(place) is None
    assert not (place / "report.html").exists()
    write_comparison([place], label_rates=False)
    assert len(captions(page_of(place))) == 1


def test_a_page_of_several_runs_says_whose_explanations_they_are(
    several: Path, tmp_path: Path
) -> None:
    places = Path(shutil.copytree(several, tmp_path / "several"))
    for seed in (0, 1):
        keep_explanation(places / f"seed-{seed}", told(node=f"n{seed}"), {})
    path, _ = write_comparison([places], label_rates=False)
    page = path.read_text(encoding="utf-8")
    assert [title.partition(":")[0] for title in captions(page)] == ["n1", "n0"]
    assert page.count("Why these predictions") == 1
    assert re.findall(r"By synthetic, seed\xa0(\d)\.", page) == ["1", "0"]


@pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")
@pytest.mark.parametrize("width", [390, 800, 1280])
def test_a_browser_shows_explanations_on_the_page_whole(
    place: Path, tmp_path: Path, width: int
) -> None:
    before, _ = browse(place / "report.html", tmp_path, width)
    keep_explanation(place, told(), {"labels": "more.csv"})
    keep_explanation(place, told(node="b" * 60, links=[]), {})
    show_on_page(place)
    found, console = browse(place / "report.html", tmp_path, width)
    assert console == []
    assert found["fetched"] == []
    assert found["page"] <= width
    assert found["outside"] == []
    assert found["small"] == []
    assert found["drawn"] == before["drawn"] + 1  # of the two widths one is shown
