"""The tables of docs/strength.md and docs/findings.md are those of benchmarks/results."""

import runpy
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("docs/strength.md", "docs/findings.md", "README.md")


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return ROOT / "benchmarks"


def test_pages_show_the_tables_and_sentences_of_the_stored_scores(
    benchmarks: Path, tmp_path: Path
) -> None:
    (tmp_path / "docs").mkdir()
    for page in PAGES:
        shutil.copy(ROOT / page, tmp_path / page)
    runpy.run_path(str(benchmarks / "strength_tables.py"))["write_tables"](tmp_path)
    for page in PAGES:
        assert (tmp_path / page).read_text("utf-8") == (ROOT / page).read_text("utf-8")


def test_a_gain_is_clear_if_a_t_test_finds_it(benchmarks: Path) -> None:
    gain = runpy.run_path(str(benchmarks / "strength_gains.py"))["Gain"]
    assert gain.of([0.01, 0.012, 0.011]).marked() == "**+1.10 ± 0.06 (3/3)**"
    assert gain.of([0.01, -0.01, 0.02]).marked() == "+0.67 ± 0.88 (2/3)"
    assert gain.of([0.01]).marked() == "+1.00 (1/1)"
