"""The pages under docs/: their examples run, and their links lead somewhere."""

import doctest
import re
import runpy
import textwrap
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
EXAMPLES = DOCS.parent / "examples"
SHOWN = {"scikit-learn.md": "scikit_learn.py", "graph-libraries.md": "graph_libraries.py"}
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


@pytest.mark.parametrize(("page", "example"), SHOWN.items(), ids=SHOWN)
def test_a_page_shows_the_marked_lines_of_its_example(page: str, example: str) -> None:
    text = (EXAMPLES / example).read_text(encoding="utf-8")
    marked = re.findall(r"# \[[a-z-]+\]\n(.*?)\n *# \[end\]", text, flags=re.DOTALL)
    shown = (DOCS / page).read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)\n```", shown, flags=re.DOTALL)
    assert sorted(blocks) == sorted(textwrap.dedent(part) for part in marked)


def test_the_example_for_scikit_learn_runs() -> None:
    accuracy = runpy.run_path(str(EXAMPLES / "scikit_learn.py"))["main"](epochs=5)
    assert accuracy > 0.4  # of three fields


def test_the_example_for_other_libraries_runs(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch_geometric.data", reason="needs torch_geometric")
    runpy.run_path(str(EXAMPLES / "graph_libraries.py"))["main"](epochs=2)
    assert "karate club" in capsys.readouterr().out
