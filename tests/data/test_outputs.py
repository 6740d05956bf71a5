"""The guard of files that a user asks to be written."""

import os
import runpy
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest

import unimp
from unimp.analysis.table import Table
from unimp.data.outputs import PAGE, TABLE, check_output
from unimp.errors import OutputError

PROOFS = Path(__file__).parents[2] / "proofs"


def test_an_existing_file_is_replaced_only_with_force(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    check_output(path, TABLE)
    path.write_text("mine")
    with pytest.raises(OutputError, match=r"a\.csv exists.*--force"):
        check_output(path, TABLE)
    check_output(path, TABLE, force=True)


@pytest.mark.parametrize("name", ["a.toml", "a.npz", "a", "a.csv.txt", "a.html"])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(OutputError, match=r"\.csv or \.parquet"):
        check_output(tmp_path / name, TABLE, force=True)


@pytest.mark.parametrize("how", ["itself", "symlink", "hardlink", "another path"])
def test_a_file_that_is_read_is_refused_through_links_too(tmp_path: Path, how: str) -> None:
    given, path = tmp_path / "given.csv", tmp_path / "out.csv"
    given.write_text("mine")
    if how == "symlink":
        path.symlink_to(given)
    elif how == "hardlink":
        os.link(given, path)
    else:
        path = given if how == "itself" else tmp_path / ".." / tmp_path.name / "given.csv"
    with pytest.raises(OutputError, match="is an input"):
        check_output(path, TABLE, reads=[None, given], force=True)


@pytest.mark.parametrize("mark", ["manifest.json", "checkpoint.safetensors", ".lock"])
def test_a_file_of_a_run_is_refused_even_if_it_does_not_exist_yet(
    tmp_path: Path, mark: str
) -> None:
    (tmp_path / mark).touch()
    (tmp_path / "explanations").mkdir()
    with pytest.raises(OutputError, match="a file of a run"):
        check_output(tmp_path / "report.html", PAGE, force=True)
    with pytest.raises(OutputError, match="a file of a run"):
        check_output(tmp_path / "explanations" / "x.html", PAGE, force=True)
    check_output(tmp_path / "mine.html", PAGE)


def test_tables_and_tasks_are_guarded_in_python_too(tmp_path: Path) -> None:
    table, task = Table(pa.table({"a": [1]})), unimp.load_task("synthetic", scale=0.01)
    for write, name in (
        (table.write, "a.csv"),
        (lambda p, **o: unimp.save_npz(task, p, **o), "a.npz"),
    ):
        write(tmp_path / name)
        before = (tmp_path / name).read_bytes()
        with pytest.raises(OutputError, match="force=True"):
            write(tmp_path / name)
        write(tmp_path / name, force=True)
        assert (tmp_path / name).read_bytes() == before


def test_no_command_destroys_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short form of proofs/outputs.py."""
    monkeypatch.syspath_prepend(PROOFS)
    proof = runpy.run_path(str(PROOFS / "outputs.py"))
    proof["make_project"](tmp_path)
    for case in proof["chosen_cases"](proof["all_cases"](tmp_path), 60):
        with tempfile.TemporaryDirectory() as place:
            proof["outcome"](case, tmp_path, Path(place))
