"""`unimp explain` and `unimp audit` from the command line."""

from __future__ import annotations

import csv
import errno
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from unimp.analysis.explain import EXACT
from unimp.cli import app
from unimp.data.synthetic import synthetic_task
from unimp.errors import RunError
from unimp.runs.experiment import run
from unimp.runs.loading import load_run

SMALL = ["model.width=4", "train.epochs=3", "train.device=cpu"]


TASK = replace(
    synthetic_task(num_nodes=80, num_edges=240, num_classes=3, num_features=4, edge_features=2),
    node_names=tuple(f"package-{i}" for i in range(80)),
    class_names=("libs", "net", "science"),
)
NODE = int(TASK.graph.in_degree.argmax())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a task with names."""
    folder = tmp_path_factory.mktemp("runs") / "named"
    run(TASK, out=folder, settings=SMALL)
    return folder


@pytest.fixture(scope="module")
def propagated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "propagated"
    run("synthetic", out=folder, settings=["task.scale=0.01", "model.name=label-propagation"])
    return folder


def told(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def refused(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == 1
    return str(result.exception)


def test_help_tells_how_many_effects_are_exact_by_default() -> None:
    words = told("explain", "--help").replace("│", " ").split()
    assert f"Default: the {EXACT} of" in " ".join(words)


def test_an_explanation_is_told_in_words(finished: Path) -> None:
    text = told("explain", finished, f"package-{NODE}", "--top", "3")
    assert text.startswith(f"package-{NODE}: ")
    for words in ("without known labels", "Known labels", "Edges", "layer 3", "computed exactly"):
        assert words in text
    assert "of 80 nodes that it rests on" in text


def test_an_explanation_as_json_is_that_of_the_text(finished: Path, tmp_path: Path) -> None:
    found = json.loads(told("explain", finished, f"package-{NODE}", "--json", "--class", "net"))
    assert (found["node"], found["class"]) == (f"package-{NODE}", "net")
    loaded = load_run(finished)
    chances = loaded.probabilities_of(loaded.outputs(loaded.observed_labels(reveal="train")))
    assert found["probability"] == pytest.approx(float(chances[NODE, 1]), abs=1e-5)
    assert f"package-{NODE}: " in told(
        *("explain", finished, f"package-{NODE}", "--json", "--out", tmp_path / "why.json")
    )
    assert json.loads((tmp_path / "why.json").read_text("utf-8"))["node"] == f"package-{NODE}"


def test_labels_that_came_later_are_seen(finished: Path, tmp_path: Path) -> None:
    node = load_run(finished).task.split.test[0].item()
    (tmp_path / "more.csv").write_text(f"node,label\npackage-{node},science\n")
    arguments = ("explain", finished, f"package-{node}", "--labels", tmp_path / "more.csv")
    assert "its own label is an input: science" in told(*arguments)


def test_a_page_with_a_picture_is_written(finished: Path, tmp_path: Path) -> None:
    told("explain", finished, f"package-{NODE}", "--report", tmp_path / "why.html")
    page = (tmp_path / "why.html").read_text("utf-8")
    assert page.startswith("<!doctype html>")
    assert "<svg" in page
    assert f"Why package-{NODE} is" in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_the_report_of_the_run_shows_what_was_asked(finished: Path, tmp_path: Path) -> None:
    place = Path(shutil.copytree(finished, tmp_path / "run"))
    shutil.rmtree(place / "explanations", ignore_errors=True)
    name = f"package-{NODE}"
    (place / "report.html").unlink(missing_ok=True)
    assert told("explain", place, name).endswith(f"{name}: {place / 'report.html'}\n")
    assert f"<b>{name}: " in (place / "report.html").read_text("utf-8")
    assert told("explain", place, "package-3").endswith(f"package-3: {place / 'report.html'}\n")
    assert "<b>package-3: " in (place / "report.html").read_text("utf-8")
    told("explain", place, "package-4", "--no-keep")
    assert "package-4: " not in (place / "report.html").read_text("utf-8")
    assert len(list((place / "explanations").iterdir())) == 2


def test_a_run_that_cannot_be_written_to_is_explained_all_the_same(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> Path:
        raise PermissionError(errno.EACCES, "cannot be written: Permission denied", "run/x.json")

    monkeypatch.setattr("unimp.runs.folder.explanations.store_explanation", refuse)
    done = CliRunner().invoke(app, ["explain", str(finished), "package-3", "--json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout)["node"] == "package-3"
    assert "run/x.json: cannot be written" in done.stderr


@pytest.mark.parametrize(
    "error", [OSError("no place"), RunError("no place"), ValueError("no place"), RecursionError()]
)
def test_whatever_keeps_an_explanation_from_being_kept_is_told_in_a_line(
    finished: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*_: object) -> Path:
        raise error

    monkeypatch.setattr("unimp.runs.reporting.write_report", refuse)
    done = CliRunner().invoke(app, ["explain", str(finished), "package-3"])
    assert done.exit_code == 0
    why = str(error) or "RecursionError"
    assert len(done.stderr.splitlines()) == 1
    assert why in done.stderr


def test_what_was_smoothed_is_explained_and_says_so(finished: Path, tmp_path: Path) -> None:
    place = Path(shutil.copytree(finished, tmp_path / "run"))
    shutil.rmtree(place / "explanations", ignore_errors=True)
    told("report", place, "--no-label-rates")
    name, page = f"package-{NODE}", tmp_path / "why.html"
    words = "redicted with Correct & Smooth after the model"
    text = told("explain", place, name, "--smooth", "--exact", "2", "--report", page)
    assert words in text
    assert "as smoothing has no attention" in text
    assert words.replace("&", "&amp;") in page.read_text("utf-8")
    found = json.loads(told("explain", place, name, "--smooth", "--json", "--exact", "2"))
    smoothed = load_run(place).smoothed()
    chances = smoothed.probabilities_of(smoothed.outputs(smoothed.observed_labels(reveal="train")))
    assert found["probability"] == pytest.approx(float(chances[NODE].max()), abs=1e-5)
    assert found["smooth"] == "correct-and-smooth"
    plain = told("explain", place, name)
    assert words not in plain
    # Two questions, and the page tells which is which.
    shown = (place / "report.html").read_text("utf-8")
    assert len(list((place / "explanations").glob(f"{name}-*"))) == 2
    assert shown.count(words.replace("&", "&amp;")) == 1


@pytest.mark.parametrize("name", ["report.html", "metrics.json"])
@pytest.mark.parametrize("option", ["--report", "--out"])
def test_an_explanation_does_not_take_the_place_of_a_file_of_the_run(
    finished: Path, tmp_path: Path, name: str, option: str
) -> None:
    place = Path(shutil.copytree(finished, tmp_path / "run"))
    assert "a file of the run itself" in refused(
        "explain", place, "package-3", option, place / name
    )
    (place / "report.html").write_text("the report")
    before = (place / name).read_text("utf-8")
    (tmp_path / "link.html").symlink_to(place / name)
    for path in (place / name, place / ".." / "run" / name, tmp_path / "link.html"):
        assert "a file of the run itself" in refused("explain", place, "package-3", option, path)
    assert (place / name).read_text("utf-8") == before


def test_label_propagation_is_explained_by_exact_changes_alone(propagated: Path) -> None:
    text = told("explain", propagated, "5")
    assert "as the model has no attention" in text
    assert "every change computed on the whole graph" in text
    assert "layer 1" not in text


def test_a_misspelt_node_or_class_answers_with_the_nearest(finished: Path) -> None:
    assert "did you mean 'package-7'" in refused("explain", finished, "pakage-7")
    assert "did you mean 'science'" in refused(
        *("explain", finished, "package-3", "--class", "scienc")
    )
    assert "is a folder" in refused("explain", finished, "package-3", "--out", finished)


def test_a_node_with_a_name_goes_by_its_name_alone(finished: Path) -> None:
    assert "no node '5'; " in refused("explain", finished, "5")
    said = refused("explain", finished, "nope")
    assert "none of the 80 names is near it; they are such as package-0, package-1" in said
    assert len(said) < 200


@pytest.mark.parametrize("more", [[], ["--folds", "5"], ["--reveal", "train+val"]])
def test_an_audit_writes_a_table_under_the_users_ids(
    finished: Path, tmp_path: Path, more: list[str]
) -> None:
    text = told("audit", finished, "--out", tmp_path / "audit.csv", *more)
    with (tmp_path / "audit.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    split = load_run(finished).task.split
    known = split.known("train+val" if "--reveal" in more else "train")
    assert {row["node"] for row in rows} == {f"package-{i}" for i in known.tolist()}
    assert {row["given"] for row in rows} <= {"libs", "net", "science"}
    margins = [float(row["margin"]) for row in rows]
    assert margins == sorted(margins, reverse=True)
    assert rows[0]["node"] in text
    how = "one of 5 parts of them at a time" if "--folds" in more else "each alone"
    assert f"{len(rows)} known labels hidden, {how}" in text


def test_an_audit_of_smoothed_answers_ranks_by_them(finished: Path, tmp_path: Path) -> None:
    asked = ("audit", finished, "--out", tmp_path / "audit.csv", "--folds", "2")
    plain, first = told(*asked), (tmp_path / "audit.csv").read_text("utf-8")
    smoothed = told(*asked, "--smooth")
    assert "one of 2 parts of them at a time, with smoothing after the model; " in smoothed
    assert "smoothing" not in plain
    assert (tmp_path / "audit.csv").read_text("utf-8") != first


def test_an_audit_may_be_cut_short_and_runs_without_a_model_too(
    propagated: Path, tmp_path: Path
) -> None:
    told("audit", propagated, "--out", tmp_path / "audit.csv", "-n", "3")
    assert len((tmp_path / "audit.csv").read_text("utf-8").splitlines()) == 4


def test_an_audit_refuses_what_it_cannot_do(finished: Path, tmp_path: Path) -> None:
    path = tmp_path / "audit.csv"
    assert "train+val" in refused("audit", finished, "--reveal", "val", "--out", path)
    assert "2 or more" in refused("audit", finished, "--folds", "1", "--out", path)
    assert "group" in refused("audit", finished, "--by", "groups", "--out", path)
    assert "no groups" in refused("audit", finished, "--by", "group", "--out", path)
    assert not path.exists()


def test_an_audit_says_that_whole_groups_were_hidden(tmp_path: Path) -> None:
    grouped = replace(TASK, groups=torch.arange(80) // 4)
    run(grouped, out=tmp_path / "grouped", settings=SMALL)
    asked = ("audit", tmp_path / "grouped", "--out", tmp_path / "audit.csv", "--by", "group")
    assert "known labels hidden, each with all of its group; " in told(*asked)
    assert "known labels hidden, one of 3 parts of whole groups at a time; " in told(
        *asked, "--folds", "3"
    )
