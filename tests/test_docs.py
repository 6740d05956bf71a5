"""The pages under docs/: their examples run, and their links lead somewhere."""

import doctest
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(DOCS.rglob("*.md"))


def test_the_examples_of_the_concepts_page_run() -> None:
    failed, tried = doctest.testfile(str(DOCS / "concepts.md"), module_relative=False)
    assert failed == 0
    assert tried > 0


@pytest.mark.parametrize("page", PAGES, ids=[str(p.relative_to(DOCS)) for p in PAGES])
def test_links_between_pages_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []
