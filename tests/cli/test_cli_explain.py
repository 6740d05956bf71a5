"""`unimp explain` and `unimp audit` from the command line."""

from __future__ import annotations

import csv
import errno
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from unimp.analysis.explain import EXACT
from unimp.cli import app
from unimp.cli.later import check_outputs
from unimp.config.choices import Reveal
from unimp.data.synthetic import synthetic_task
from unimp.errors import OutputError, RunError
from unimp.runs.experiment import run
from unimp.runs.loading import load_run
from unimp.runs.run import Run

SMALL = ["model.width=4", "train.epochs=3", "train.device=cpu"]


TASK = replace(
    synthetic_task(num_nodes=80, num_edges=240, num_classes=3, num_features=4, edge_features=2),
    node_names=tuple(f"package-{i}" for i in range(80)),
    class_names=("libs", "net", "science"),
)
NODE = int(TASK.graph.in_degree.argmax())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the user's own task, whose nodes and classes have names."""
    folder = tmp_path_factory.mktemp("runs") / "named"
    run(TASK, out=folder, settings=SMALL)
    return folder


@pytest.fixture(scope="module")
def propagated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "propagated"
    run("synthetic", out=folder, settings=["task.scale=0.01", "model.name=label-propagation"])
    return folder


def printed(*arguments: str | Path) -> str:
    """The output of a command that must succeed."""
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def refused(*arguments: str | Path) -> str:
    """The message of a command that must fail."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == 1
    return str(result.exception)


def test_help_states_how_many_effects_are_exact_by_default() -> None:
    words = printed("explain", "--help").replace("│", " ").split()
    assert f"exact effect is computed. Default: {EXACT}." in " ".join(words)


def test_an_explanation_is_printed_with_labels_edges_and_attention(finished: Path) -> None:
    text = printed("explain", finished, f"package-{NODE}", "--top", "3")
    assert text.startswith(f"package-{NODE}: ")
    for words in ("without known labels", "Known labels", "Edges", "layer 3", "exact for"):
        assert words in text
    assert "of 80 nodes" in text


@pytest.mark.parametrize("reveal", [None, "train", "train+val", "known"])
def test_an_explanation_uses_the_labels_that_reveal_names_and_by_default_all(
    finished: Path, reveal: Reveal | None
) -> None:
    more = [] if reveal is None else ["--reveal", reveal]
    found = json.loads(printed("explain", finished, f"package-{NODE}", "--json", *more))
    loaded = load_run(finished)
    observed = loaded.observed_labels(reveal=reveal or "known")
    chances = loaded.probabilities_of(loaded.outputs(observed))[NODE]
    assert found["probability"] == pytest.approx(float(chances.max()), abs=1e-5)
    seen = {f"package-{node}" for node in torch.nonzero(observed >= 0).squeeze(1).tolist()}
    assert {one["node"] for one in found["labels"]} <= seen


def test_the_command_prints_the_explanation_that_the_run_returns(
    finished: Path, tmp_path: Path
) -> None:
    found = json.loads(printed("explain", finished, f"package-{NODE}", "--json", "--class", "net"))
    assert (found["node"], found["class"]) == (f"package-{NODE}", "net")
    expected = load_run(finished).explain(f"package-{NODE}", about="net").to_dict()
    without_times = {"computed": ""}
    assert found | without_times == json.loads(json.dumps(expected)) | without_times
    assert str(tmp_path / "why.json") in printed(
        *("explain", finished, f"package-{NODE}", "--json", "--out", tmp_path / "why.json")
    )
    assert json.loads((tmp_path / "why.json").read_text("utf-8"))["node"] == f"package-{NODE}"


def test_later_labels_are_inputs_of_an_explanation(finished: Path, tmp_path: Path) -> None:
    node = load_run(finished).task.split.test[0].item()
    (tmp_path / "more.csv").write_text(f"node,label\npackage-{node},science\n")
    arguments = ("explain", finished, f"package-{node}", "--labels", tmp_path / "more.csv")
    assert "label is an input: science" in printed(*arguments)


@pytest.mark.parametrize("command", ["explain", "audit"])
def test_val_and_test_labels_of_a_named_task_are_not_inputs_by_default(
    propagated: Path, tmp_path: Path, command: str
) -> None:
    train = set(load_run(propagated).task.split.train.tolist())
    if command == "explain":
        node = min(set(range(100)) - train)
        found = json.loads(printed("explain", propagated, str(node), "--json", "--exact", "0"))
        assert found["observed"] is None
        assert found["labels"]
        assert {one["node"] for one in found["labels"]} <= train
    else:
        printed("audit", propagated, "--out", tmp_path / "audit.csv")
        with (tmp_path / "audit.csv").open(encoding="utf-8") as file:
            assert {int(row["node"]) for row in csv.DictReader(file)} == train


def test_a_page_with_a_picture_is_written(finished: Path, tmp_path: Path) -> None:
    printed("explain", finished, f"package-{NODE}", "--report", tmp_path / "why.html")
    page = (tmp_path / "why.html").read_text("utf-8")
    assert page.startswith("<!doctype html>")
    assert "<svg" in page
    assert f"Why package-{NODE} is" in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_the_report_of_the_run_shows_its_explanations(finished: Path, tmp_path: Path) -> None:
    place = Path(shutil.copytree(finished, tmp_path / "run"))
    shutil.rmtree(place / "explanations", ignore_errors=True)
    name = f"package-{NODE}"
    (place / "report.html").unlink(missing_ok=True)
    assert printed("explain", place, name).endswith(f"{place / 'report.html'}\n")
    assert f"<b>{name}: " in (place / "report.html").read_text("utf-8")
    assert printed("explain", place, "package-3").endswith(f"{place / 'report.html'}\n")
    assert "<b>package-3: " in (place / "report.html").read_text("utf-8")
    printed("explain", place, "package-4", "--no-keep")
    assert "package-4: " not in (place / "report.html").read_text("utf-8")
    assert len(list((place / "explanations").iterdir())) == 2


def test_a_node_is_explained_even_if_the_run_folder_is_read_only(
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
def test_an_error_while_an_explanation_is_stored_is_reported_in_one_line(
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


def test_the_explanation_of_a_smoothed_prediction_states_the_smoothing(
    finished: Path, tmp_path: Path
) -> None:
    place = Path(shutil.copytree(finished, tmp_path / "run"))
    shutil.rmtree(place / "explanations", ignore_errors=True)
    printed("report", place, "--no-label-rates")
    name, page = f"package-{NODE}", tmp_path / "why.html"
    words = "redicted with Correct & Smooth after the model"
    text = printed("explain", place, name, "--smooth", "--exact", "2", "--report", page)
    assert words in text
    assert "a uniform walk, because attention is not available" in text
    assert words.replace("&", "&amp;") in page.read_text("utf-8")
    found = json.loads(printed("explain", place, name, "--smooth", "--json", "--exact", "2"))
    smoothed = load_run(place).smoothed()
    chances = smoothed.probabilities_of(smoothed.outputs(smoothed.observed_labels()))
    assert found["probability"] == pytest.approx(float(chances[NODE].max()), abs=1e-5)
    assert found["smooth"] == "correct-and-smooth"
    plain = printed("explain", place, name)
    assert words not in plain
    # The page shows both explanations and states which one is smoothed.
    shown = (place / "report.html").read_text("utf-8")
    assert len(list((place / "explanations").glob(f"{name}-*"))) == 2
    assert shown.count(words.replace("&", "&amp;")) == 1


@pytest.mark.parametrize("name", ["report.html", "metrics.json"])
@pytest.mark.parametrize("option", ["--report", "--out"])
def test_an_explanation_does_not_overwrite_a_file_of_the_run(
    finished: Path, tmp_path: Path, name: str, option: str
) -> None:
    place = Path(shutil.copytree(finished, tmp_path / "run"))
    (place / "report.html").write_text("the report")
    before = (place / name).read_text("utf-8")
    (tmp_path / "link.html").symlink_to(place / name)
    for path in (place / name, place / ".." / "run" / name, tmp_path / "link.html"):
        text = refused("explain", place, "package-3", option, path, "--force")
        assert "a file of a run" in text
    assert (place / name).read_text("utf-8") == before


def test_label_propagation_is_explained_by_exact_effects_without_attention(
    propagated: Path,
) -> None:
    text = printed("explain", propagated, "5")
    assert "a uniform walk, because attention is not available" in text
    assert "on the whole graph" in text
    assert "layer 1" not in text


def test_a_misspelled_node_or_class_is_refused_with_the_nearest_name(finished: Path) -> None:
    assert "did you mean 'package-7'" in refused("explain", finished, "pakage-7")
    assert "did you mean 'science'" in refused(
        *("explain", finished, "package-3", "--class", "scienc")
    )
    assert "is a folder" in refused("explain", finished, "package-3", "--out", finished)


def test_a_node_with_a_name_is_not_found_by_its_number(finished: Path) -> None:
    assert "no node '5'; " in refused("explain", finished, "5")
    text = refused("explain", finished, "nope")
    assert "80 names" in text
    assert "package-0, package-1" in text
    assert len(text) < 200


@pytest.mark.parametrize(
    "more", [[], ["--folds", "5"], ["--reveal", "train"], ["--reveal", "train+val"]]
)
def test_an_audit_writes_the_table_that_the_run_returns(
    finished: Path, tmp_path: Path, more: list[str]
) -> None:
    text = printed("audit", finished, "--out", tmp_path / "audit.csv", *more)
    with (tmp_path / "audit.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    loaded = load_run(finished)
    reveal: Any = more[1] if "--reveal" in more else "known"
    known = torch.nonzero(loaded.observed_labels(reveal=reveal) >= 0).squeeze(1)
    assert {row["node"] for row in rows} == {f"package-{i}" for i in known.tolist()}
    expected = loaded.audit(reveal=reveal, folds=5 if "--folds" in more else None)
    assert [{k: str(v) for k, v in row.items()} for row in expected.to_pylist()] == rows
    assert {row["given"] for row in rows} <= {"libs", "net", "science"}
    margins = [float(row["margin"]) for row in rows]
    assert margins == sorted(margins, reverse=True)
    assert rows[0]["node"] in text
    assert ("one of 5 parts" if "--folds" in more else "each alone") in text
    assert f"{len(rows)} known labels" in text
    assert f"disagrees with {expected.disagreements}" in text


def test_an_audit_prints_only_labels_that_the_model_disagrees_with(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = printed("audit", finished, "--out", tmp_path / "whole.csv", "-n", "3")
    assert "p(given)" in whole
    found = load_run(finished).audit()
    monkeypatch.setattr(Run, "audit", lambda *given, **options: found)
    found.disagreements = 0
    text = printed("audit", finished, "--out", tmp_path / "none.csv")
    assert "p(given)" not in text
    assert "none of them" in text
    assert len((tmp_path / "none.csv").read_text().splitlines()) == len(found) + 1
    found.disagreements = 2
    two = printed("audit", finished, "--out", tmp_path / "two.csv")
    assert len(two.splitlines()) == 1 + 2 + 1


def test_an_audit_with_smoothing_ranks_by_smoothed_predictions(
    finished: Path, tmp_path: Path
) -> None:
    asked = ("audit", finished, "--out", tmp_path / "audit.csv", "--folds", "2")
    plain, first = printed(*asked), (tmp_path / "audit.csv").read_text("utf-8")
    smoothed = printed(*asked, "--smooth", "--force")
    assert "with smoothing after the model" in smoothed
    assert "with smoothing" not in plain
    assert (tmp_path / "audit.csv").read_text("utf-8") != first


def test_an_audit_of_label_propagation_writes_as_many_rows_as_requested(
    propagated: Path, tmp_path: Path
) -> None:
    printed("audit", propagated, "--out", tmp_path / "audit.csv", "-n", "3")
    assert len((tmp_path / "audit.csv").read_text("utf-8").splitlines()) == 4


def test_invalid_options_of_an_audit_are_refused_before_anything_is_written(
    finished: Path, tmp_path: Path
) -> None:
    path = tmp_path / "audit.csv"
    assert "train+val" in refused("audit", finished, "--reveal", "val", "--out", path)
    assert "2 or more" in refused("audit", finished, "--folds", "1", "--out", path)
    assert "group" in refused("audit", finished, "--by", "groups", "--out", path)
    assert "no groups" in refused("audit", finished, "--by", "group", "--out", path)
    assert not path.exists()


@pytest.mark.parametrize("command", ["predict", "audit", "suggest"])
def test_a_file_that_cannot_be_written_is_refused_before_the_run_is_loaded(
    command: str, finished: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    (run / "model.safetensors").write_bytes(b"not weights")
    assert "model.safetensors" in refused(command, run, "--out", tmp_path / "table.csv")
    assert ".parquet" in refused(command, run, "--out", tmp_path / "table.xlsx")
    if command == "predict":  # writes files of a million nodes each to a folder
        (tmp_path / "part-00000.parquet").touch()
        assert "part-00000.parquet exists" in refused(command, run, "--out", tmp_path)
    else:
        assert "is a folder" in refused(command, run, "--out", tmp_path)


def test_an_audit_by_group_states_that_whole_groups_were_hidden(tmp_path: Path) -> None:
    grouped = replace(TASK, groups=torch.arange(80) // 4)
    run(grouped, out=tmp_path / "grouped", settings=SMALL)
    asked = ("audit", tmp_path / "grouped", "--out", tmp_path / "audit.csv", "--by", "group")
    assert "each together with its group" in printed(*asked)
    assert "one of 3 parts of whole groups" in printed(*asked, "--folds", "3", "--force")


def test_two_outputs_must_be_different_files(finished: Path, tmp_path: Path) -> None:
    page = tmp_path / "same.html"
    assert "same.html" in refused("explain", finished, "package-0", "--out", page, "--report", page)
    text = tmp_path / "same.txt"
    other = tmp_path / ".." / tmp_path.name / "same.txt"
    outputs = [(text, (".txt",)), (other, (".txt",))]
    with pytest.raises(OutputError, match=r"same\.txt"):
        check_outputs(outputs, finished, force=True)
    assert list(tmp_path.iterdir()) == []
