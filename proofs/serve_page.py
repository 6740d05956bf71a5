"""Use the page of the live label service in a real browser, one scenario at a time.

    python proofs/serve_page.py [NAME ...]        → proofs/results/serve_page.json
    python proofs/serve_page.py --pictures FOLDER
    python proofs/serve_page.py --documents       → docs/images/serve.png, serve-phone.png

A run is trained on two small tables in which ids, classes and columns contain markup, and served by
`unimp serve`. Each scenario opens the page in Chromium and does what a person does, mostly with the
keyboard. It checks what the page shows and what the service has stored. In every scenario, no
script of an id may run, no request may leave the server, and the console may contain no error,
except for the failed requests that the scenario is about.

The browser needs `pip install playwright` and a Chromium on the path.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import page_node
import page_parts
from live_page import BROWSER, EXPECTED, SCENARIOS, Server, Site, free_port, train

import unimp
from unimp.data.files import write_atomically
from unimp.tracking.origin import code_origin

RESULTS = Path(__file__).parent / "results" / "serve_page.json"
FILES = (page_node.__file__, page_parts.__file__)
"""The files that declare the scenarios."""
WIDTHS = ((1440, 900), (768, 1024), (360, 740))


def run_scenario(browser: Any, server: Server, name: str) -> dict[str, Any]:
    """Run one scenario; `problem` is empty if it passed."""
    site, problem, started = Site(browser, server), "", time.monotonic()
    try:
        SCENARIOS[name](site)
    except Exception as error:
        lines = traceback.extract_tb(error.__traceback__)
        where = next((line for line in lines[::-1] if line.filename in FILES), lines[-1])
        text = str(error).strip() or where.line
        problem = f"{Path(where.filename).name}, line {where.lineno}: {text}"[:500]
    try:
        site.close()
    except Exception as error:
        problem = problem or f"the page was lost: {error}"[:500]
    seen = site.seen
    console = [line for line in seen.console if not re.search(EXPECTED.get(name, r"(?!)"), line)]
    if not problem and console:
        problem = f"console: {console[0]}"[:500]
    if not problem and seen.elsewhere:
        problem = f"a request to {seen.elsewhere[0]}"
    if not problem and seen.ran:
        problem = "a script of an id or a class ran"
    return {
        "passed": not problem,
        "problem": problem,
        "seconds": round(time.monotonic() - started, 1),
    }


@contextmanager
def served(folder: Path) -> Iterator[tuple[Any, Server]]:
    """A browser, and the server of a new run."""
    from playwright.sync_api import sync_playwright

    server = Server(train(folder), free_port())
    server.start()
    try:
        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
            try:
                yield browser, server
            finally:
                browser.close()
    finally:
        server.stop()


def take_pictures(browser: Any, server: Server, folder: Path) -> None:
    """Pictures of every part at three widths in both themes, to be looked at."""
    folder.mkdir(parents=True, exist_ok=True)
    for width, height in WIDTHS:
        for theme in ("light", "dark"):
            site = Site(browser, server)
            context = site.context(viewport={"width": width, "height": height}, color_scheme=theme)
            for part in ("label", "table", "audit", "log", "model", "people"):
                page = site.open(f"#/{part}", context)
                page.wait_for_timeout(1_500)
                page.screenshot(path=folder / f"{part}-{width}-{theme}.png", full_page=width < 1000)
                page.close()
            site.close()


def take_documents(images: Path) -> None:
    """The pictures of the documentation, from `unimp serve --demo`."""
    from playwright.sync_api import sync_playwright

    from unimp.serving.demo import RUN, unpack

    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as play:
        unpack(Path(temporary) / "demo")
        server = Server(Path(temporary) / "demo" / RUN, free_port())
        server.start()
        browser = play.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        try:
            for name, width, height in (("serve", 1440, 900), ("serve-phone", 360, 740)):
                site = Site(browser, server)
                context = site.context(viewport={"width": width, "height": height})
                context.set_default_timeout(120_000)
                page = site.open("#/label", context)
                page.wait_for_selector(".picture img", state="attached")
                page.wait_for_selector(".columns >> text=Neighbors")
                page.wait_for_timeout(1_000)
                page.screenshot(path=images / f"{name}.png")
                site.close()
        finally:
            browser.close()
            server.stop()


def cannot_browse() -> str:
    """Why no browser can be used; empty if it can."""
    if BROWSER is None:
        return "chromium is not installed"
    return "" if find_spec("playwright") else "playwright is not installed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="scenarios; all without a name")
    parser.add_argument("--pictures", type=Path, help="take pictures into a folder instead")
    parser.add_argument("--documents", action="store_true", help="take those of docs/ instead")
    given = parser.parse_args()
    if why := cannot_browse():
        sys.exit(f"{why}; see the top of this file")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if given.documents:
        take_documents(Path(__file__).parents[1] / "docs" / "images")
        return
    with (
        tempfile.TemporaryDirectory() as temporary,
        served(Path(temporary)) as (browser, server),
    ):
        chromium = browser.version
        if given.pictures:
            take_pictures(browser, server, given.pictures)
            return
        results = {}
        for name in given.names or SCENARIOS:
            results[name] = run_scenario(browser, server, name)
            print(f"{'passed' if results[name]['passed'] else 'FAILED'}  {name}", flush=True)
            if results[name]["problem"]:
                print(f"        {results[name]['problem']}", flush=True)
    failed = [name for name, result in results.items() if not result["passed"]]
    stored = {
        "scenarios": results,
        "passed": len(results) - len(failed),
        "failed": len(failed),
        "chromium": chromium,
        "unimp": unimp.__version__,
        "code": code_origin(),
        "command": "python proofs/serve_page.py",
    }
    if not given.names:
        write_atomically(RESULTS, (json.dumps(stored, indent=1) + "\n").encode())
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
