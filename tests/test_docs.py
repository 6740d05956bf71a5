"""The pages under docs/: examples run, links lead to files, and numbers are those of files."""

import doctest
import json
import re
import runpy
import textwrap
from pathlib import Path

import pytest

import unimp

DOCS = Path(__file__).parents[1] / "docs"
EXAMPLES = DOCS.parent / "examples"
SHOWN = {
    "scikit-learn.md": "scikit_learn.py",
    "graph-libraries.md": "graph_libraries.py",
    "explaining.md": "explaining.py",
    "predicting.md": "predicting.py",
    "walkthrough.md": "from_raw_files.py",
}
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


def test_the_api_page_lists_every_public_name_once() -> None:
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^::: unimp\.(\w+)$", page, flags=re.MULTILINE)) == sorted(
        unimp.__all__
    )


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    site = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [page.relative_to(DOCS).as_posix() for page in PAGES]
    assert [page for page in pages if page not in site and not page.startswith("studies/")] == []


def test_tables_of_the_search_for_settings_are_those_of_its_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    benchmarks = DOCS.parent / "benchmarks"
    monkeypatch.syspath_prepend(str(benchmarks))
    table = runpy.run_path(str(benchmarks / "search.py"))["table"]
    tried = json.loads((benchmarks / "results" / "debian-search.json").read_text("utf-8"))
    page = (DOCS / "decisions/0008-settings-of-the-debian-recipes.md").read_text("utf-8")
    shown = re.findall(r"<!-- search: stage (\d) -->\n(.*?)\n<!-- end -->", page, flags=re.DOTALL)
    assert dict(shown) == {str(stage): table(tried, stage).strip() for stage in (1, 2, 3)}


@pytest.mark.parametrize(("page", "example"), SHOWN.items(), ids=SHOWN)
def test_a_page_shows_the_marked_lines_of_its_example(page: str, example: str) -> None:
    text = (EXAMPLES / example).read_text(encoding="utf-8")
    marked = re.findall(r"# \[[a-z-]+\]\n(.*?)\n *# \[end\]", text, flags=re.DOTALL)
    shown = (DOCS / page).read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)\n```", shown, flags=re.DOTALL)
    assert sorted(blocks) == sorted(textwrap.dedent(part).strip("\n") for part in marked)


def test_the_example_for_scikit_learn_runs() -> None:
    accuracy = runpy.run_path(str(EXAMPLES / "scikit_learn.py"))["main"](epochs=5)
    assert accuracy > 0.4  # of three fields


def test_the_example_for_other_libraries_runs(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch_geometric.data", reason="needs torch_geometric")
    runpy.run_path(str(EXAMPLES / "graph_libraries.py"))["main"](epochs=2)
    assert "karate club" in capsys.readouterr().out


def test_the_example_for_explanations_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert runpy.run_path(str(EXAMPLES / "explaining.py"))["main"](epochs=25) >= 0.6
    assert "labels look wrong" in capsys.readouterr().out


def test_figures_of_the_page_on_explanations_are_those_measured() -> None:
    page = (DOCS / "explaining.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r"<!-- (\w+: [\w, ]+) -->(.*?)<!-- end -->", page))
    explained = json.loads((DOCS.parent / "benchmarks/results/explain.json").read_text("utf-8"))
    audited = json.loads((DOCS.parent / "proofs/results/audit.json").read_text("utf-8"))
    assert shown == {
        "explain: median": f"{explained['median-s']['value']:.2f}",
        "explain: worst": f"{explained['worst-s']['value']:.2f}",
        "explain: alone": f"{explained['alone-median-s']['value']:.2f}",
        "explain: alone, worst": f"{explained['alone-worst-s']['value']:.2f}",
        "explain: found": f"{100 * explained['found']['value']:.0f} %",
        "audit: mean": f"{100 * audited['mean']:.0f} %",
        "audit: least": f"{100 * audited['minimum']:.0f} %",
    }


def test_the_example_for_predicting_runs(tmp_path: Path) -> None:
    main = runpy.run_path(str(EXAMPLES / "predicting.py"))["main"]
    assert 0 < main(epochs=1, layers=1, folder=str(tmp_path)) < 1


def test_figures_of_the_page_on_predicting_are_those_measured() -> None:
    page = (DOCS / "predicting.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r"<!-- (\w+: [\w-]+) -->(.*?)<!-- end -->", page))
    results = DOCS.parent / "proofs" / "results"
    error = json.loads((results / "calibration.json").read_text("utf-8"))
    assert error["passed"]
    expected = {
        f"calibration: {when}": f"{error['ece']['test'][when]['mean']:.3f}"
        for when in ("before", "after")
    }
    expected["calibration: worst"] = f"{max(r['ece']['test']['after'] for r in error['runs']):.3f}"
    asked = json.loads((results / "suggest.json").read_text("utf-8"))
    assert asked["passed"]
    smoothed = asked["chosen"]["correct-and-smooth"]
    expected["suggested: smoothed"] = f"{smoothed} of {len(asked['runs'])}"
    for form, means in asked["summary"].items():
        for what in ("suggested", "random"):
            gain = means[f"gain_{what}"]
            text = f"{100 * gain['mean']:+.2f} ± {100 * gain['std']:.2f}"
            expected[f"{what}: {form}"] = text.replace("-", "−")
    assert shown == expected


def test_the_walk_from_raw_files_to_predictions_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = {"games": "play level score", "python": "module import script", "doc": "manual pages"}
    entries = []
    for number in range(90):
        section = list(kinds)[number % 3]
        size = "" if number % 10 == 0 else f"Installed-Size: {number}\n"
        entries.append(
            f"Package: {section}-{number}\nSection: {section}\nPriority: optional\n{size}"
            f"Depends: {section}-{(number + 3) % 90} (>= 1), nowhere | {section}-{number}\n"
            f"Description: {kinds[section]} {number}\n"
        )
    index = tmp_path / "Packages"
    index.write_text("\n".join(entries), encoding="utf-8")
    main = runpy.run_path(str(EXAMPLES / "from_raw_files.py"))["main"]
    found = main(index, str(tmp_path / "run"), **{"model.width": 8, "train.device": "cpu"})
    assert found > 0.9
    assert "hidden sections are correct" in capsys.readouterr().out


def test_pages_show_the_counts_of_the_proofs() -> None:
    filled = runpy.run_path(str(DOCS.parent / "proofs" / "summary.py"))["filled"]
    for name in ("reliability", "resuming", "scale", "processes"):
        page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
        assert filled(page) == page
        assert "<!-- proofs" in page
