"""The files of the page: vendored code is unchanged, nothing is inline, and it works in a browser.

The complete list of browser scenarios is proofs/serve_page.py.
"""

import hashlib
import os
import re
import runpy
from collections.abc import Callable, Iterator
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import unimp.serving

PAGE = Path(unimp.serving.__file__).parent / "page"
VENDOR = PAGE / "vendor"
PROOFS = Path(__file__).parents[2] / "proofs"
SHORT = ("label by key", "undo with U", "two pages in conflict", "hostile ids and classes")


def sources() -> list[list[str]]:
    lines = (VENDOR / "SOURCES.txt").read_text(encoding="utf-8").splitlines()
    return [line.split() for line in lines if re.match(r"[0-9a-f]{64} ", line)]


def own_modules() -> list[Path]:
    return sorted(PAGE.glob("*.js"))


def test_vendored_files_are_those_of_the_packages() -> None:
    listed = {name for _, _, name, _, _ in sources()}
    assert listed == {path.name for path in VENDOR.iterdir()} - {"SOURCES.txt"}
    for here, there, name, _, _ in sources():
        stored = (VENDOR / name).read_bytes()
        assert hashlib.sha256(stored).hexdigest() == here, name
        # The only difference to a package is the address of Preact in an import.
        original = stored.replace(b'from"./preact.js"', b'from"preact"')
        assert hashlib.sha256(original).hexdigest() == there, name


def test_each_package_has_its_license() -> None:
    packages = {package.partition("@")[0] for _, _, _, package, _ in sources()}
    assert packages == {"preact", "htm"}
    assert all((VENDOR / f"LICENSE-{package}.txt").stat().st_size > 500 for package in packages)


def test_the_page_has_no_inline_script_or_style_and_names_no_other_host() -> None:
    found: list[tuple[str, dict[str, str | None]]] = []

    class Elements(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.append((tag, dict(attrs)))

    Elements().feed((PAGE / "index.html").read_text(encoding="utf-8"))
    assert all(attrs.get("src") for tag, attrs in found if tag == "script")
    assert not [tag for tag, _ in found if tag == "style"]
    for _, attrs in found:
        assert not [name for name in attrs if name == "style" or name.startswith("on")]
        for address in (attrs.get("src"), attrs.get("href")):
            assert address is None or (PAGE.parent / address).is_file()


def test_no_module_turns_text_into_markup_or_code() -> None:
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|https?:"
    )
    for path in own_modules():
        assert not re.findall(forbidden, re.sub(r"//.*", "", path.read_text())), path.name


def test_modules_import_only_files_that_exist() -> None:
    for path in own_modules():
        for name in re.findall(r'from "([^"]+)"', path.read_text(encoding="utf-8")):
            assert (PAGE / name).is_file(), f"{path.name} imports {name}"


def contrast(one: str, other: str) -> float:
    """The contrast of two colors, as WCAG 2 defines it."""

    def luminance(color: str) -> float:
        parts = [int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_text_has_enough_contrast_in_both_themes() -> None:
    css = (PAGE / "page.css").read_text(encoding="utf-8")
    themes = [
        dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})\b", part)) for part in css.split("}")[:2]
    ]
    assert len(themes) == 2
    for colors in themes:
        for back in ("page", "card", "sunk"):
            for text in ("ink", "soft", "accent", "bad", "doubt"):
                assert contrast(colors[text], colors[back]) >= 4.5, (text, back)
            assert contrast(colors["edge"], colors[back]) >= 3.0, back
        assert contrast(colors["accent"], colors["accent-soft"]) >= 4.5
        assert contrast(colors["on-accent"], colors["accent"]) >= 4.5


def test_both_ways_to_the_dark_theme_have_the_same_colors() -> None:
    css = (PAGE / "page.css").read_text(encoding="utf-8")
    chosen, preferred = re.findall(r"color-scheme: dark;(.*?)}", css, re.DOTALL)
    assert chosen.split() == preferred.split()


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Any]]:
    """A function that runs a scenario in a browser."""
    pytest.importorskip("fastapi", reason="the service needs the extra [serve]")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(PROOFS)
        proof = runpy.run_path(str(PROOFS / "serve_page.py"))
    if why := proof["cannot_browse"]():
        pytest.skip(why)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with proof["served"](tmp_path_factory.mktemp("page")) as both:
        yield partial(proof["run_scenario"], *both)


@pytest.mark.parametrize("name", SHORT)
def test_in_a_browser(scenario: Callable[[str], Any], name: str) -> None:
    result = scenario(name)
    assert result["passed"], result["problem"]
