"""Explanations: their picture, their own page, and their place in the report of a run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_browser import BROWSER, browse
from test_page import Page

from unimp.report import explanation
from unimp.report.evidence import Explanations, StoredExplanation
from unimp.report.explanation import (
    LAYOUTS,
    MOST,
    SMALL,
    Layout,
    explanation_page,
    others_in_words,
    picture,
    summary,
)
from unimp.report.page import page_html
from unimp.runs.evidence import gather

NASTY = "<img src=x onerror=alert(1)>"


def found(**changes: Any) -> dict[str, Any]:
    """An explanation as `Explanation.to_dict` returns it."""
    label = {"hops": 1, "share": 0.2, "without": 0.6, "effect": 0.2}
    edge = {"both_ways": True, "share": 0.3, "without": 0.7, "effect": 0.1}
    return {
        "node": "a-node-with-a-rather-long-name",
        "class": NASTY,
        "probability": 0.8,
        "classes": [{"class": NASTY, "probability": 0.8}, {"class": "b", "probability": 0.2}],
        "observed": None,
        "without_labels": 0.5,
        "without_edges": 0.3,
        "shares_are": "attention",
        "followed": 1.0,
        "known_labels": 9,
        "exact_labels": 2,
        "exact_edges": 1,
        "labels": [
            {"node": NASTY, "label": "b", **label},
            {"node": "far", "label": "b", **label, "hops": 2, "effect": -0.1},
            {"node": "other", "label": "b", **label, "without": None, "effect": None},
        ],
        "edges": [{"source": NASTY, "target": "a-node-with-a-rather-long-name", **edge}],
        "attention": [[{"node": NASTY, "weight": 0.4}]],
        "links": [
            {"source": NASTY, "target": "a-node-with-a-rather-long-name", "share": 0.3},
            {"source": "far", "target": NASTY, "share": 0.1},
            {"source": "other", "target": "a-node-with-a-rather-long-name", "share": 0.1},
        ],
        "computed": "in no time",
        **changes,
    }


def test_names_from_outside_are_text_and_never_markup() -> None:
    page = explanation_page(found(), NASTY, 10)
    assert "<img" not in page
    assert "&lt;img" in page


@pytest.mark.parametrize("layout", [*LAYOUTS.values(), *SMALL.values()])
def test_the_picture_shows_every_node_named_once_and_every_link(layout: Layout) -> None:
    drawn = picture(found(), layout)
    assert len(re.findall("<circle", drawn)) == 4
    assert len(re.findall("<path class='link", drawn)) == 3
    assert len(re.findall("class='node known for'", drawn)) == 1
    assert len(re.findall("class='node known against'", drawn)) == 1
    assert len(re.findall("class='node self'", drawn)) == 1


def test_a_small_picture_shows_the_strongest_and_how_they_reach_the_node() -> None:
    ends = [f"n{k}" for k in range(8)]
    near = {"hops": 1, "share": 0.1, "without": 0.6}
    many = found(
        node="me",
        labels=[{"node": "far", "label": "b", **near, "effect": -0.2}]
        + [{"node": name, "label": "b", **near, "effect": 0.1} for name in ends],
        edges=[],
        links=[{"source": "far", "target": "n7", "share": 0.1}]
        + [{"source": name, "target": "me", "share": 0.1} for name in ends],
    )
    whole, small = picture(many, LAYOUTS["wide"]), picture(many, SMALL["wide"])
    assert len(re.findall("<path class='link", whole)) == 9
    assert len(re.findall("<path class='link", small)) == 6  # far, n7, and n0 to n3
    assert ">far<" in small
    assert ">n7<" in small
    assert ">n4<" not in small


def test_a_class_that_was_asked_for_is_shown_with_those_that_are_more_likely() -> None:
    classes = [{"class": "a", "probability": 0.7}, {"class": "b", "probability": 0.2}]
    assert (
        others_in_words(found(**{"class": "a"}, probability=0.7, classes=classes))
        == "next: b 20.0 %"
    )
    asked = found(**{"class": "b"}, probability=0.2, classes=classes)
    assert others_in_words(asked) == "more likely: a 70.0 %"


def test_a_summary_names_the_strongest_labels_and_edges() -> None:
    others, without, labels, edges = summary(found())
    assert "b 20.0 %" in others
    assert re.findall(r"[\d.]+ % \(\S+\)", without) == ["50.0 % (−30.00)", "30.0 % (−50.00)"]
    assert labels.endswith(f": {NASTY} +20.00, far −10.00")
    assert edges.endswith(f": {NASTY} +10.00")


def test_a_node_without_edges_has_a_page_without_a_picture() -> None:
    bare = found(labels=[], edges=[], attention=[[]], links=[], without_labels=None)
    page = explanation_page(bare, "run", 10)
    assert "<svg" not in page
    assert "30.0 %" in page  # without edges
    assert "no in-neighbors" in page


@pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_the_page_whole(tmp_path: Path, width: int) -> None:
    page = tmp_path / "why.html"
    page.write_text(explanation_page(found(), "run", 10), encoding="utf-8")
    seen, console = browse(page, tmp_path, width)
    assert console == []
    assert seen["fetched"] == []
    assert seen["page"] <= width
    assert seen["outside"] == []
    assert seen["small"] == []
    assert seen["drawn"] == 1


def asked(number: int, **changes: Any) -> StoredExplanation:
    """The explanation that was asked as the `number`-th."""
    return StoredExplanation(found(**{"node": f"n{number}", **changes}), f"2026-01-{number:02}")


def page_with(folder: Path, explanations: Explanations) -> str:
    return page_html([replace(gather(folder, label_rates=False), explanations=explanations)])


def shown(page: str) -> list[str]:
    """The nodes of the explanations on a page."""
    titles = [title for title in Page(page).figures if title.endswith("%")]
    return [title.partition(":")[0] for title in titles]


def test_a_report_shows_the_newest_explanations_and_counts_the_others(folder: Path) -> None:
    stored = [asked(number) for number in range(MOST + 2)]
    page = page_with(folder, Explanations(stored))
    assert shown(page) == ["n7", "n6", "n5", "n4", "n3", "n2"]
    assert "2 more in" in Page(page).words
    assert "Explanations" in Page(page).titles
    assert "Explanations" not in Page(page_with(folder, Explanations())).titles


def test_only_the_explanations_on_the_page_are_drawn(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[str] = []
    draw = explanation.pictures

    def count(found: Mapping[str, Any], *more: Any) -> Any:
        drawn.append(found["node"])
        return draw(found, *more)

    monkeypatch.setattr(explanation, "pictures", count)
    page_with(folder, Explanations([asked(number) for number in range(MOST + 3)]))
    assert drawn == [f"n{number}" for number in range(MOST + 2, 2, -1)]


def test_explanations_that_cannot_be_drawn_are_counted(folder: Path) -> None:
    damaged = [
        StoredExplanation({"node": 1}, "2026"),
        asked(2, probability="<img>"),
        asked(3, classes=[[]]),
        replace(asked(4), given={"labels": "\ud800"}),
    ]
    page = page_with(folder, Explanations([*damaged, asked(1)], stale=3, damaged=2))
    assert shown(page) == ["n1"]
    assert re.search(r"Not shown: 3 .*\sCannot be read: 6 ", Page(page).words, re.DOTALL)


def test_a_report_of_several_runs_names_the_run_of_each_explanation(several: Path) -> None:
    runs = [
        replace(
            gather(several / f"seed-{seed}", label_rates=False),
            explanations=Explanations([asked(seed)]),
        )
        for seed in (0, 1)
    ]
    page = page_html(runs)
    assert shown(page) == ["n1", "n0"]
    assert re.findall(r"synthetic, seed\xa0(\d)\.", page) == ["1", "0"]


@pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")
@pytest.mark.parametrize("width", [390, 800, 1280])
def test_a_browser_shows_the_explanations_of_a_report_whole(
    folder: Path, tmp_path: Path, width: int
) -> None:
    path = tmp_path / "report.html"
    path.write_text(page_with(folder, Explanations()), encoding="utf-8")
    before, _ = browse(path, tmp_path, width)
    both = [replace(asked(1), given={"labels": "more.csv"}), asked(2, node="b" * 60, links=[])]
    path.write_text(page_with(folder, Explanations(both)), encoding="utf-8")
    after, console = browse(path, tmp_path, width)
    assert console == []
    assert after["fetched"] == []
    assert after["page"] <= width
    assert after["outside"] == []
    assert after["small"] == []
    assert after["drawn"] == before["drawn"] + 1  # one of the two widths is shown
