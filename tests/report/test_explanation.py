"""The page of an explanation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from test_browser import BROWSER, browse

from unimp.report.explanation import (
    LAYOUTS,
    SMALL,
    Layout,
    explanation_page,
    others_in_words,
    picture,
    told_briefly,
)

NASTY = "<img src=x onerror=alert(1)>"


def told(**changes: Any) -> dict[str, Any]:
    """An explanation as `Explanation.named` tells it."""
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
    page = explanation_page(told(), NASTY, 10)
    assert "<img" not in page
    assert "&lt;img" in page


@pytest.mark.parametrize("layout", [*LAYOUTS.values(), *SMALL.values()])
def test_the_picture_shows_every_node_named_once_and_every_link(layout: Layout) -> None:
    drawn = picture(told(), layout)
    assert len(re.findall("<circle", drawn)) == 4
    assert len(re.findall("<path class='link", drawn)) == 3
    assert len(re.findall("class='node known for'", drawn)) == 1
    assert len(re.findall("class='node known against'", drawn)) == 1
    assert len(re.findall("class='node self'", drawn)) == 1


def test_a_small_picture_shows_the_strongest_and_how_they_reach_the_node() -> None:
    ends = [f"n{k}" for k in range(8)]
    near = {"hops": 1, "share": 0.1, "without": 0.6}
    many = told(
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


def test_a_class_that_was_asked_for_is_told_beside_those_that_are_likelier() -> None:
    classes = [{"class": "a", "probability": 0.7}, {"class": "b", "probability": 0.2}]
    assert (
        others_in_words(told(**{"class": "a"}, probability=0.7, classes=classes)) == "then b 20.0 %"
    )
    asked = told(**{"class": "b"}, probability=0.2, classes=classes)
    assert others_in_words(asked) == "rather a 70.0 %"


def test_an_explanation_in_brief_names_what_counts_most() -> None:
    first, without, labels, edges = told_briefly(told())
    assert first == "then b 20.0 %"
    assert (
        without == "if no label were seen 50.0 % (−30.00); if it heard from nobody 30.0 % (−50.00)"
    )
    assert labels == f"labels that count most: {NASTY} +20.00, far −10.00"
    assert edges == f"edges that count most: {NASTY} +10.00"


def test_a_node_without_edges_has_a_page_without_a_picture() -> None:
    bare = told(labels=[], edges=[], attention=[[]], links=[], without_labels=None)
    page = explanation_page(bare, "run", 10)
    assert "<svg" not in page
    assert "if it heard from nobody" in page
    assert "hears from nobody" in page


@pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_the_page_whole(tmp_path: Path, width: int) -> None:
    page = tmp_path / "why.html"
    page.write_text(explanation_page(told(), "run", 10), encoding="utf-8")
    found, console = browse(page, tmp_path, width)
    assert console == []
    assert found["fetched"] == []
    assert found["page"] <= width
    assert found["outside"] == []
    assert found["small"] == []
    assert found["drawn"] == 1
