"""Pages in a real browser: nothing fails, nothing is fetched, nothing overflows."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")

# Pages have no scripts; this one is added to a copy, to measure it and report the result.
MEASURE = """
<script>
addEventListener("load", () => {
  document.querySelectorAll("details").forEach(e => e.open = true);
  const outside = [], small = [], tall = e => e.getBoundingClientRect().height > 5;
  for (const text of document.querySelectorAll("svg text")) {
    if (!text.closest("svg").getClientRects().length) continue;  // drawn for another width
    const box = text.getBoundingClientRect(), frame = text.closest("svg").getBoundingClientRect();
    if (box.left < frame.left - 2 || box.right > frame.right + 2
        || box.top < frame.top - 2 || box.bottom > frame.bottom + 2) outside.push(text.textContent);
    if (Math.min(box.width, box.height) < 9 && text.textContent.length > 1)
      small.push(text.textContent);
  }
  // Invisible cells: not drawn, or outside of an area that does not scroll.
  const scrolls = e => e && (getComputedStyle(e).overflowX === "auto" || scrolls(e.parentElement));
  const lost = [...document.querySelectorAll("td")].filter(cell =>
    !cell.getClientRects().length
    || (cell.getBoundingClientRect().right > innerWidth && !scrolls(cell)));
  parent.document.title = JSON.stringify({
    lost: lost.map(cell => cell.textContent),
    cells: document.querySelectorAll("td").length,
    width: innerWidth, page: document.documentElement.scrollWidth, outside, small,
    drawn: [...document.querySelectorAll("svg")].filter(tall).length,
    fetched: performance.getEntriesByType("resource").map(e => e.name),
  });
});
</script>
"""


def browse(page: Path, home: Path, width: int) -> tuple[dict[str, Any], list[str]]:
    """The measures of a page in a browser, `width` wide, and the lines on the console."""
    assert BROWSER is not None
    text = page.read_text(encoding="utf-8").replace("</body>", f"{MEASURE}</body>")
    text = re.sub(r"<meta http-equiv=[^>]*>", "", text)  # it would forbid this script
    frame = home / "frame.html"  # windows cannot be as narrow as a phone, frames can
    frame.write_text(
        f"<!doctype html><title></title><iframe width='{width}' height='900' "
        f"style='border: 0' srcdoc='{html.escape(text)}'></iframe>",
        encoding="utf-8",
    )
    done = subprocess.run(
        [
            BROWSER,
            *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            *("--enable-logging=stderr", "--window-size=1400,1000"),
            f"--user-data-dir={home / 'profile'}",
            "--dump-dom",
            frame.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    title = re.search(r"<title>(\{.*?\})</title>", done.stdout)
    assert title, done.stdout[:2000]
    found: dict[str, Any] = json.loads(html.unescape(title[1]))
    return found, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("kind", ["folder", "several", "binary", "crowd"])
def test_a_browser_shows_the_page_whole_on_a_phone_and_on_a_laptop(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, width: int
) -> None:
    place: Path = request.getfixturevalue(kind)
    found, console = browse(place / "report.html", tmp_path, width)
    assert console == []
    assert found["fetched"] == []
    assert found["width"] == width
    assert found["page"] <= width  # only marked parts scroll sideways
    assert found["cells"] > 20
    assert found["lost"] == []  # every cell of every table can be reached
    assert found["outside"] == []
    assert found["small"] == []
    assert found["drawn"] >= 5


def test_an_error_on_the_console_would_be_found(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "broken.html"
    text = (folder / "report.html").read_text(encoding="utf-8")
    broken = text.replace("<body>", "<body><script>nothing.here()</script>")
    page.write_text(broken, encoding="utf-8")
    _, console = browse(page, tmp_path, 1280)
    assert any("nothing is not defined" in line for line in console)
