"""The page of an explanation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from test_browser import BROWSER, browse

from unimp.report.explanation import LAYOUTS, Layout, explanation_page, picture

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


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_the_picture_shows_every_node_named_once_and_every_link(layout: Layout) -> None:
    drawn = picture(told(), layout)
    assert len(re.findall("<circle", drawn)) == 4
    assert len(re.findall("<path class='link", drawn)) == 3
    assert len(re.findall("class='node known for'", drawn)) == 1
    assert len(re.findall("class='node known against'", drawn)) == 1
    assert len(re.findall("class='node self'", drawn)) == 1


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
