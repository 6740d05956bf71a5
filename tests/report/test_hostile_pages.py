"""Pages of a hostile run cannot run a script or send a request; the long form is
proofs/hostile_pages.py."""

import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from unimp.data.synthetic import synthetic_task
from unimp.report.evidence import Evidence
from unimp.report.page import page_html
from unimp.runs.evidence import gather
from unimp.runs.experiment import run

PROOF = runpy.run_path(str(Path(__file__).parents[2] / "proofs" / "hostile_pages.py"))
MARKUP = "\"'><script>window.ran = 1</script><img src=x onerror='window.ran = 1'>"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    built: dict[str, Path] = PROOF["build_pages"](tmp_path_factory.mktemp("hostile"))
    return built


def test_no_element_or_attribute_of_a_page_can_do_anything(pages: dict[str, Path]) -> None:
    assert {"report", "map", "binary", "comparison", "explanation", "notebook"} <= pages.keys()
    for kind, path in pages.items():
        parsed = PROOF["parse"](path)
        assert parsed.found == [], kind
        assert sum(parsed.elements.values()) > 50
        assert "onerror" in path.read_text(encoding="utf-8")  # as text


def test_every_page_forbids_scripts_and_requests(pages: dict[str, Path]) -> None:
    for kind in ("report", "map", "binary", "comparison", "explanation"):
        head = pages[kind].read_text(encoding="utf-8").partition("<body>")[0]
        policies = PROOF["POLICY"].findall(head)
        assert len(policies) == 1
        assert "default-src 'none'" in policies[0]
        assert "script-src" not in policies[0]
        assert head.index(policies[0]) < head.index("<title>")  # before anything that it governs


def test_the_parser_finds_what_is_not_escaped(tmp_path: Path) -> None:
    controls = PROOF["control_pages"](tmp_path)
    for path in controls.values():
        assert len(PROOF["parse"](path).found) > 5


@pytest.mark.skipif(bool(PROOF["cannot_browse"]()), reason=PROOF["cannot_browse"]())
def test_nothing_happens_in_a_browser(pages: dict[str, Path], tmp_path: Path) -> None:
    controls = PROOF["control_pages"](tmp_path)
    results = PROOF["browse"](pages | controls)
    for kind in pages:
        assert PROOF["is_quiet"](results[kind]), kind
    assert not PROOF["is_quiet"](results["unescaped"])
    assert results["unescaped with the policy"]["scripts_run"] == 0


def leaves(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The place of every value in nested dictionaries and lists."""
    if isinstance(value, dict | list):
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        return [leaf for key, entry in entries for leaf in leaves(entry, (*place, key))]
    return [place]


def with_leaf(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    """The same values, with a new one at a place."""
    if not place:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[place[0]] = with_leaf(value[place[0]], place[1:], new)
    return copy


@pytest.mark.parametrize("file", ["metrics", "manifest", "history"])
def test_markup_in_any_field_of_a_run_is_shown_as_text_or_refused(
    folder: Path, tmp_path: Path, file: str
) -> None:
    evidence = gather(folder)
    values = getattr(evidence, file)
    shown = 0
    for place in leaves(values)[:60]:
        hostile: Evidence = replace(evidence, **{file: with_leaf(values, place, MARKUP)})
        try:
            text = page_html([hostile])
        except (ValueError, TypeError, KeyError):  # a number or a known word is required
            continue
        page = tmp_path / "page.html"
        page.write_text(text, encoding="utf-8")
        assert PROOF["parse"](page).found == [], place
        shown += "window.ran" in text
    assert shown > 0 or file == "history"


def test_control_characters_of_names_do_not_reach_a_page(tmp_path: Path) -> None:
    task = synthetic_task(num_nodes=60, num_edges=200, num_classes=3, num_features=5)
    names = tuple(f"{k}\x1b[31m\x07\u202e\u2067\u2069" for k in range(3))
    nodes = tuple(f"n{k}\x1b\u202e" for k in range(60))
    task = replace(task, name="a\x1b\u202e", class_names=names, node_names=nodes)
    made = run(task, settings=["train.epochs=1", "train.device=cpu"], out=tmp_path / "run")
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert r"\u001b" in page
    for text in (page, made.explain(nodes[0])._repr_html_()):
        assert not {*text} & {*"\x1b\x07\u202e\u2067"}
