"""One HTML file a run, readable anywhere."""

from __future__ import annotations

import json
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from unimp.errors import RunError
from unimp.report import write_report
from unimp.run import run

SMALL = ["task.scale=0.02", "train.epochs=4", "model.width=4"]
VOID = {"meta"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("report") / "run"
    run("synthetic", seed=3, out=place, settings=SMALL)
    write_report(place)
    return place


class Balance(HTMLParser):
    """Collects tags left open and attributes that would fetch something."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.fetched += [v or "" for k, v in attrs if k in ("src", "href", "srcset", "action")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A tag that closes itself leaves nothing open."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_fetches_nothing(folder: Path) -> None:
    page = (folder / "report.html").read_text(encoding="utf-8")
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    assert parser.fetched == []
    assert "<script" not in page
    assert "http" not in page.replace("<!doctype html>", "")


def test_the_page_shows_scores_protocol_recipe_and_manifest(folder: Path) -> None:
    page = (folder / "report.html").read_text(encoding="utf-8")
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    for protocol in ("train", "train+val"):
        assert f"{metrics['scores'][protocol]['test']:.4f}" in page
    assert "train labels (the headline)" in page
    assert "<b>4</b>" in page  # model.width and train.epochs, changed from their defaults
    assert manifest["data_hash"] in page


def test_names_from_outside_are_escaped(tmp_path: Path) -> None:
    place = tmp_path / "run"
    run("synthetic", out=place, settings=SMALL)
    text = (place / "recipe.toml").read_text(encoding="utf-8")
    (place / "recipe.toml").write_text(
        text.replace('about = ""', 'about = "<img src=x onerror=alert(1)>"'), encoding="utf-8"
    )
    assert "<img" not in write_report(place).read_text(encoding="utf-8")


def test_a_run_without_training_has_a_page_too(tmp_path: Path) -> None:
    place = tmp_path / "run"
    run("synthetic", out=place, settings=[*SMALL, "model.name=label-propagation"])
    assert "nothing trained" in write_report(place).read_text(encoding="utf-8")


def test_a_folder_that_holds_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no manifest\.json"):
        write_report(tmp_path)


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_a_browser_draws_the_curves(folder: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            "chromium",
            *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            f"--user-data-dir={tmp_path}",
            "--dump-dom",
            (folder / "report.html").as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.count("<path") == 3
